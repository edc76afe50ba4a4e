import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gputopo.planner import Request, plan
from gputopo.planner.how_many import SAME_SPEED, groups
from gputopo.values.run.plan import Unequal
from tests.matrices import SEVEN, machine_of

REQUEST = Request(model="resnet50", batch_size=64)


def compared(*speeds: float, request: Request = REQUEST) -> Unequal | None:
    given_speeds = msgspec.structs.replace(request, single_gpu_images_per_sec=speeds)
    return plan(machine_of(SEVEN), given_speeds).unequal


def test_gpus_of_one_speed_are_not_compared() -> None:
    assert compared(100.0) is None
    assert compared(100.0, 99.0, 101.0, 100.0, 100.0, 100.0, 100.0) is None


def test_a_faster_gpu_among_many_does_not_make_the_others_worse() -> None:
    found = compared(100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 150.0)
    assert found is not None
    assert [one.gpus for one in found.alone] == [(0, 1, 2, 3, 4, 5), (6,)]
    assert found.better == found.together.gpus == (0, 1, 2, 3, 4, 5, 6)


def test_equal_gpus_alone_are_faster_than_with_a_slow_one() -> None:
    found = compared(100.0, 100.0, 30.0, 100.0, 100.0, 100.0, 100.0)
    assert found is not None
    assert found.better == (0, 1, 3, 4, 5, 6)
    best = max(found.alone, key=lambda one: one.images_per_sec)
    assert best.images_per_sec > 2 * found.together.images_per_sec


def test_groups_have_the_gpu_that_holds_the_variables() -> None:
    request = msgspec.structs.replace(REQUEST, ps="gpu:2")
    assert compared(100.0, 100.0, 30.0, 100.0, 100.0, 100.0, 100.0, request=request) is None


@given(st.lists(st.floats(1.0, 1e4), min_size=1, max_size=8))
def test_groups_leave_the_slower_ones_out(speeds: list[float]) -> None:
    by_gpu = dict(enumerate(speeds))
    for part in groups(by_gpu):
        assert 0 < len(part) < len(speeds)
        others = [speeds[gpu] for gpu in by_gpu if gpu not in part]
        assert min(others) < min(speeds[gpu] for gpu in part) or max(others) > max(
            speeds[gpu] for gpu in part
        )
    if min(speeds) >= (1 - SAME_SPEED) * max(speeds):
        assert groups(by_gpu) == ()
