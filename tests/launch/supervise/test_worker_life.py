"""What a signal to the launcher does to a worker. The rest of its life: tests/launch/jobs/test_run_*."""

import signal

import pytest

from gputopo.launch.spec.run_spec import Lifecycle, RunSpec
from gputopo.launch.supervise.worker_life import Answer, Stage, answer, saves_something
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
    stage: Stage, ctrl_c: Answer, term: Answer
) -> None:
    assert answer(signal.SIGINT, stage, worth_a_step=True) == ctrl_c
    assert answer(signal.SIGTERM, stage, worth_a_step=True) == term


def test_a_worker_with_nothing_to_save_is_sent_sigterm() -> None:
    assert answer(signal.SIGINT, "running", worth_a_step=False) == "end"


@pytest.mark.parametrize(
    ("spec", "saves"),
    [
        (cpu_spec(), False),
        (cpu_spec(lifecycle=Lifecycle(checkpoints="/c")), True),
        (cpu_spec(task="eval", lifecycle=Lifecycle(checkpoints="/c")), False),
        (cpu_spec(lifecycle=Lifecycle(tensorboard="/t")), True),
        (cpu_spec(lifecycle=Lifecycle(trace="/t", trace_steps=(3,))), True),
    ],
)
def test_checkpoints_of_a_training_scalars_and_traces_are_worth_a_step(spec: RunSpec, saves: bool) -> None:
    assert saves_something(spec) is saves
