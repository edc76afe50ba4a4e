"""Which GPUs share an uplink, found by comparing single copies with copies at the same time.

If pairs were measured, a pair that slows down shares a link. Pairs with lower rates are nearer to each other,
so groups may be within groups. If all GPUs except one were measured, the GPUs that get faster shared a link
with it. A slowdown with all GPUs at once that known groups do not explain is a wider group. If only copies
between GPUs are known, a pair shares its path to the host if it is not faster in both directions at once than
in one, while other pairs of the same GPUs are.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import median

import msgspec
from msgspec.structs import replace

from gputopo.topology import bridges_above
from gputopo.values.bandwidth import HOST_KINDS, CopyRate, HostKind, Kind, UplinkGroup
from gputopo.values.grouping import grouped, maxima
from gputopo.values.machine import Machine
from gputopo.values.rates import host_link_rates, pair_copies

# Two runs of one copy differ by 1 to 2 %, and copies that overlap imperfectly by a little more. Sharing costs
# a seventh even among eight GPUs. Not measured; chosen between these.
CHANGED_SHARE = 0.06
# An outer group must carry at least this much more than a group within it; otherwise they are one group. Not
# measured.
LEVEL_SHARE = 0.15
# With more GPUs, pairs are copied to for one GPU after the other: the first pairs answer for others. Not
# measured; chosen because eight GPUs have 28 pairs, which a quick session has time for.
_MANY_GPUS = 8
# Both directions over one direction: 1.0 for two halves of one board (az-4x-m60: 1.04), 1.6 to 2.0 for all
# other pairs of the published machines. A pair shares a path if it reaches less than this share of the other
# pairs' ratio.
BIDIRECTIONAL_SHARE = 0.75

Gpus = frozenset[int]


def uplink_groups(samples: Iterable[CopyRate], machine: Machine) -> tuple[UplinkGroup, ...]:
    """Find the groups of GPUs that slow one another down, smaller groups first, each group once.

    Any two groups are disjoint, or one is within the other, because PCI is a tree. If copies to and from the
    host show the same group, it has the rates of h2d. Empty if nothing was copied at the same time, or
    nothing slowed down.
    """
    samples = tuple(samples)
    directions = [_Direction.of(samples, kind, machine) for kind in HOST_KINDS]
    groups = [
        _uplink(gpus, [direction for direction in directions if direction.kind in kinds], machine)
        for gpus, kinds in _laminar(directions, machine).items()
    ]
    if not any(direction.together for direction in directions):
        groups += [_with_tree(group, machine, _paths(machine)) for group in _slow_bidirectional(samples)]
    return tuple(sorted(groups, key=lambda group: (len(group.gpus), group.gpus)))


def next_sets(
    samples: Sequence[CopyRate], tried: Collection[tuple[Kind, tuple[int, ...]]]
) -> list[tuple[HostKind, tuple[int, ...]]]:
    """Return the GPUs to copy to, or from, at once, to find the groups that share an uplink.

    If GPUs are slower with all at once than by themselves, these are the pairs of them. If the pairs do not
    explain the whole slowdown (two GPUs cannot fill the uplink), these are all GPUs except one, for each GPU
    that is slower than explained. `tried`: sets that are not returned again.
    """
    wanted: list[tuple[HostKind, tuple[int, ...]]] = []
    for kind in HOST_KINDS:
        alone, at_once = _first_rates(samples, kind), rates_at_once(samples, kind)
        whole = max(at_once.values(), key=len, default={})
        slowed = _slower(whole, alone)
        if len(slowed) < 2 or len(whole) < 3:
            continue
        new: list[tuple[int, ...]] = []
        new += [pair for pair in _unknown_pairs(slowed, alone, at_once) if (kind, pair) not in tried]
        if not new:
            pairs = {gpus: rates for gpus, rates in at_once.items() if len(gpus) == 2}
            foreseen = fair_rates({gpu: alone[gpu] for gpu in whole if gpu in alone}, shared(alone, pairs))
            unexplained = _slower(whole, foreseen)
            if len(unexplained) > 1 and len(whole) > 3:
                smaller = [tuple(gpu for gpu in whole if gpu != out) for out in unexplained]
                new += [gpus for gpus in smaller if (kind, gpus) not in tried]
        wanted += [(kind, gpus) for gpus in new]
    return wanted


def _first_rates(samples: Iterable[CopyRate], kind: Kind) -> dict[int, float]:
    """Return GB/s by GPU, from the first single pinned copy: with near memory, before a sweep of sizes."""
    rates: dict[int, float] = {}
    for sample in samples:
        gpu = sample.host_gpu
        if gpu is not None and (sample.kind, sample.group, sample.pinned) == (kind, None, True):
            rates.setdefault(gpu, sample.rate)
    return rates


def _unknown_pairs(
    slowed: Sequence[int], alone: Mapping[int, float], at_once: Mapping[Gpus, Mapping[int, float]]
) -> list[tuple[int, int]]:
    """Return the pairs to copy to at once. With many GPUs, the pairs of one GPU, then of the next.

    GPUs are the leaves of a tree. If `a` shares an uplink with `c`, `b` shares none with `c`, and `c` is as
    fast as `a`, then `a` and `b` share none: any uplink of both would also be above `c`.
    """
    every = [*combinations(slowed, 2)]
    if len(slowed) <= _MANY_GPUS:
        return every
    known = {
        pair: sum(rates.values()) < (1 - CHANGED_SHARE) * sum(alone[gpu] for gpu in pair)
        for pair, rates in at_once.items()
        if len(pair) == 2 and pair <= set(slowed)
    }

    def is_apart(a: int, b: int) -> bool:
        return any(
            known.get(frozenset((a, c))) is True
            and known.get(frozenset((b, c))) is False
            and alone[c] >= (1 - CHANGED_SHARE) * alone[a]
            for c in slowed
        )

    left = [
        (a, b)
        for a, b in every
        if frozenset((a, b)) not in known and not is_apart(a, b) and not is_apart(b, a)
    ]
    return [pair for pair in left if pair[0] == left[0][0]]


def _slower(now: Mapping[int, float], before: Mapping[int, float]) -> list[int]:
    return [gpu for gpu, rate in now.items() if gpu in before and rate < (1 - CHANGED_SHARE) * before[gpu]]


def shared(alone: Mapping[int, float], together: Mapping[Gpus, Mapping[int, float]]) -> dict[Gpus, float]:
    """Find the groups from single rates and the rates of each set of GPUs that copied at once (GB/s).

    Returns the total rate of each group.
    """
    groups = _by_pairs(alone, together)
    for gpus, measured in sorted(together.items(), key=lambda item: (len(item[0]), sorted(item[0]))):
        if len(gpus) < 3:
            continue
        foreseen = fair_rates({gpu: alone[gpu] for gpu in gpus if gpu in alone}, groups)
        if any(len(other) == len(gpus) + 1 and gpus < other for other in together):
            continue  # a larger set without one GPU: used below, with the groups of the whole
        limited = _limited(foreseen, measured, groups)
        for members in _limited_together(limited, gpus, together):
            groups[members] = sum(measured[gpu] for gpu in members)
    return groups


def carries(gpus: Gpus, together: Mapping[Gpus, Mapping[int, float]]) -> float | None:
    """Return the total rate of GPUs in the smallest set that copied at once and contains all of them."""
    wider = [measured for members, measured in together.items() if gpus <= members]
    return None if not wider else sum(min(wider, key=len)[gpu] for gpu in gpus)


def fair_rates(alone: Mapping[int, float], groups: Mapping[Gpus, float]) -> dict[int, float]:
    """Return the rate of each GPU if all copy at once: max-min fair over the groups' uplinks.

    All rates rise together. A GPU stops at its own rate, or if one of its uplinks is full (progressive
    filling: Bertsekas and Gallager, Data Networks, section 6.5.2).
    """
    rising, given = set(alone), dict.fromkeys(alone, 0.0)
    while rising:
        steps = [alone[gpu] - given[gpu] for gpu in rising]
        used = {gpus: sum(given[gpu] for gpu in gpus if gpu in given) for gpus in groups}
        for gpus, limit in groups.items():
            if among := gpus & rising:
                steps.append(max(0.0, limit - used[gpus]) / len(among))
        step = min(steps)
        for gpu in rising:
            given[gpu] += step
        full = [
            gpus
            for gpus, limit in groups.items()
            if sum(given[gpu] for gpu in gpus if gpu in given) >= limit * (1 - 1e-9)
        ]
        rising = {
            gpu
            for gpu in rising
            if given[gpu] < alone[gpu] * (1 - 1e-9) and not any(gpu in gpus for gpus in full)
        }
    return given


def rates_at_once(samples: Iterable[CopyRate], kind: Kind) -> dict[Gpus, dict[int, float]]:
    """Return the rates of each set of GPUs that copied at once, all of them only in this direction."""
    by_group = grouped((group, sample) for sample in samples if (group := sample.one_way_group) is not None)
    rates: dict[Gpus, dict[int, float]] = {}
    for members in by_group.values():
        measured = maxima(
            (gpu, sample.rate)
            for sample in members
            if (gpu := sample.host_gpu) is not None
            and (sample.is_large and sample.pinned is not False and sample.is_by_copy_engine)
        )
        if len(measured) > 1 and all(sample.kind == kind for sample in members):
            rates[frozenset(measured)] = measured
    return rates


def _by_pairs(alone: Mapping[int, float], together: Mapping[Gpus, Mapping[int, float]]) -> dict[Gpus, float]:
    """Join the pairs that slow each other down, the slowest first: inner groups, then wider groups."""
    totals = {
        pair: sum(measured.values())
        for pair, measured in together.items()
        if len(pair) == 2 and _slowed(measured, alone)
    }
    parts: list[Gpus] = []
    groups: dict[Gpus, float] = {}
    left = sorted(totals, key=lambda pair: (totals[pair], sorted(pair)))
    while left:
        level = totals[left[0]] * (1 + LEVEL_SHARE)
        now = [pair for pair in left if totals[pair] <= level]
        left = left[len(now) :]
        joined = _components([*parts, *now])
        for part in joined:
            within = [totals[pair] for pair in now if pair <= part]
            if part not in parts and within:
                groups[part] = median(within)
        parts = joined
    # At the end of a level, noise may have separated some pairs of a group: they are not a group within it.
    return {
        gpus: total
        for gpus, total in groups.items()
        if not any(gpus < outer and groups[outer] <= total * (1 + LEVEL_SHARE) for outer in groups)
    }


def _slowed(measured: Mapping[int, float], alone: Mapping[int, float]) -> bool:
    if any(gpu not in alone for gpu in measured):
        return False
    return sum(measured.values()) < (1 - CHANGED_SHARE) * sum(alone[gpu] for gpu in measured)


def _limited(
    foreseen: Mapping[int, float], measured: Mapping[int, float], groups: Mapping[Gpus, float]
) -> Gpus:
    """Return the GPUs that are slower than predicted.

    Excludes GPUs in a group that reaches its total rate, but divides it unevenly.
    """
    slow = frozenset(gpu for gpu in foreseen if measured[gpu] < (1 - CHANGED_SHARE) * foreseen[gpu])
    for group in groups:
        members = group & foreseen.keys()
        expected = sum(foreseen[gpu] for gpu in members)
        if sum(measured[gpu] for gpu in members) >= (1 - CHANGED_SHARE) * expected:
            slow -= members
    return slow


def _limited_together(limited: Gpus, gpus: Gpus, together: Mapping[Gpus, Mapping[int, float]]) -> list[Gpus]:
    """Split the GPUs that are slower than predicted into groups that share one uplink."""
    if len(limited) < 2:
        return []
    whole = together[gpus]
    left_out = [gpu for gpu in limited if gpus - {gpu} in together]
    if left_out:
        edges = [
            frozenset((gone, gpu))
            for gone in left_out
            for gpu in limited - {gone}
            if together[gpus - {gone}][gpu] > (1 + CHANGED_SHARE) * whole[gpu]
        ]
        return _components(edges)
    # A full uplink gives all its GPUs the same rate, so different rates mean different uplinks.
    runs: list[list[int]] = []
    for gpu in sorted(limited, key=whole.__getitem__):
        if runs and whole[gpu] <= (1 + LEVEL_SHARE) * whole[runs[-1][0]]:
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return [frozenset(run) for run in runs if len(run) > 1]


def _components(sets: Iterable[Gpus]) -> list[Gpus]:
    joined: list[Gpus] = []
    for gpus in sets:
        touching = [part for part in joined if part & gpus]
        joined = [part for part in joined if not part & gpus] + [gpus.union(*touching)]
    return joined


def _slow_bidirectional(samples: Sequence[CopyRate]) -> Iterator[UplinkGroup]:
    """Yield the pairs that gain too little from both directions at once."""
    alone, at_once = (
        grouped(((min(pair), max(pair)), copy.rate) for pair, copy in copies.items())
        for copies in (pair_copies(samples, "p2p_staged"), pair_copies(samples, "bidirectional", "staged"))
    )
    gains = {pair: median(at_once[pair]) / median(alone[pair]) for pair in sorted(alone) if pair in at_once}
    for pair, gain in gains.items():
        others = [other for known, other in gains.items() if known != pair and {*known} & {*pair}]
        if others and gain < BIDIRECTIONAL_SHARE * median(others):
            yield UplinkGroup(
                gpus=pair,
                from_kind="bidirectional",
                alone_gb_per_s=2 * median(alone[pair]),
                together_gb_per_s=median(at_once[pair]),
                slowed=("bidirectional",),
            )


class _Direction(msgspec.Struct, frozen=True):
    """Copies to or from the host: GB/s of each GPU by itself and of each set at once, and their groups."""

    kind: Kind
    alone: Mapping[int, float]
    together: Mapping[Gpus, Mapping[int, float]]
    groups: Mapping[Gpus, float]

    @classmethod
    def of(cls, samples: Sequence[CopyRate], kind: Kind, machine: Machine) -> "_Direction":
        alone, together = host_link_rates(samples, kind, machine), rates_at_once(samples, kind)
        return cls(kind, alone, together, shared(alone, together))

    def carries(self, gpus: Gpus) -> float | None:
        """Return the total rate of these GPUs in this direction, or None if it was not measured."""
        return self.groups.get(gpus) or carries(gpus, self.together)


def _laminar(directions: Sequence[_Direction], machine: Machine) -> dict[Gpus, set[Kind]]:
    """Return the groups of both directions, with the directions that show each group.

    The directions share one tree. Groups that overlap are one group. So are a group and a group within it if
    each is seen in only one direction and the link is the same.
    """
    kinds_of: dict[Gpus, set[Kind]] = {}
    for direction in directions:
        for gpus in direction.groups:
            kinds_of.setdefault(gpus, set()).add(direction.kind)
    while same := next(
        (pair for pair in combinations(kinds_of, 2) if _is_one_link(pair, kinds_of, directions, machine)),
        None,
    ):
        kinds = kinds_of.pop(same[0]) | kinds_of.pop(same[1])
        kinds_of.setdefault(same[0] | same[1], set()).update(kinds)
    return kinds_of


def _is_one_link(
    pair: tuple[Gpus, Gpus],
    kinds_of: Mapping[Gpus, set[Kind]],
    directions: Sequence[_Direction],
    machine: Machine,
) -> bool:
    inner, outer = sorted(pair, key=len)
    if inner & outer and not inner <= outer:
        return True
    if not inner < outer or kinds_of[inner] & kinds_of[outer]:
        return False
    bridge = _meeting(inner, machine)
    if bridge is not None and bridge == _meeting(outer, machine):
        return True
    # Without a tree: the other GPUs of the outer group are too slow to be slowed down in one of the
    # directions, and the total rates of both directions fit one link.
    sums = [direction.carries(outer) for direction in directions]
    low, high = sorted(total or 0.0 for total in sums)
    return high <= (1 + LEVEL_SHARE) * low


def _uplink(gpus: Gpus, directions: Sequence[_Direction], machine: Machine) -> UplinkGroup:
    whole = (one_way for one_way in directions if one_way.carries(gpus) and gpus <= one_way.alone.keys())
    first = next(whole, directions[0])
    carries = first.carries(gpus)
    group = UplinkGroup(
        gpus=tuple(sorted(gpus)),
        from_kind=first.kind,
        alone_gb_per_s=round(sum(first.alone.get(gpu, 0.0) for gpu in gpus), 3),
        together_gb_per_s=None if carries is None else round(carries, 3),
        slowed=tuple(direction.kind for direction in directions),
    )
    return _with_tree(group, machine, first.alone)


def _meeting(gpus: Gpus, machine: Machine) -> str | None:
    """Return the lowest bridge of the PCI tree above all these GPUs."""
    paths = _paths(machine)
    if any(gpu not in paths for gpu in gpus):
        return None
    first, *others = (paths[gpu] for gpu in sorted(gpus))
    return next((bridge for bridge in first if all(bridge in path for path in others)), None)


def _paths(machine: Machine) -> dict[int, list[str]]:
    """Return the bridges above each GPU whose path to the root is complete, nearest first."""
    tree = {node.address: node for node in machine.pci}
    above = {
        gpu.index: bridges_above(tree, gpu.pci_address) for gpu in machine.gpus if gpu.pci_address in tree
    }
    return {gpu: bridges for gpu, (bridges, is_whole) in above.items() if is_whole}


def _with_tree(group: UplinkGroup, machine: Machine, measured: Collection[int]) -> UplinkGroup:
    """Return the group with the bridge where its paths meet, and whether exactly its GPUs are behind it.

    Ignores a GPU behind the bridge that was not `measured`, because nothing is known about it.
    """
    common = _meeting(frozenset(group.gpus), machine)
    if common is None:
        return group
    behind = {gpu for gpu, bridges in _paths(machine).items() if common in bridges and gpu in measured}
    return replace(group, bridge=common, agrees=behind == set(group.gpus))
