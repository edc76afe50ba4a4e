"""Groups that share an uplink, on simulated boxes whose layout is known, and on published matrices."""

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputopo.copies import uplink_groups
from gputopo.values.bandwidth import CopyRate, CopyRateKind
from gputopo.values.ends import End
from gputopo.values.machine import Gpu, Machine
from tests.findings.boxes import sound
from tests.kit.golden import assert_golden

Uplinks = dict[frozenset[int], float]  # the GPUs behind each, and what it carries in GB/s
X16 = 12.3

TWO_BY_FOUR: Uplinks = {frozenset(range(4)): 12.0, frozenset(range(4, 8)): 12.0}
CHIPSET: Uplinks = {frozenset((1, 2)): 3.5}
NESTED: Uplinks = {frozenset((0, 1)): 12.0, frozenset((2, 3)): 12.0, frozenset(range(4)): 16.0}
DEEP: Uplinks = {
    **{frozenset((2 * pair, 2 * pair + 1)): 12.3 for pair in range(4)},
    frozenset(range(4)): 17.0,
    frozenset(range(4, 8)): 17.0,
}
LAYOUTS: dict[str, tuple[int, Uplinks]] = {
    "two by four": (8, TWO_BY_FOUR),
    "chipset": (3, CHIPSET),
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


WHOLE_12: Uplinks = {frozenset(range(4)): 12.0}
LINK_12: Uplinks = {frozenset(range(4)): 12.3}
WIDE: Uplinks = {frozenset(range(4)): 24.6}
PAIR_12: Uplinks = {frozenset((0, 1)): 12.0}
PAIRS_AND_ALL = [*pairs(4), *whole(4)]
NARROW = {0: X16, 1: X16, 2: X16, 3: 6.4}
NARROW_BACK = dict.fromkeys(range(3), X16 * 1.06) | {3: 6.4 * 1.06}
UNEVEN = [copy_of("h2d", gpu, rate, "all") for gpu, rate in enumerate((4.4, 2.5, 2.5, 2.6))]
FORTY = [[0.765] * 5 for _ in range(5)]

CASES: dict[str, tuple[Machine, Sequence[CopyRate]]] = {
    "two halves, by all sets": (bare(8), session(8, TWO_BY_FOUR, [*left_out(8), *whole(8)])),
    # A narrow card behind a bridge makes no second group.
    "a narrow card below a bridge, pairs": (
        sound(4),
        [
            *session(4, LINK_12, PAIRS_AND_ALL, NARROW, 0.01),
            *session(4, {frozenset(range(4)): 12.3 * 1.06}, PAIRS_AND_ALL, NARROW_BACK, 0.01, 2, "d2h"),
        ],
    ),
    "a narrow card among wide ones": (
        bare(3), session(3, {frozenset(range(3)): 12.3}, [*pairs(3), *whole(3)], {0: 12.3, 1: 3.1, 2: 12.3}),
    ),
    # A card that is slowed in one direction only is of the same group, whether the tree shows it or not.
    **{
        f"a card slowed one way, {'with' if tree else 'without'} the tree": (
            sound(4) if tree else bare(4),
            [
                *session(4, WIDE, whole(4), {0: 12.3, 1: 12.3, 2: 12.3, 3: 6.1}),
                *session(4, WIDE, whole(4), {0: 12.3, 1: 12.3, 2: 12.3, 3: 9.0}, kind="d2h"),
            ],
        )
        for tree in (True, False)
    },
    "a card that was not measured one way": (
        sound(4),
        [
            *(one for one in session(4, LINK_12, [(0, 1, 2)]) if one.destination != "gpu:3"),
            *session(4, LINK_12, whole(4), kind="d2h"),
        ],
    ),
    "a narrow link of two within a wider one": (
        bare(4),
        [
            *session(4, {frozenset((0, 1)): 8.0}, PAIRS_AND_ALL),
            *session(4, NESTED, PAIRS_AND_ALL, kind="d2h"),
        ],
    ),
    # Eight cards of a published case: 44 GB/s for four of them and 25 for the others, 56 alone.
    "all at once only": (
        bare(8),
        session(
            8,
            {frozenset(range(4)): 4 * 44.0, frozenset(range(4, 8)): 4 * 25.4},
            whole(8),
            dict.fromkeys(range(8), 56.1),
            0.01,
        ),
    ),
    "only copies to the host show it": (
        bare(3),
        [
            *session(3, {}, [*pairs(3), *whole(3)]),
            *session(3, CHIPSET, [*pairs(3), *whole(3)], kind="d2h"),
        ],
    ),
    "an uneven division": (bare(4), [*session(4, WHOLE_12, pairs(4)), *UNEVEN]),
    # Copies alone, small or mixed in direction show no group.
    "alone": (bare(8), session(4, NESTED, [])),
    "small copies": (bare(8), [replace(one, bytes=4096) for one in session(4, NESTED, pairs(4))]),
    "mixed directions": (
        bare(8),
        [copy_of("h2d", 0, 12), copy_of("d2h", 1, 12), copy_of("h2d", 0, 6, "x"), copy_of("d2h", 1, 6, "x")],
    ),
    # All four cards of this box are attached to one switch.
    "a group of the tree": (sound(4), session(4, WHOLE_12, PAIRS_AND_ALL)),
    "a group that the tree does not show": (sound(4), session(4, PAIR_12, PAIRS_AND_ALL)),
    "the halves of a board, by matrices": (bare(4), matrices(AZ_ONE_WAY, AZ_BOTH)),
    # 7gforce: 1.32 over 0.765 for all pairs; and a box where no pair gains: nothing to compare with.
    "pairs that all gain": (bare(5), matrices(FORTY, [[1.73 * 0.765] * 5 for _ in range(5)])),
}  # fmt: skip


def test_groups_are_as_they_were() -> None:
    lines = list[str]()
    for name, (machine, samples) in CASES.items():
        lines.append(name)
        for group in uplink_groups(samples, machine):
            rates = f"{group.alone_gb_per_s:.2f} alone, {group.together_gb_per_s:.2f} together"
            known = f"by {group.from_kind}, slowed {'/'.join(group.slowed)}"
            lines.append(f"  {group.gpus}: {rates}, {known}; bridge {group.bridge}, agrees {group.agrees}")
    assert_golden(Path(__file__).with_name("golden") / "groups.txt", "\n".join([*lines, ""]))
