import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gputopo.planner import Request, plan
from gputopo.planner.batches import SAME_SPEED
from gputopo.planner.how_many import groups
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
    assert found.together.batch_sizes == (64,) * 7
    assert max(one.images_per_sec for one in found.alone) < found.together.images_per_sec


def test_batches_in_proportion_use_what_a_faster_gpu_can_do() -> None:
    found = compared(100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 150.0)
    assert found is not None
    # 448 examples: 448 x 1 / 7.5 = 59.73 each, and 448 x 1.5 / 7.5 = 89.6
    assert found.in_proportion.batch_sizes == (60, 60, 60, 60, 60, 59, 89)
    assert found.better == found.in_proportion
    assert found.use == "--batch-size 60,60,60,60,60,59,89"
    assert found.in_proportion.images_per_sec > 1.02 * found.together.images_per_sec


def test_equal_gpus_alone_are_faster_than_with_a_slow_one() -> None:
    found = compared(100.0, 100.0, 30.0, 100.0, 100.0, 100.0, 100.0)
    assert found is not None
    (alone,) = found.alone
    assert alone.gpus == (0, 1, 3, 4, 5, 6)
    assert alone.images_per_sec > 2 * found.together.images_per_sec


def test_the_equal_ones_alone_are_named_where_a_slow_one_costs_more_than_it_brings() -> None:
    # Of a model of many bytes a seventh GPU moves as many as any other, and computes next to nothing.
    request = Request(model="vgg16", batch_size=8)
    found = compared(100.0, 100.0, 1.0, 100.0, 100.0, 100.0, 100.0, request=request)
    assert found is not None
    assert found.better == found.alone[0]
    assert found.use == "--gpus 0,1,3,4,5,6"


def test_groups_have_the_gpu_that_holds_the_variables() -> None:
    request = msgspec.structs.replace(REQUEST, ps="gpu:2")
    found = compared(100.0, 100.0, 30.0, 100.0, 100.0, 100.0, 100.0, request=request)
    assert found is not None
    assert found.alone == ()
    assert found.better == found.in_proportion


def test_a_plan_that_does_as_advised_advises_nothing_more() -> None:
    speeds = (100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 150.0)
    before = compared(*speeds)
    assert before is not None
    for batch in ("auto", before.in_proportion.batch_sizes):
        found = compared(*speeds, request=msgspec.structs.replace(REQUEST, batch_size=batch))
        assert found is not None
        assert (found.better.batch_sizes, found.use) == (before.better.batch_sizes, "")


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
