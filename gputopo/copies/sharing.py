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

from gputopo.topology import bridges_above
from gputopo.values.bandwidth import Kind, Sample, UplinkGroup
from gputopo.values.grouping import grouped, maxima
from gputopo.values.machine import Machine
from gputopo.values.rates import host_link_rates, pair_copies

# Two runs of one copy differ by 1 to 2 %, and copies that overlap imperfectly by a little more. Sharing costs
# a seventh even among eight GPUs. Not measured; chosen between these.
CHANGED_SHARE = 0.06
# An outer group must carry at least this much more than a group within it; otherwise they are one group. Not
# measured.
LEVEL_SHARE = 0.15
# Both directions over one direction: 1.0 for two halves of one board (az-4x-m60: 1.04), 1.6 to 2.0 for all
# other pairs of the published machines. A pair shares a path if it reaches less than this share of the other
# pairs' ratio.
BIDIRECTIONAL_SHARE = 0.75

Gpus = frozenset[int]
HOST_KINDS: tuple[Kind, ...] = ("h2d", "d2h")


def uplink_groups(samples: Iterable[Sample], machine: Machine) -> tuple[UplinkGroup, ...]:
    """Find the groups of GPUs that slow one another down, smaller groups first, each group once.

    Any two groups are disjoint, or one is within the other, because PCI is a tree. If copies to and from the
    host show the same group, it has the rates of h2d. Empty if nothing was copied at the same time, or
    nothing slowed down.
    """
    samples = tuple(samples)
    directions = [_Direction.of(samples, kind, machine) for kind in HOST_KINDS]
    found = [
        _uplink(gpus, [one for one in directions if one.kind in kinds], machine)
        for gpus, kinds in _laminar(directions, machine).items()
    ]
    if not any(direction.together for direction in directions):
        found += [_with_tree(one, machine, _paths(machine)) for one in _slow_bidirectional(samples)]
    return tuple(sorted(found, key=lambda group: (len(group.gpus), group.gpus)))


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


def rates_at_once(samples: Iterable[Sample], kind: Kind) -> dict[Gpus, dict[int, float]]:
    """Return the rates of each set of GPUs that copied at once, all of them only in this direction."""
    by_group = grouped((group, one) for one in samples if (group := one.one_way_group) is not None)
    found: dict[Gpus, dict[int, float]] = {}
    for members in by_group.values():
        measured = maxima(
            (gpu, one.rate)
            for one in members
            if (gpu := one.host_gpu) is not None
            and (one.is_large and one.pinned is not False and one.is_by_copy_engine)
        )
        if len(measured) > 1 and all(sample.kind == kind for sample in members):
            found[frozenset(measured)] = measured
    return found


def _by_pairs(alone: Mapping[int, float], together: Mapping[Gpus, Mapping[int, float]]) -> dict[Gpus, float]:
    """Join the pairs that slow each other down, the slowest first: inner groups, then wider groups."""
    carries = {
        pair: sum(measured.values())
        for pair, measured in together.items()
        if len(pair) == 2 and _slowed(measured, alone)
    }
    parts: list[Gpus] = []
    found: dict[Gpus, float] = {}
    left = sorted(carries, key=lambda pair: (carries[pair], sorted(pair)))
    while left:
        level = carries[left[0]] * (1 + LEVEL_SHARE)
        now = [pair for pair in left if carries[pair] <= level]
        left = left[len(now) :]
        joined = _components([*parts, *now])
        for part in joined:
            within = [carries[pair] for pair in now if pair <= part]
            if part not in parts and within:
                found[part] = median(within)
        parts = joined
    # At the end of a level, noise may have separated some pairs of a group: they are not a group within it.
    return {
        gpus: gb_per_s
        for gpus, gb_per_s in found.items()
        if not any(gpus < outer and found[outer] <= gb_per_s * (1 + LEVEL_SHARE) for outer in found)
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
    for gpu in sorted(limited, key=lambda one: whole[one]):
        if runs and whole[gpu] <= (1 + LEVEL_SHARE) * whole[runs[-1][0]]:
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return [frozenset(run) for run in runs if len(run) > 1]


def _components(sets: Iterable[Gpus]) -> list[Gpus]:
    joined: list[Gpus] = []
    for one in sets:
        touching = [part for part in joined if part & one]
        joined = [part for part in joined if not part & one] + [one.union(*touching)]
    return joined


def _slow_bidirectional(samples: Sequence[Sample]) -> Iterator[UplinkGroup]:
    """Yield the pairs that gain too little from both directions at once."""
    one_direction, both = pair_copies(samples, "p2p_staged"), pair_copies(samples, "bidirectional", "staged")
    alone, at_once = (
        grouped(((min(pair), max(pair)), one.rate) for pair, one in found.items())
        for found in (one_direction, both)
    )
    rates = {pair: (median(alone[pair]), median(at_once[pair])) for pair in sorted(alone) if pair in at_once}
    gains = {pair: together / one_way for pair, (one_way, together) in rates.items()}
    for pair, gain in gains.items():
        others = [other for known, other in gains.items() if known != pair and {*known} & {*pair}]
        if others and gain < BIDIRECTIONAL_SHARE * median(others):
            alone_gb_per_s, together = rates[pair]
            yield UplinkGroup(
                gpus=pair,
                from_kind="bidirectional",
                alone_gb_per_s=2 * alone_gb_per_s,
                together_gb_per_s=together,
                slowed=("bidirectional",),
            )


class _Direction(msgspec.Struct, frozen=True):
    """Copies to or from the host: GB/s of each GPU by itself and of each set at once, and their groups."""

    kind: Kind
    alone: Mapping[int, float]
    together: Mapping[Gpus, Mapping[int, float]]
    groups: Mapping[Gpus, float]

    @classmethod
    def of(cls, samples: Sequence[Sample], kind: Kind, machine: Machine) -> "_Direction":
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
    kinds_of = grouped((gpus, one.kind) for one in directions for gpus in one.groups)
    found = {gpus: set(kinds) for gpus, kinds in kinds_of.items()}
    while same := next(
        ((a, b) for a, b in combinations(found, 2) if _is_one_link(a, b, found, directions, machine)), None
    ):
        kinds = found.pop(same[0]) | found.pop(same[1])
        found.setdefault(same[0] | same[1], set()).update(kinds)
    return found


def _is_one_link(
    a: Gpus,
    b: Gpus,
    found: Mapping[Gpus, set[Kind]],
    directions: Sequence[_Direction],
    machine: Machine,
) -> bool:
    if a & b and not a <= b and not b <= a:
        return True
    inner, outer = sorted((a, b), key=len)
    if not inner < outer or found[a] & found[b]:
        return False
    bridge = _meeting(inner, machine)
    if bridge is not None and bridge == _meeting(outer, machine):
        return True
    # Without a tree: the other GPUs of the outer group are too slow to be slowed down in one of the
    # directions, and the total rates of both directions fit one link.
    sums = [direction.carries(outer) for direction in directions]
    low, high = min(one or 0.0 for one in sums), max(one or 0.0 for one in sums)
    return high <= (1 + LEVEL_SHARE) * low


def _uplink(gpus: Gpus, directions: Sequence[_Direction], machine: Machine) -> UplinkGroup:
    first = next((one for one in directions if one.carries(gpus) and gpus <= one.alone.keys()), directions[0])
    carries = first.carries(gpus)
    found = UplinkGroup(
        gpus=tuple(sorted(gpus)),
        from_kind=first.kind,
        alone_gb_per_s=round(sum(first.alone.get(gpu, 0.0) for gpu in gpus), 3),
        together_gb_per_s=None if carries is None else round(carries, 3),
        slowed=tuple(direction.kind for direction in directions),
    )
    return _with_tree(found, machine, first.alone)


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
    found: dict[int, list[str]] = {}
    for gpu in machine.gpus:
        if gpu.pci_address in tree and gpu.pci_address is not None:
            bridges, whole = bridges_above(tree, gpu.pci_address)
            if whole:
                found[gpu.index] = bridges
    return found


def _with_tree(group: UplinkGroup, machine: Machine, measured: Collection[int]) -> UplinkGroup:
    """Return the group with the bridge where its paths meet, and whether exactly its GPUs are behind it.

    Ignores a GPU behind the bridge that was not `measured`, because nothing is known about it.
    """
    paths = _paths(machine)
    if any(gpu not in paths for gpu in group.gpus):
        return group
    common = _meeting(frozenset(group.gpus), machine)
    behind = {gpu for gpu, bridges in paths.items() if common in bridges and gpu in measured}
    return msgspec.structs.replace(group, bridge=common, agrees=behind == set(group.gpus))
