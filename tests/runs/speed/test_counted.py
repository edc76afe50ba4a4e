import msgspec
import pytest

from gputopo.runs.speed import KEPT_STEPS, CountedSteps
from gputopo.values.run.events import Step
from tests.invented_runs import InventedRun, Noise


def counted(steps: list[Step]) -> CountedSteps:
    found = CountedSteps()
    for step in steps:
        found.add(step)
    return found


def test_sums_are_of_all_counted_steps_and_marks_of_evenly_spread_ones() -> None:
    steps = list(InventedRun(2, noise=Noise(own=0.01)).steps(KEPT_STEPS * 3))
    found = counted(steps)
    assert (found.number, found.first, found.last) == (len(steps), steps[0], steps[-1])
    assert found.images == sum(step.images for step in steps)
    assert found.seconds == pytest.approx(sum(step.seconds for step in steps), rel=1e-12)
    assert found.kept == steps[::4]
    assert found.fields()["steps"] == len(steps)


def test_the_warm_up_is_not_counted_but_its_lost_loss_is_seen() -> None:
    first, *rest = InventedRun(2).steps(3)
    lost = msgspec.structs.replace(first, step=0, loss=None)
    found = counted([lost, *rest])
    assert (found.number, found.in_warmup, found.lost_loss) == (2, 1, lost)
    assert found.first == rest[0]
