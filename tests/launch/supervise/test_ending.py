import signal

import pytest

from gputopo.launch.spec.run_spec import Lifecycle, RunSpec
from gputopo.launch.supervise.ending import Answer, Stage, answer, keeps_something
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
def test_only_a_worker_at_work_may_end_its_step_and_a_second_ctrl_c_kills(
    stage: Stage, ctrl_c: Answer, term: Answer
) -> None:
    assert answer(signal.SIGINT, stage, worth_a_step=True) == ctrl_c
    assert answer(signal.SIGTERM, stage, worth_a_step=True) == term


def test_a_worker_with_nothing_to_keep_is_told_to_end() -> None:
    assert answer(signal.SIGINT, "running", worth_a_step=False) == "end"


@pytest.mark.parametrize(
    ("spec", "keeps"),
    [
        (cpu_spec(), False),
        (cpu_spec(lifecycle=Lifecycle(checkpoints="/c")), True),
        (cpu_spec(task="eval", lifecycle=Lifecycle(checkpoints="/c")), False),
        (cpu_spec(lifecycle=Lifecycle(tensorboard="/t")), True),
        (cpu_spec(lifecycle=Lifecycle(trace="/t", trace_steps=(3,))), True),
    ],
)
def test_checkpoints_of_a_training_scalars_and_traces_are_worth_a_step(spec: RunSpec, keeps: bool) -> None:
    assert keeps_something(spec) is keeps
