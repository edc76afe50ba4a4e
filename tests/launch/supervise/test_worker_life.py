"""What signals and failures elsewhere do to a worker. The rest of its life: tests/launch/jobs/test_run_*."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gputopo.launch.supervise import EventQueue, Record, answer_to_signal, workers
from gputopo.values.run.events import Event, Noticed, PhaseBegun, RankFailed, Step
from gputopo.values.run.spec import Lifecycle, RunSpec
from tests.kit_workers import misbehave
from tests.launch.specs import cpu_spec


@pytest.mark.parametrize(
    ("stage", "ctrl_c", "term"),
    [
        ("running", "finish", "finish"),
        ("finishing", "kill", "finish"),
        ("closing", "end", "end"),
        ("asked", "kill", "end"),
        ("killed", "kill", "end"),
    ],
)
def test_only_a_running_worker_may_finish_its_step_and_a_second_ctrl_c_kills(
    stage: Any, ctrl_c: str, term: str
) -> None:
    assert answer_to_signal(signal.SIGINT, stage, worth_a_step=True) == ctrl_c
    assert answer_to_signal(signal.SIGTERM, stage, worth_a_step=True) == term


def test_a_worker_with_nothing_to_save_is_sent_sigterm() -> None:
    assert answer_to_signal(signal.SIGINT, "running", worth_a_step=False) == "end"


@pytest.mark.parametrize(
    ("spec", "saves"),
    [
        (cpu_spec(), False),
        (cpu_spec(lifecycle=Lifecycle(checkpoints="/c")), True),
        (cpu_spec(task="eval", lifecycle=Lifecycle(checkpoints="/c")), False),
        (cpu_spec(lifecycle=Lifecycle(trace="/t", trace_steps=(3,))), True),
    ],
)
def test_checkpoints_of_a_training_scalars_and_traces_are_worth_a_step(spec: RunSpec, saves: bool) -> None:
    assert spec.saves_after_a_step is saves


def of_misbehave(behaviour: str) -> Callable[[int], Sequence[str]]:
    return lambda events: (sys.executable, "-I", misbehave.__file__, behaviour, "-", str(events))


@pytest.mark.parametrize("kind", ["killed", "terminated"])
def test_a_failure_that_another_host_reports_ends_the_worker_and_is_the_cause(
    tmp_path: Path, kind: str
) -> None:
    """Also where the worker takes the SIGTERM for a wish to end, and reports that."""
    events: list[Event] = []
    failed = RankFailed(time_s=1.0, rank=2, kind=kind, cause="its server died", remedy="", exit_code=137)
    with contextlib.closing(EventQueue[Event]()) as others, contextlib.closing(EventQueue[Event]()) as silent:

        def seen(event: Event) -> None:
            events.append(event)
            if isinstance(event, Step) and event.step == 1:
                others.put(Noticed(time_s=0.0, rank=1, says="a remark"), failed)

        with (
            contextlib.closing(Record(None, seen, may_restart=lambda one: one.kind == "killed")) as record,
            workers(os.environ) as running,
        ):
            log = tmp_path / "log"
            running.run(cpu_spec(), of_misbehave("takes_sigterm_as_asked"), record, log, (silent, others))
            assert record.failure == failed
            assert (record.restartable is not None) == (kind == "killed")
    assert [event.rank for event in events if isinstance(event, Noticed | RankFailed)] == (
        [1] if kind == "killed" else [1, 2]
    )


def test_a_ctrl_c_to_all_hosts_that_another_one_reports_first_lets_the_step_end_and_blames_none(
    tmp_path: Path,
) -> None:
    events: list[Event] = []
    spec = cpu_spec(lifecycle=Lifecycle(checkpoints="/c"))
    there = RankFailed(time_s=1.0, rank=1, kind="interrupted", cause="Ctrl-C", remedy="", exit_code=130)
    with contextlib.closing(EventQueue[Event]()) as others:

        def seen(event: Event) -> None:
            events.append(event)
            if isinstance(event, Step) and event.step == 1:
                others.put(there)
            elif isinstance(event, PhaseBegun):  # of the last step, and then of its checkpoint
                os.kill(os.getpid(), signal.SIGINT)

        command = of_misbehave("does_not_end_as_asked")
        with contextlib.closing(Record(None, seen)) as record, workers(os.environ) as running:
            running.run(spec, command, record, tmp_path / "log", (others,))
    assert [one.phase for one in events if isinstance(one, PhaseBegun)] == ["end", "checkpoint"]
    assert record.failure is not None
    assert (record.failure.rank, there in events) == (0, False)
