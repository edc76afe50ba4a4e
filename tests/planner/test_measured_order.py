from itertools import combinations, permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.planner import Request, plan
from gputopo.values.bandwidth import Bandwidth, Samples
from gputopo.values.machine import Machine
from gputopo.values.run.plan import Plan
from tests.invented_bandwidths import MEASURED_AT, pair
from tests.matrices import SEVEN, machine_of


def measured(matrix: str, speed: dict[tuple[int, int], float], default: float = 10.0) -> Machine:
    """Return the machine of a matrix whose pairs were all measured, directly and in both directions."""
    machine = machine_of(matrix)
    samples = tuple(
        pair(a, b, speed.get((min(a, b), max(a, b)), default))
        for a, b in permutations(range(len(machine.gpus)), 2)
    )
    return msgspec.structs.replace(
        machine, bandwidth=Bandwidth(source="live", samples=Samples(samples), measured_at=MEASURED_AT)
    )


def why(found: Plan) -> str:
    return "\n".join(found.choice.reasons)


def test_a_pair_that_is_fast_wins_over_one_that_only_looks_near() -> None:
    # One pair across the host bridge is the fastest; every PIX pair is behind a narrow riser.
    machine = measured(SEVEN, {(2, 5): 11.3}, default=0.8)
    found = plan(machine, Request(num_gpus=2))
    assert found.choice.gpus == (2, 5)
    assert "GPUs 2 and 5 (PHB): measured 11.3 GB/s, direct" in why(found)
    assert "best of 21 sets of 2 GPUs by measured bandwidth of the slowest pair" in why(found)
    assert "2026-11-18 11:06 UTC" in why(found)


def test_noise_does_not_decide_between_equal_sets_topology_does() -> None:
    wobble = {pair: 10.0 + 0.03 * number for number, pair in enumerate(combinations(range(7), 2))}
    found = plan(measured(SEVEN, wobble), Request(num_gpus=2))
    assert found.choice.gpus == (0, 1)


def test_the_slowest_pair_of_a_set_decides() -> None:
    # 0-1 is the fastest, and 2 is slow to both; 4, 5 and 6 are even.
    speed = {(0, 1): 50.0, (0, 2): 2.0, (1, 2): 2.0}
    found = plan(measured(SEVEN, speed, default=6.0), Request(num_gpus=3))
    assert found.choice.gpus == (3, 4, 5)
    assert "slowest of 3 pairs: GPUs 3 and 4 (PIX): measured 6.00 GB/s" in why(found)


def test_prefer_pix_still_means_one_switch_however_fast_others_are() -> None:
    machine = measured(SEVEN, {(2, 5): 50.0, (4, 6): 12.0}, default=5.0)
    found = plan(machine, Request(num_gpus=2, prefer_pix=True))
    assert found.choice.gpus == (4, 6)
    assert "--prefer-pix is met" in why(found)
    assert found.refused == ()


def test_where_one_pair_has_no_number_topology_decides_and_the_plan_states_which() -> None:
    machine = measured(SEVEN, {(2, 5): 50.0})
    assert machine.bandwidth is not None
    samples = tuple(s for s in machine.bandwidth.samples if (s.source, s.destination) != ("gpu:6", "gpu:3"))
    machine = msgspec.structs.replace(
        machine, bandwidth=msgspec.structs.replace(machine.bandwidth, samples=samples)
    )
    found = plan(machine, Request(num_gpus=2))
    assert found.choice.gpus == (0, 1)
    assert "was not used: no rate for both directions of GPUs 3 and 6" in why(found)
    # Without GPU 6 all pairs to choose from have one.
    assert plan(machine, Request(num_gpus=2, exclude=(6,))).choice.gpus == (2, 5)


@given(
    st.lists(st.sampled_from([0.5, 0.51, 3.0, 3.1, 12.0, 12.2, 40.0]), min_size=15, max_size=15),
    st.integers(2, 5),
)
def test_no_other_set_has_a_slowest_pair_of_a_faster_class(rates: list[float], size: int) -> None:
    six = "\n".join(" ".join("X" if a == b else "PHB" for b in range(6)) for a in range(6))
    speed = dict(zip(combinations(range(6), 2), rates, strict=True))
    chosen = plan(measured(six, speed), Request(num_gpus=size)).choice.gpus
    slowest = {gpus: min(speed[p] for p in combinations(gpus, 2)) for gpus in combinations(range(6), size)}
    assert slowest[chosen] == pytest.approx(max(slowest.values()), rel=0.05)
