"""Groups that share an uplink, on simulated boxes whose layout is known, and on published matrices."""

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo.copies import uplink_groups
from gputopo.values.bandwidth import CopyRate, CopyRateKind, UplinkGroup
from gputopo.values.ends import End
from gputopo.values.machine import Gpu, Machine
from tests.findings.boxes import sound

Uplinks = dict[frozenset[int], float]  # the GPUs behind each, and what it carries in GB/s
X16 = 12.3

TWO_BY_FOUR: Uplinks = {frozenset(range(4)): 12.0, frozenset(range(4, 8)): 12.0}
TWO_SWITCHES: Uplinks = {frozenset(range(4)): 24.0, frozenset(range(4, 8)): 24.0}
CHIPSET: Uplinks = {frozenset((1, 2)): 3.5}
NESTED: Uplinks = {frozenset((0, 1)): 12.0, frozenset((2, 3)): 12.0, frozenset(range(4)): 16.0}
DEEP: Uplinks = {
    **{frozenset((2 * pair, 2 * pair + 1)): 12.3 for pair in range(4)},
    frozenset(range(4)): 17.0,
    frozenset(range(4, 8)): 17.0,
}
LAYOUTS: dict[str, tuple[int, Uplinks]] = {
    "two by four": (8, TWO_BY_FOUR),
    "eight on two wide switches": (8, TWO_SWITCHES),
    "chipset": (3, CHIPSET),
    "nested": (4, NESTED),
    "deep": (8, DEEP),
    "nothing shared": (4, {}),
}


def filled(gpus: Iterable[int], alone: Mapping[int, float], uplinks: Uplinks) -> dict[int, float]:
    """Max-min fair shares by the tightest link first: another method than the program's."""
    links = [(group, gb_per_s) for group, gb_per_s in uplinks.items()]
    links += [(frozenset((gpu,)), alone[gpu]) for gpu in gpus]
    fixed: dict[int, float] = {}
    open_ = set(gpus)
    while open_:
        share, tightest = min(
            (
                (gb_per_s - sum(fixed.get(gpu, 0) for gpu in group)) / len(group & open_),
                sorted(group & open_),
            )
            for group, gb_per_s in links
            if group & open_
        )
        for gpu in tightest:
            fixed[gpu] = share
        open_ -= set(tightest)
    return fixed


def copy_of(kind: CopyRateKind, gpu: int, gb_per_s: float, group: str | None = None) -> CopyRate:
    source, destination = ("host", f"gpu:{gpu}") if kind == "h2d" else (f"gpu:{gpu}", "host")
    return CopyRate(
        kind=kind,
        source=End(source),
        destination=End(destination),
        bytes=1 << 28,
        pinned=True,
        group=group,
        median_gb_per_s=gb_per_s,
    )


def session(
    count: int,
    uplinks: Uplinks,
    sets: Iterable[Sequence[int]],
    alone: Mapping[int, float] | None = None,
    noise: float = 0.0,
    seed: int = 1,
    kind: CopyRateKind = "h2d",
) -> list[CopyRate]:
    chance = random.Random(seed)
    alone = alone or dict.fromkeys(range(count), X16)
    samples = []
    for gpus in [*([gpu] for gpu in range(count)), *sets]:
        group = f"{kind} gpus:{','.join(map(str, gpus))}" if len(gpus) > 1 else None
        for gpu, rate in filled(gpus, alone, uplinks).items():
            samples.append(copy_of(kind, gpu, rate * chance.uniform(1 - noise, 1 + noise), group))
    return samples


def pairs(count: int) -> list[tuple[int, ...]]:
    return list(combinations(range(count), 2))


def left_out(count: int) -> list[tuple[int, ...]]:
    return list(combinations(range(count), count - 1))


def whole(count: int) -> list[tuple[int, ...]]:
    return [tuple(range(count))]


def bare(count: int) -> Machine:
    return Machine(source="a test", gpus=tuple(Gpu(index=index) for index in range(count)))


def found(samples: Iterable[CopyRate], count: int = 8) -> set[tuple[int, ...]]:
    return {group.gpus for group in uplink_groups(samples, bare(count))}


def sets_of(uplinks: Uplinks) -> set[tuple[int, ...]]:
    return {tuple(sorted(group)) for group in uplinks}


@pytest.mark.parametrize("name", LAYOUTS)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["h2d", "d2h"]))
def test_pairs_and_the_whole_give_the_groups_of_every_layout_in_noise(
    name: str, seed: int, kind: CopyRateKind
) -> None:
    count, uplinks = LAYOUTS[name]
    sets = [*pairs(count), *left_out(count), *whole(count)]
    samples = session(count, uplinks, sets, noise=0.015, seed=seed, kind=kind)
    expected = sets_of(uplinks)
    assert found(samples) == expected


@example(cuts=[2, 4, 2], shares=[0.5, 0.3984375, 0.3433047562436799], seed=0)  # levels that nearly touch
@given(
    cuts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    shares=st.lists(st.floats(0.3, 0.8), min_size=3, max_size=3),
    seed=st.integers(0, 10**6),
)
def test_any_partition_into_switches_is_found(cuts: list[int], shares: list[float], seed: int) -> None:
    uplinks: Uplinks = {}
    start = 0
    for size, share in zip(cuts, shares, strict=False):
        if size > 1:
            uplinks[frozenset(range(start, start + size))] = share * 2 * X16
        start += size
    samples = session(start, uplinks, [*pairs(start), *whole(start)], noise=0.01, seed=seed)
    assert found(samples, start) == sets_of(uplinks)


@given(
    cuts=st.lists(st.integers(0, 7), min_size=0, max_size=6),
    widths=st.lists(st.sampled_from([1.0, 1.0, 0.5, 0.25, 0.06]), min_size=8, max_size=8),
    share=st.floats(0.3, 1.0),
    back=st.floats(0.9, 1.15),
    noise=st.floats(0.0, 0.08),
    seed=st.integers(0, 10**6),
    sets=st.sets(st.sampled_from(["pairs", "left out"])),
)
def test_groups_are_nested_or_disjoint_in_any_tree_and_noise(
    cuts: list[int],
    widths: list[float],
    share: float,
    back: float,
    noise: float,
    seed: int,
    sets: set[str],
) -> None:
    alone = {gpu: X16 * width for gpu, width in enumerate(widths)}
    uplinks: Uplinks = {}
    parts = [frozenset(range(8))]
    for cut in cuts:  # each cut parts a group of GPUs in two, down to pairs
        part = next(part for part in parts if cut in part)
        for half in (
            frozenset(gpu for gpu in part if gpu < cut),
            frozenset(gpu for gpu in part if gpu >= cut),
        ):
            if 1 < len(half) < len(part):
                uplinks[half] = share * X16 * len(half) ** 0.5
                parts = [half, *parts]
    measured = [
        *whole(8),
        *(pairs(8) if "pairs" in sets else []),
        *(left_out(8) if "left out" in sets else []),
    ]
    samples = session(8, uplinks, measured, alone, noise, seed)
    other = {gpu: rate * back for gpu, rate in alone.items()}
    samples += session(8, uplinks, measured, other, noise, seed + 1, kind="d2h")
    groups = [set(group.gpus) for group in uplink_groups(samples, bare(8))]
    for one, other_group in combinations(groups, 2):
        assert one != other_group
        assert not one & other_group or one < other_group or other_group < one


@pytest.mark.parametrize(
    ("uplink", "narrow", "tree", "sets"),
    [(12.3, 6.4, True, "pairs"), (24.6, 3.2, False, "pairs"), (24.6, 6.4, True, "left out")],
)
def test_one_narrow_card_behind_a_bridge_makes_no_second_group(
    uplink: float, narrow: float, tree: bool, sets: str
) -> None:
    alone, back = dict.fromkeys(range(4), X16), dict.fromkeys(range(4), X16 * 1.06)
    alone[3], back[3] = narrow, narrow * 1.06
    measured = [*whole(4), *(pairs(4) if sets == "pairs" else left_out(4))]
    link: Uplinks = {frozenset(range(4)): uplink}
    samples = session(4, link, measured, alone, 0.01)
    samples += session(4, {frozenset(range(4)): uplink * 1.06}, measured, back, 0.01, 2, kind="d2h")
    groups = uplink_groups(samples, sound(4) if tree else bare(4))
    assert len(groups) == 1
    assert {0, 1, 2} <= set(groups[0].gpus)
    assert groups[0].slowed == ("h2d", "d2h")


@pytest.mark.parametrize("tree", [True, False])
def test_a_card_that_is_slowed_in_one_direction_only_is_of_the_same_group(tree: bool) -> None:
    measured = whole(4)
    alone = {0: 12.3, 1: 12.3, 2: 12.3, 3: 6.1}
    samples = session(4, {frozenset(range(4)): 24.6}, measured, alone)  # GPU 3 is not slowed
    samples += session(4, {frozenset(range(4)): 24.6}, measured, alone | {3: 9.0}, kind="d2h")
    (group,) = uplink_groups(samples, sound(4) if tree else bare(4))
    assert (group.gpus, group.slowed) == ((0, 1, 2, 3), ("h2d", "d2h"))
    assert group.alone_gb_per_s == pytest.approx(43.0)
    assert group.together_gb_per_s == pytest.approx(24.6)


def test_a_card_that_could_not_be_measured_in_one_direction_takes_no_number_away() -> None:
    link: Uplinks = {frozenset(range(4)): 12.3}
    three = [one for one in session(4, link, [(0, 1, 2)]) if one.destination != "gpu:3"]
    (group,) = uplink_groups([*three, *session(4, link, whole(4), kind="d2h")], sound(4))
    assert (group.gpus, group.from_kind, group.slowed) == ((0, 1, 2, 3), "d2h", ("h2d", "d2h"))
    assert group.together_gb_per_s == pytest.approx(12.3)
    assert group.agrees is True


def test_a_narrow_link_of_two_within_a_wider_one_of_four_stays_a_group() -> None:
    sets = [*pairs(4), *whole(4)]
    samples = [*session(4, {frozenset((0, 1)): 8.0}, sets), *session(4, NESTED, sets, kind="d2h")]
    groups = uplink_groups(samples, bare(4))
    assert [group.gpus for group in groups] == [(0, 1), (2, 3), (0, 1, 2, 3)]
    assert [group.slowed for group in groups] == [("h2d", "d2h"), ("d2h",), ("d2h",)]


def test_a_group_has_the_sums_of_alone_and_together() -> None:
    samples = session(8, TWO_BY_FOUR, [*left_out(8), *whole(8)])
    first, second = uplink_groups(samples, bare(8))
    assert (first.gpus, first.from_kind) == ((0, 1, 2, 3), "h2d")
    assert first.alone_gb_per_s == pytest.approx(4 * 12.0)  # alone, the uplink is the limit as well
    assert first.together_gb_per_s == pytest.approx(12.0)
    assert second.gpus == (4, 5, 6, 7)


def test_all_at_once_alone_separates_groups_by_what_they_leave() -> None:
    # Eight cards of a published case: 44 GB/s for four of them and 25 for the others, 56 alone.
    uplinks: Uplinks = {frozenset(range(4)): 4 * 44.0, frozenset(range(4, 8)): 4 * 25.4}
    samples = session(8, uplinks, whole(8), alone=dict.fromkeys(range(8), 56.1), noise=0.01)
    assert found(samples) == {(0, 1, 2, 3), (4, 5, 6, 7)}


def test_a_narrow_card_and_wide_ones_behind_one_uplink_are_one_group() -> None:
    alone = {0: 12.3, 1: 3.1, 2: 12.3}
    samples = session(3, {frozenset((0, 1, 2)): 12.3}, [*pairs(3), *whole(3)], alone=alone)
    assert found(samples) == {(0, 1, 2)}


def test_a_group_that_only_copies_to_the_host_show_is_found() -> None:
    sets = [*pairs(3), *whole(3)]
    samples = [*session(3, {}, sets), *session(3, CHIPSET, sets, kind="d2h")]
    (group,) = uplink_groups(samples, bare(3))
    assert (group.gpus, group.from_kind, group.slowed) == ((1, 2), "d2h", ("d2h",))


def test_an_uneven_division_within_a_group_is_no_smaller_group() -> None:
    samples = session(4, {frozenset(range(4)): 12.0}, pairs(4))
    samples += [copy_of("h2d", gpu, rate, "all") for gpu, rate in enumerate((4.4, 2.5, 2.5, 2.6))]
    assert found(samples) == {(0, 1, 2, 3)}


def test_copies_alone_small_or_mixed_in_direction_show_no_group() -> None:
    assert found(session(4, NESTED, [])) == set()
    small = [replace(one, bytes=4096) for one in session(4, NESTED, pairs(4))]
    assert found(small) == set()
    mixed = [
        copy_of("h2d", 0, 12),
        copy_of("d2h", 1, 12),
        copy_of("h2d", 0, 6, "x"),
        copy_of("d2h", 1, 6, "x"),
    ]
    assert found(mixed) == set()


def with_tree(count: int, samples: Iterable[CopyRate]) -> UplinkGroup:
    (group,) = uplink_groups(samples, sound(count))
    return group


def test_a_group_is_compared_with_the_pci_tree() -> None:
    # All four cards of this box are attached to one switch.
    group = with_tree(4, session(4, {frozenset(range(4)): 12.0}, [*pairs(4), *whole(4)]))
    assert (group.bridge, group.agrees) == ("0000:03:00.0", True)


def test_a_group_that_the_tree_does_not_show_is_reported_as_such() -> None:
    group = with_tree(4, session(4, {frozenset((0, 1)): 12.0}, [*pairs(4), *whole(4)]))
    assert (group.gpus, group.agrees) == ((0, 1), False)


# az-4x-m60 (rossumai/keras-multi-gpu): P2P is refused, so all copies are staged.
AZ_ONE_WAY = [[0, 5.86, 5.28, 5.86], [5.86, 0, 5.86, 5.30], [5.29, 5.86, 0, 5.87], [5.87, 5.30, 5.87, 0]]
AZ_BOTH = [[0, 10.40, 5.47, 10.23], [10.44, 0, 10.30, 5.47], [5.47, 10.50, 0, 10.26], [10.17, 5.47, 10.28, 0]]


def matrices(one_way: list[list[float]], both: list[list[float]]) -> list[CopyRate]:
    samples = []
    for a in range(len(one_way)):
        for b in range(len(one_way)):
            if a != b:
                place = {"source": End.of_gpus(a), "destination": End.of_gpus(b)}
                samples.append(CopyRate(kind="p2p_staged", median_gb_per_s=one_way[a][b], **place))  # type: ignore[arg-type]
                samples.append(
                    CopyRate(kind="bidirectional", path="staged", median_gb_per_s=both[a][b], **place)  # type: ignore[arg-type]
                )
    return samples


def test_the_two_halves_of_a_board_are_found_from_matrices_alone() -> None:
    first, second = uplink_groups(matrices(AZ_ONE_WAY, AZ_BOTH), bare(4))
    assert (first.gpus, second.gpus) == ((0, 2), (1, 3))
    assert first.from_kind == "bidirectional"
    assert first.alone_gb_per_s == pytest.approx(2 * 5.285)
    assert first.together_gb_per_s == pytest.approx(5.47)


def test_matrices_whose_pairs_all_gain_alike_show_no_group() -> None:
    # 7gforce: 1.32 over 0.765 for all pairs; and a box where no pair gains: nothing to compare with.
    for gain in (1.73, 1.0):
        one_way = [[0.765] * 5 for _ in range(5)]
        both = [[gain * 0.765] * 5 for _ in range(5)]
        assert uplink_groups(matrices(one_way, both), bare(5)) == ()


def test_a_gpu_that_was_not_measured_is_not_compared_with_the_tree() -> None:
    # GPUs 2 and 3 are behind the bridge as well, and could not be copied to.
    group = with_tree(4, session(2, {frozenset((0, 1)): 12.0}, pairs(2)))
    assert (group.gpus, group.bridge, group.agrees) == ((0, 1), "0000:03:00.0", True)
