from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo import captures
from gputopo.planner import Request, plan
from gputopo.planner.how_many import GAIN, doublings, enough, gains
from gputopo.values.bandwidth import Bandwidth, Sample
from gputopo.values.errors import UsageError
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.plan import HowMany
from tests.matrices import SEVEN, machine_of


def measured(gb_per_s: float) -> Machine:
    """Return the machine of seven, whose GPUs copy to and from the host at a rate."""
    machine = machine_of(SEVEN)
    samples = []
    for place in (f"gpu:{gpu.index}" for gpu in machine.gpus):
        down = Sample(kind="h2d", source="host", destination=place, pinned=True, median_gb_per_s=gb_per_s)
        up = Sample(kind="d2h", source=place, destination="host", pinned=True, median_gb_per_s=gb_per_s)
        samples += [down, up]
    bandwidth = Bandwidth(source="a test", samples=tuple(samples))
    gpus = tuple(Gpu(index=gpu.index, name="GeForce GTX 1070") for gpu in machine.gpus)
    return msgspec.structs.replace(machine, bandwidth=bandwidth, gpus=gpus)


def settled(machine: Machine, request: Request) -> HowMany:
    found = plan(machine, request)
    assert found.how_many is not None
    assert len(found.choice.gpus) == found.how_many.num_gpus
    return found.how_many


SMALL = Request(model="resnet50", batch_size=64, single_gpu_images_per_sec=(100.0,), num_gpus="auto")
LARGE = Request(model="vgg16", batch_size=8, single_gpu_images_per_sec=(100.0,), num_gpus="auto")


def test_all_gpus_are_taken_where_each_step_brings_its_worth() -> None:
    found = settled(measured(12.0), SMALL)
    assert [one.num_gpus for one in found.counts] == [1, 2, 4, 7]
    assert (found.num_gpus, found.gain) == (7, GAIN)
    assert "each step up to 7 brings at least 50%" in found.reason
    assert all(one.gain is not None and one.gain > GAIN for one in found.counts[1:])


def test_one_gpu_is_taken_where_more_are_slower() -> None:
    found = settled(measured(0.2), LARGE)
    assert found.num_gpus == 1
    assert found.reason.startswith("2 are slower than 1: ")


def test_a_lower_gain_takes_more_and_is_named() -> None:
    counts = settled(measured(12.0), LARGE).counts
    least = min(one.gain for one in counts if one.gain is not None)
    less = settled(measured(12.0), msgspec.structs.replace(LARGE, gain=max(least, 0.0)))
    more = settled(measured(12.0), msgspec.structs.replace(LARGE, gain=1.0))
    assert less.num_gpus >= more.num_gpus
    assert more.gain == 1.0


@pytest.mark.parametrize(
    ("machine", "request_", "why"),
    [
        (machine_of(SEVEN), SMALL, "bandwidth was not measured"),
        (
            machine_of(SEVEN),
            Request(model="resnet50", num_gpus="auto"),
            "no speed of one GPU is known",
        ),
        (machine_of(SEVEN), Request(num_gpus="auto"), "no step is predicted"),
    ],
)
def test_all_unless_measured_otherwise(machine: Machine, request_: Request, why: str) -> None:
    found = settled(machine, request_)
    assert found.num_gpus == 7
    assert found.reason.startswith("all, unless measured otherwise: ")
    assert why in found.reason


def test_the_number_is_chosen_from_named_gpus_without_excluded_ones() -> None:
    request = msgspec.structs.replace(SMALL, gpus=(2, 3, 4, 6), single_gpu_images_per_sec=(100.0,))
    assert [one.num_gpus for one in settled(measured(12.0), request).counts] == [1, 2, 4]
    request = msgspec.structs.replace(SMALL, exclude=(0, 1, 2, 3))
    assert [one.num_gpus for one in settled(measured(12.0), request).counts] == [1, 2, 3]


def test_a_reduction_is_compared_where_it_can_serve_the_gpus() -> None:
    request = msgspec.structs.replace(SMALL, all_reduce="tf_hierarchical")
    assert [one.num_gpus for one in settled(measured(12.0), request).counts] == [1, 2, 4]


def test_a_larger_number_that_is_clearly_faster_is_named() -> None:
    """Two GPUs of this box bring little, since the fastest one waits for another; seven bring much."""
    found = plan(captures.load(["7gforce"]), Request(model="alexnet", num_gpus="auto")).how_many
    assert found is not None
    chosen = next(one for one in found.counts if one.num_gpus == found.num_gpus)
    best = found.counts[-1]
    assert (found.num_gpus, best.num_gpus) == (1, 7)
    times = best.images_per_sec / chosen.images_per_sec
    assert found.reason.endswith(f"; 7 are {times:.2f} times as fast as 1: --num-gpus 7")


def test_a_gain_without_auto_is_refused() -> None:
    with pytest.raises(UsageError, match="--gain is for --num-gpus auto"):
        plan(measured(12.0), Request(num_gpus=2, gain=0.3))


@given(st.integers(1, 64))
def test_counts_double_up_to_the_largest(largest: int) -> None:
    counts = doublings(largest)
    assert counts[0] == 1
    assert counts[-1] == largest
    assert all(a < b <= 2 * a for a, b in pairwise(counts))


@given(st.lists(st.floats(1.0, 1e5), min_size=1, max_size=6), st.floats(0.0, 1.0))
def test_more_gpus_are_chosen_only_where_the_gain_holds(speeds: list[float], gain: float) -> None:
    counts = gains({2**power: speed for power, speed in enumerate(speeds)})
    chosen = enough(counts, gain)
    before = [one for one in counts[1:] if one.num_gpus <= chosen.num_gpus]
    assert all(one.gain is not None and one.gain >= gain - 1e-4 for one in before)
    after = next((one for one in counts if one.num_gpus > chosen.num_gpus), None)
    assert after is None or after.gain is None or after.gain < gain
    assert all(a.images_per_sec <= b.images_per_sec + 0.02 for a, b in pairwise(before))


@given(st.floats(1.0, 1e5), st.integers(1, 64), st.floats(0.0, 1.0))
def test_ideal_gpus_are_all_taken(one: float, largest: int, gain: float) -> None:
    counts = gains({count: count * one for count in doublings(largest)})
    assert enough(counts, gain - 1e-4).num_gpus == largest
