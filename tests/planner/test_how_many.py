"""How many GPUs a job uses, and how its batch is divided among GPUs of different speeds."""

import random
import re
from collections.abc import Sequence
from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo import captures
from gputopo.planner import Request, how_many_of_hosts, plan
from gputopo.values.bandwidth import Bandwidth, CopyRate, CopyRateKind, Samples
from gputopo.values.ends import End
from gputopo.values.errors import UsageError
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.plan import CLEARLY_FASTER, Candidate, HowMany, Plan, Unequal
from tests import there
from tests.matrices import SEVEN, machine_of


def measured(gb_per_s: float) -> Machine:
    """Return the machine of seven, whose GPUs copy to and from the host at a rate."""
    machine = machine_of(SEVEN)
    samples = []
    for place in (f"gpu:{gpu.index}" for gpu in machine.gpus):
        down = CopyRate(
            kind="h2d", source=End("host"), destination=End(place), pinned=True, median_gb_per_s=gb_per_s
        )
        up = CopyRate(
            kind="d2h", source=End(place), destination=End("host"), pinned=True, median_gb_per_s=gb_per_s
        )
        samples += [down, up]
    bandwidth = Bandwidth(source="a test", samples=Samples(samples))
    gpus = tuple(Gpu(index=gpu.index, name="GeForce GTX 1070") for gpu in machine.gpus)
    return replace(machine, bandwidth=bandwidth, gpus=gpus)


def settled(machine: Machine, request: Request) -> HowMany:
    found = plan(machine, request)
    assert found.how_many is not None
    assert len(found.choice.gpus) == found.how_many.num_gpus
    return found.how_many


SMALL = Request(model="resnet50", batch_size=64, single_gpu_images_per_sec=(100.0,), num_gpus="auto")
LARGE = Request(model="vgg16", batch_size=8, single_gpu_images_per_sec=(100.0,), num_gpus="auto")


@pytest.mark.parametrize(
    ("machine", "request_", "counts", "number", "reason"),
    [
        # Each step brings its worth.
        (measured(12.0), SMALL, [1, 2, 4, 7], 7, "of the ideal speedup, the last step"),
        (measured(0.2), LARGE, [1, 2, 4, 7], 1, "2 are slower: "),
        (measured(12.0), replace(SMALL, exclude=(0, 1, 2, 3)), [1, 2, 3], 3, "they reach"),
        (
            machine_of(SEVEN),
            Request(model="resnet50", num_gpus="auto"),
            [],
            7,
            "the model of GPU 0 is unknown: --single-gpu-images-per-sec",
        ),
    ],
)
def test_as_many_gpus_are_taken_as_bring_their_worth(
    machine: Machine, request_: Request, counts: list[int], number: int, reason: str
) -> None:
    found = settled(machine, request_)
    assert [one.num_gpus for one in found.counts] == counts
    assert (found.num_gpus, found.gain) == (number, 0.5)
    assert reason in found.reason


def test_the_batch_from_which_a_second_gpu_pays_is_named() -> None:
    """A longer step hides more of the same exchange."""
    slow, fast = (settled(measured(rate), LARGE).reason for rate in (0.2, 12.0))
    batches = [
        int(there(re.search(r"a second GPU helps from batch ([0-9]+) per GPU", one))[1])
        for one in (slow, fast)
    ]
    assert batches[0] > 8
    assert batches[1] < batches[0]
    paying = settled(measured(0.2), replace(LARGE, batch_size=batches[0]))
    assert paying.counts[1].gain is not None
    assert paying.counts[1].gain >= 0.5


def test_a_larger_number_that_is_clearly_faster_is_named() -> None:
    """The fastest GPU of this box waits for any other; seven bring much."""
    found = there(plan(captures.load(["7gforce"]), Request(model="alexnet", num_gpus="auto")).how_many)
    chosen = next(one for one in found.counts if one.num_gpus == found.num_gpus)
    best = found.counts[-1]
    assert (found.num_gpus, best.num_gpus) == (1, 7)
    times = best.images_per_sec / chosen.images_per_sec
    assert f"; 7 are {times:.2f} times as fast: --num-gpus 7" in found.reason


def of_speeds(speeds: Sequence[float], gain: float | None = None) -> HowMany:
    """Return how many GPUs are used if 1, 2, 4, ... have these images/sec."""
    request = Request(num_gpus="auto", gain=gain)
    by_count = {2**power: speed for power, speed in enumerate(speeds)}
    return how_many_of_hosts(
        max(by_count), request, lambda count: Candidate(gpus=(), images_per_sec=by_count[count])
    )


@given(st.lists(st.floats(1.0, 1e5), min_size=1, max_size=6), st.floats(0.0, 1.0))
def test_more_gpus_are_chosen_only_where_the_gain_holds(speeds: list[float], gain: float) -> None:
    found = of_speeds(speeds, gain)
    chosen = next(one for one in found.counts if one.num_gpus == found.num_gpus)
    assert chosen.gain is None or chosen.gain >= gain - 1e-4
    assert chosen.speedup >= 1 + gain * (chosen.num_gpus - 1) - 0.01
    after = next((one for one in found.counts if one.num_gpus > chosen.num_gpus), None)
    assert after is None or after.gain is None or after.gain < gain + 1e-4


@pytest.mark.parametrize(
    ("speeds", "number"),
    [
        ((100, 146, 256, 500), 8),  # what two GPUs lose the others do not lose again
        ((100, 131, 217, 400), 1),  # 43 % of their worth
        ((100, 190, 380, 450), 4),  # 50 % of their worth, the last four GPUs 18 %
        ((100, 190, 380, 390), 4),  # too little to tell
        ((100, 90, 320, 310), 4),
    ],
)
def test_gpus_are_worth_it_by_their_last_doubling_and_all_together(
    speeds: tuple[int, ...], number: int
) -> None:
    found = of_speeds(speeds)
    assert found.num_gpus == number
    assert ("reach 57% of the ideal speedup, the last step 95%" in found.reason) == (number == 8)
    assert (": --num-gpus" in found.reason) == (speeds[-1] in (400, 450))


ONE_FASTER = (100.0, 100.0, 100.0, 100.0, 100.0, 100.0, 150.0)
REQUEST = Request(model="resnet50", batch_size=64, single_gpu_images_per_sec=ONE_FASTER)


def planned(**changes: Any) -> Plan:
    return plan(machine_of(SEVEN), replace(REQUEST, **changes))


def test_a_step_lasts_as_long_as_the_gpu_that_needs_longest_for_its_own_batch() -> None:
    found = planned(gpus=(0, 1, 6), single_gpu_images_per_sec=(100.0, 100.0, 150.0), batch_size=(64, 32, 120))
    # 64 / 100, 32 / 100 and 120 / 150 seconds
    assert found.choice.compute_ms == pytest.approx(800)
    assert found.choice.batch_sizes == (64, 32, 120)
    assert found.choice.images_per_sec == pytest.approx(216 / (found.choice.step_ms or 0) * 1e3, rel=1e-4)
    assert there(found.prediction).batch_size == 72  # their mean


@pytest.mark.parametrize(
    ("speeds", "changes", "gpus", "batches", "reason"),
    [
        # Each GPU has what it computes in the same time: 448 x 1 / 7.5 = 59.73, and 448 x 1.5 / 7.5 = 89.6.
        (
            ONE_FASTER,
            {},
            tuple(range(7)),
            (60, 60, 60, 60, 60, 59, 89),
            "batches 60,60,60,60,60,59,89: in proportion to the speed of each GPU alone; "
            "448 examples together, as with equal batches",
        ),
        # A faster GPU is taken, for which equal batches have no use.
        ((100.0,) * 5 + (150.0, 150.0), {"num_gpus": 2}, (5, 6), (), "because the GPUs have the same speed"),
        ((), {}, tuple(range(7)), (), "equal batches, because no speed of one GPU is known"),
        # GPUs within the noise of two runs have equal batches.
        ((100.0, 98.0), {"gpus": (0, 1)}, (0, 1), (), "because the GPUs have the same speed"),
    ],
)
def test_auto_divides_the_batch_of_the_model_by_the_speeds_of_the_gpus(
    speeds: tuple[float, ...],
    changes: dict[str, Any],
    gpus: tuple[int, ...],
    batches: tuple[int, ...],
    reason: str,
) -> None:
    found = planned(batch_size="auto", single_gpu_images_per_sec=speeds, **changes)
    assert (found.choice.gpus, found.choice.batch_sizes) == (gpus, batches)
    assert any(reason in one for one in found.choice.reasons)
    assert {sum(one.batch_sizes) for one in found.candidates} <= {0, 64 * len(gpus)}


def crowded(seed: int) -> tuple[Machine, tuple[float, ...]]:
    """Return five GPUs with links and speeds that differ, all measured."""
    rng = random.Random(seed)
    places = [f"gpu:{index}" for index in range(5)]
    ends: dict[CopyRateKind, list[tuple[str, str]]] = {
        "p2p_direct": list(permutations(places, 2)),
        "h2d": [("host", place) for place in places],
        "d2h": [(place, "host") for place in places],
    }
    samples = [
        CopyRate(
            kind=kind,
            source=End(a),
            destination=End(b),
            pinned=True,
            median_gb_per_s=rng.choice([0.8, 3.0, 11.0]),
        )
        for kind, pairs in ends.items()
        for a, b in pairs
    ]
    bare = machine_of(SEVEN)
    links = tuple(link for link in bare.links if link.b < len(places))
    bandwidth = Bandwidth(source="a test", samples=Samples(samples))
    machine = replace(bare, gpus=bare.gpus[: len(places)], links=links, bandwidth=bandwidth)
    return machine, tuple(rng.choice([50.0, 100.0, 150.0, 200.0]) for _ in places)


def test_no_set_tried_by_itself_is_clearly_faster_than_what_auto_chooses() -> None:
    machine, speeds = crowded(0)
    request = Request(model="vgg16", batch_size="auto", single_gpu_images_per_sec=speeds)
    found = plan(machine, replace(request, num_gpus=3)).choice
    each = [
        plan(
            machine,
            replace(request, gpus=gpus, single_gpu_images_per_sec=tuple(speeds[gpu] for gpu in gpus)),
        ).choice
        for gpus in combinations(range(5), 3)
    ]
    assert (found.images_per_sec or 0.0) * CLEARLY_FASTER >= max(one.images_per_sec or 0.0 for one in each)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"batch_size": (64, 64)}, "--batch-size has 2 numbers for 7 GPUs"),
        ({"batch_size": (64, 0), "num_gpus": 2}, "--batch-size cannot be 0"),
        ({"batch_size": (64, 80), "num_gpus": "auto"}, "cannot be combined with --num-gpus auto"),
    ],
)
def test_a_list_that_does_not_have_one_number_for_each_gpu_is_refused(
    changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError) as refused:
        planned(**changes)
    assert what in refused.value.what


@pytest.mark.parametrize("ps", ["cpu", "gpu:spread", "gpu:3"])
def test_batches_in_proportion_make_no_plan_slower(ps: str) -> None:
    speeds, batch = (9.0, 31.0, 14.0, 30.0, 90.0, 45.0, 20.0), 3
    given: dict[str, Any] = {"single_gpu_images_per_sec": speeds, "ps": ps}
    found = there(planned(batch_size=batch, **given).unequal)
    assert found.in_proportion.images_per_sec >= found.together.images_per_sec
    own = planned(batch_size=found.in_proportion.batch_sizes, **given).choice
    assert (own.compute_ms or 0) * (1 + 1e-6) >= 1e3 * 7 * batch / sum(speeds), "all of them compute at most"


UNEQUAL = Request(model="resnet50", batch_size=64)


def compared(*speeds: float, request: Request = UNEQUAL) -> Unequal | None:
    given_speeds = replace(request, single_gpu_images_per_sec=speeds)
    return plan(machine_of(SEVEN), given_speeds).unequal


def test_batches_in_proportion_use_what_a_faster_gpu_can_do() -> None:
    found = there(compared(*ONE_FASTER))
    assert found.in_proportion.batch_sizes == (60, 60, 60, 60, 60, 59, 89)
    assert found.better == found.in_proportion
    assert found.use == "--batch-size 60,60,60,60,60,59,89"
    assert found.in_proportion.images_per_sec > 1.02 * found.together.images_per_sec


def test_the_equal_ones_alone_are_named_where_a_slow_one_costs_more_than_it_brings() -> None:
    # Of a model of many bytes a seventh GPU moves as many as any other, and computes next to nothing.
    request = Request(model="vgg16", batch_size=8)
    found = there(compared(100.0, 100.0, 1.0, 100.0, 100.0, 100.0, 100.0, request=request))
    assert found.better == found.alone[0]
    assert found.use == "--gpus 0,1,3,4,5,6"
