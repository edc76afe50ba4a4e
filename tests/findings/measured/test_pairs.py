"""Pairs: by class, with their numbers, and no claim within noise."""

from collections.abc import Mapping
from itertools import combinations, permutations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gputopo.findings import find_bandwidth
from gputopo.values.bandwidth import Bandwidth, Sample, Samples
from gputopo.values.finding import Finding
from gputopo.values.machine import Gpu, Hop, Link, Machine
from tests.findings.measured.machines import sample

Rates = Mapping[tuple[int, int], float]


def box(
    count: int, direct: Rates, staged: Rates, near: Mapping[tuple[int, int], Hop] | None = None
) -> Machine:
    samples: list[Sample] = []
    for (a, b), rate in direct.items():
        samples.append(sample("p2p_direct", f"gpu:{a}", f"gpu:{b}", rate))
    for (a, b), rate in staged.items():
        samples.append(sample("p2p_staged", f"gpu:{a}", f"gpu:{b}", rate))
    hops = near or {}
    return Machine(
        source="a test",
        gpus=tuple(Gpu(index=index, name="Unheard Of") for index in range(count)),
        links=tuple(Link(a=a, b=b, hop=hops.get((a, b), Hop.PHB)) for a, b in combinations(range(count), 2)),
        bandwidth=Bandwidth(source="live", samples=Samples(samples)),
    )


def reported(machine: Machine, id: str) -> list[Finding]:
    return [finding for finding in find_bandwidth(machine) if finding.id == id]


def all_pairs(count: int, rate: float) -> dict[tuple[int, int], float]:
    return dict.fromkeys(permutations(range(count), 2), rate)


SLOWER = "p2p.direct_slower_than_staged"


@pytest.mark.parametrize(
    ("direct", "staged", "is_reported"),
    [
        (0.73, 0.76, True),  # 7gforce, across the host bridge
        (8.96, 11.55, True),  # 7gforce-v2, 6 to 5
        (0.40, 0.41, False),  # 7gforce-v2, 3 to 0: one unit of the last printed place
        (10.19, 9.89, False),
        (353.44, 353.51, False),
    ],
)
def test_published_pairs_are_reported_by_more_than_their_noise(
    direct: float, staged: float, is_reported: bool
) -> None:
    machine = box(2, {(0, 1): direct}, {(0, 1): staged})
    assert bool(reported(machine, SLOWER)) is is_reported


def test_all_pairs_of_a_class_are_one_finding_and_each_has_its_numbers() -> None:
    near = {(0, 1): Hop.PIX, (2, 3): Hop.PIX}
    direct = all_pairs(4, 0.73) | {(0, 1): 0.70, (1, 0): 0.70}
    (pix, phb) = reported(box(4, direct, all_pairs(4, 0.77), near), SLOWER)
    assert {found.evidence["class"] for found in (pix, phb)} == {"PIX", "PHB"}
    by_class = {found.evidence["class"]: found for found in (pix, phb)}
    assert len(by_class["PHB"].evidence["pairs"]) == 8
    assert by_class["PIX"].evidence["pairs"]["0>1"] == {"direct_gb_per_s": 0.70, "staged_gb_per_s": 0.77}
    assert "4 pairs" not in by_class["PIX"].says
    assert "(PHB: each of GPUs 0-1 with each of 2-3)" in by_class["PHB"].says
    assert "(PIX: pairs 0<->1, 2<->3)" in by_class["PIX"].says


def test_a_card_on_a_narrow_link_makes_none_of_its_pairs_slow() -> None:
    staged = {pair: 0.36 if 3 in pair else 11.0 for pair in permutations(range(6), 2)}
    assert reported(box(6, {}, staged), "bandwidth.pair_slower") == []


def test_pairs_of_another_class_are_no_peers() -> None:
    near = {(0, 1): Hop.PIX, (2, 3): Hop.PIX}
    direct = {(a, b): 13.0 if (min(a, b), max(a, b)) in near else 6.5 for a, b in permutations(range(4), 2)}
    assert reported(box(4, direct, {}, near), "bandwidth.pair_slower") == []


@given(
    slow=st.sampled_from(list(combinations(range(6), 2))),
    share=st.floats(0.2, 0.85),
    cards=st.lists(st.floats(6, 12), min_size=6, max_size=6),
    noise=st.lists(st.floats(0.98, 1.0), min_size=30, max_size=30),
)
def test_whatever_the_cards_reach_the_slow_pair_is_found_and_no_other(
    slow: tuple[int, int], share: float, cards: list[float], noise: list[float]
) -> None:
    rates = {
        (a, b): min(cards[a], cards[b]) * one * (share if (min(a, b), max(a, b)) == slow else 1.0)
        for (a, b), one in zip(permutations(range(6), 2), noise, strict=True)
    }
    # Of two cards that are faster than all others only their own pair could show it, and that one is slow.
    known = min(max(rates[one, other] for other in range(6) if other not in slow) for one in slow)
    assume(share * min(cards[one] for one in slow) < 0.86 * known)
    (found,) = reported(box(6, {}, rates), "bandwidth.pair_slower")
    pairs = {tuple(sorted(map(int, pair.split(">")))) for pair in found.evidence["pairs"]}
    assert pairs == {slow}
