"""The launcher when a signal ends it: what its worker may still do, and when it is killed."""

import os
import signal

import pytest

from gputopo.launch.supervise import WorkerLimits
from gputopo.runs import summarise
from gputopo.values.run.events import (
    RunFinished,
)
from gputopo.values.run.spec import Lifecycle
from tests.launch.jobs.supervised import Run, failure, once
from tests.launch.specs import cpu_spec


@pytest.mark.parametrize(
    ("signum", "kind", "code"),
    [
        (signal.SIGINT, "interrupted", 130),
        (signal.SIGHUP, "terminated", 129),
    ],
)
def test_a_signal_to_the_launcher_ends_the_worker_and_reports(
    run: Run, signum: signal.Signals, kind: str, code: int
) -> None:
    run.on_step = lambda: os.kill(os.getpid(), signum)
    outcome = run("hangs")
    assert (failure(outcome).kind, failure(outcome).signal, outcome.exit_code) == (kind, signum.name, code)
    result = summarise(run.written())
    assert (result.status, result.steps, result.exit_code) == ("interrupted", 1, code)


SAVES = cpu_spec(lifecycle=Lifecycle(checkpoints="/c"))


def test_a_worker_that_saves_is_asked_to_end_after_its_step_and_to_save(run: Run) -> None:
    run.on_step = once(lambda: os.kill(os.getpid(), signal.SIGTERM))
    outcome = run("ends_as_asked", spec=SAVES)
    assert outcome.exit_code == 143
    assert failure(outcome).signal == "SIGTERM"
    assert "--resume" in failure(outcome).remedy
    result = summarise(run.written())
    assert (result.status, result.steps, result.exit_code) == ("interrupted", 2, 143)
    assert [saved.steps for saved in result.checkpoints] == [3]


@pytest.mark.parametrize("behaviour", ["ends_as_asked", "hangs"])
def test_a_worker_with_nothing_to_keep_or_no_step_yet_is_ended_at_once(run: Run, behaviour: str) -> None:
    spec = cpu_spec() if behaviour == "ends_as_asked" else SAVES  # "hangs" never reports its placement
    run.on_step = once(lambda: os.kill(os.getpid(), signal.SIGINT))
    outcome = run(behaviour, spec=spec)
    assert outcome.exit_code == 130
    assert summarise(run.written()).steps == 1


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(run: Run) -> None:
    run.on_step = lambda: os.kill(os.getpid(), signal.SIGTERM)
    outcome = run("ignores_sigterm", limits=WorkerLimits(after_term=0.05))
    assert (failure(outcome).kind, outcome.exit_code) == ("terminated", 143)


def test_a_second_ctrl_c_kills_at_once(run: Run) -> None:
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    run.on_step = twice
    outcome = run("ignores_sigterm")  # with a grace of a minute: only the kill ends it in time
    assert (failure(outcome).kind, outcome.exit_code) == ("interrupted", 130)
    finished = outcome.events[-1]
    assert isinstance(finished, RunFinished)
    assert finished.wall_s < 30
