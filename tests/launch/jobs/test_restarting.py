"""The rest of a run after a failure of its worker."""

import msgspec
import pytest

from gputopo.launch.jobs.restarting import Kept, continued, may_restart
from gputopo.values.run.drill import read_drills
from gputopo.values.run.events import CheckpointSaved, RankFailed, Step
from tests.launch.specs import cpu_spec


def step(number: int) -> Step:
    return Step(time_s=0.0, step=number, seconds=0.1, images=8, loss=1.0, marks=())


def saved(steps: int) -> CheckpointSaved:
    return CheckpointSaved(time_s=0.0, path="c", steps=steps, bytes=1, seconds=0.1)


def test_only_counted_steps_before_a_checkpoint_are_kept_also_over_restarts() -> None:
    kept = Kept()
    for event in (step(0), step(1), step(2), saved(3), step(3)):
        kept.add(event)
    assert (kept.counted, kept.trained) == (2, 3)
    kept.begin_again()
    for event in (step(0), step(1), saved(5)):
        kept.add(event)
    assert (kept.counted, kept.trained) == (3, 5)


@pytest.mark.parametrize(
    ("counted", "steps"), [(0, (3, 10)), (4, (3, 3)), (8, (1, 1)), (9, (0, 1)), (10, None)]
)
def test_the_rest_trains_as_many_steps_as_an_uninterrupted_run(
    counted: int, steps: tuple[int, int] | None
) -> None:
    rest = continued(cpu_spec(num_batches=10, num_warmup_batches=3), counted)
    assert (None if rest is None else (rest.num_warmup_batches, rest.num_batches)) == steps
    assert rest is None or rest.lifecycle.resume_or_start


@pytest.mark.parametrize(
    ("kind", "code", "again"),
    [
        ("killed", 137, True),
        ("hung", 3, True),
        ("error", 3, True),
        ("error", 2, False),
        ("out_of_memory", 3, False),
        ("loss", 1, False),
        ("disk_full", 3, False),
        ("interrupted", 130, False),
    ],
)
def test_what_comes_again_is_not_tried_again(kind: str, code: int, again: bool) -> None:
    failed = RankFailed(time_s=0.0, kind=kind, cause="c", remedy="r", exit_code=code)
    assert may_restart(failed) == again


def test_a_drill_that_happened_does_not_happen_again_and_a_slow_gpu_stays_slow_from_the_same_step_on() -> (
    None
):
    drills = read_drills("--drill", ["slow-gpu=1:0.9@10", "slow-gpu=1:0.8@50", "hang@20", "lost-gpu=0@21"])
    rest = continued(cpu_spec(num_batches=100, drills=drills), 20)
    assert rest is not None
    assert [one.typed for one in rest.drills] == ["slow-gpu=1:0.9", "slow-gpu=1:0.8@30"]


def test_no_worker_goes_on_without_the_server_of_another_host() -> None:
    failed = RankFailed(time_s=0.0, kind="killed", cause="killed", remedy="", exit_code=3)
    assert may_restart(failed)
    assert not may_restart(msgspec.structs.replace(failed, rank=1))
