"""The best order of a ring over some GPUs: the one whose slowest link carries most. Pure.

Each link of a ring carries 2 (n - 1) / n of the bytes of a model (nccl-tests, doc/PERFORMANCE.md), and every
GPU sends and receives at once. A link between two neighbours counts in its slower direction, since rings run
both ways round; one that several pairs share counts once for each two neighbours that use it, rounded up: a
ring that leaves the GPUs behind an uplink comes back to them.

Searched depth first, nearest neighbours first, for orders better than the best so far, which is at first that
of the tree; exact up to eight GPUs, above them unless `MAX_STEPS` partial orders were tried in vain.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from gputopo.prediction.links.flows import GB, Load, Resource
from gputopo.prediction.links.paths import Paths
from gputopo.prediction.links.rates import RateTable, Shared

# What each link of a ring of GPUs without P2P carries through host memory, whatever copies reach: kernels
# write and read it there. Rings of NCCL in the published figures of 2020, most with 16 lanes of generation 3
# or 4; errors on machines left out are the same from 6 to 9.
THROUGH_HOST_GB_PER_S = 8.0
MAX_STEPS = 20_000  # all orders of eight GPUs are 13,700
_LESS = 1 - 1e-12  # a better order is better by more than the noise of floating-point sums

Pair = tuple[int, int]


class _Use(NamedTuple):
    """How often each edge uses a shared link, in halves of going up and coming down once."""

    shared: Shared
    halves: Mapping[int, Mapping[int, int]]
    crossing: Mapping[int, int]  # of each GPU, the others over an edge that uses it, as bits
    group: int  # GPUs on one side of it, if no pair of two sides goes past it, else 0
    inside: bool | None  # whether all pairs of that side use it as well, None where only some do

    def most(self, mask: int, towers: int) -> int:
        """Return how many halves a ring over some GPUs has at most."""
        if not self.group or self.inside is None:
            return 2 * towers
        among = (self.group & mask).bit_count()
        return 2 * (among if self.inside else min(among, towers - among))

    def floor(self, mask: int, towers: int) -> float:
        """Return the seconds a byte that any ring over some GPUs occupies it."""
        among = (self.group & mask).bit_count()
        if not among or (among == towers and not self.inside):
            return 0.0
        return self.shared.round * (among if self.inside else 1)


class Rings:
    """The rings over sets of GPUs of one pool."""

    def __init__(self, table: RateTable) -> None:
        self._table = table
        pool = table.pool
        pairs = [(a, b) for a in pool for b in pool if a != b]
        self.edges = {a: {b: self._edge(a, b) for b in pool if b != a} for a in pool}
        # The others of each GPU, the nearest first: its bit, and what the edge takes.
        self._near = {
            a: [(b, 1 << b, row[b]) for b in sorted(row, key=row.__getitem__)]
            for a, row in self.edges.items()
        }
        self.uses = [_use(shared, pool, pairs) for shared in table.shared]
        self.clusters = _clusters(pool, self.edges)
        self._near_masks: dict[float, dict[int, int]] = {}  # by limit of the seconds of an edge
        self._position = {gpu: number for number, gpu in enumerate(_leaves(pool, self.clusters))}

    def best(
        self, gpus: Sequence[int], mask: int, limit: float = inf
    ) -> tuple[float, tuple[int, ...]] | None:
        """Return the seconds a byte of the model on the slowest link of the best ring, and its order.

        None where every ring takes `limit` or more.
        """
        towers = len(gpus)
        if towers < 2:
            return 0.0, tuple(gpus)
        share = 2 * (towers - 1) / towers
        order: tuple[int, ...] | None = tuple(sorted(gpus, key=self._position.__getitem__))
        assert order is not None
        seconds = self.seconds(order)
        if seconds * share >= limit:
            order = self._better(gpus, mask, limit / share) if towers > 3 else None
            if order is None:
                return None
            seconds = self.seconds(order)
        if towers > 3:
            low = self._least(gpus, mask) / _LESS
            while seconds > low and (better := self._better(gpus, mask, seconds * _LESS)):
                order, seconds = better, self.seconds(better)
        return seconds * share, order

    def may_be_below(self, limit: float, mask: int, towers: int) -> bool:
        """Return False only if every ring over these GPUs takes `limit` or more; fast."""
        if towers < 3:
            return True
        near = self._near_masks.get(limit)
        if near is None:
            edge = limit * towers / (2 * (towers - 1))
            near = self._near_masks[limit] = {
                1 << a: sum(1 << b for b, seconds in row.items() if seconds < edge)
                for a, row in self.edges.items()
            }
        left = mask
        reached = 0
        while left:
            bit = left & -left
            left ^= bit
            around = near[bit] & mask
            if not around & (around - 1):
                return False  # fewer than two neighbours
            if not reached or reached & bit:
                reached |= around | bit
        if reached == mask:
            return True
        fresh = reached
        while fresh:
            bit = fresh & -fresh
            more = near[bit] & mask & ~reached
            fresh = fresh & ~bit | more
            reached |= more
        return reached == mask

    def limit(self, order: Sequence[int]) -> Resource | None:
        """Return the resource that a ring in this order occupies longest."""
        return max(self._loads(order), default=(0.0, None), key=lambda load: load[0])[1]

    def loads(self, order: Sequence[int], rounds: int) -> dict[Resource, Load]:
        """Return what each resource carries of a ring in this order, of which bytes go so often around."""
        share = rounds * (len(order) - 1) / len(order)
        shares = dict.fromkeys((resource for _, resource in self._loads(order)), share)
        pairs = list(zip(order, (*order[1:], order[0]), strict=True))
        for use in self.uses:
            shares[use.shared.upward] = share * _times(use, pairs)
        seconds: dict[Resource, float] = {}
        for each, resource in self._loads(order):
            seconds[resource] = max(share * each, seconds.get(resource, 0.0))
        return {resource: Load(shares[resource], each) for resource, each in seconds.items() if each}

    def _edge(self, a: int, b: int) -> float:
        """Return what two neighbours need; each of them sends and receives at the same time."""
        return max(seconds for seconds, _ in self._edge_loads(a, b, alone=False))

    def _edge_loads(self, a: int, b: int, *, alone: bool) -> Iterator[tuple[float, Resource]]:
        table = self._table
        for gpu, other in ((a, b), (b, a)):
            out, into = table.out[gpu][other], table.into[gpu][other]
            yield max(out, into) + table.more[gpu] * min(out, into), ("up" if out >= into else "down", gpu)
            out, into = table.port_out[gpu][other], table.port_in[gpu][other]
            yield max(out, into) + table.port_more[gpu] * min(out, into), ("nvlink out", gpu)
            one, back = table.via[gpu][other], table.via[other][gpu]
            more = table.pair_more[gpu, other] * min(one, back) if alone else 0.0
            least = 1 / (THROUGH_HOST_GB_PER_S * GB) if (gpu, other) in table.staged else 0.0
            yield (
                max(one + more, least),
                ("nvlink" if (gpu, other) in table.over_nvlink else "pair", gpu, other),
            )

    def _loads(self, order: Sequence[int]) -> Iterator[tuple[float, Resource]]:
        pairs = list(zip(order, (*order[1:], order[0]), strict=True))
        for a, b in pairs:
            yield from self._edge_loads(a, b, alone=len(order) == 2)
        for use in self.uses:
            yield _times(use, pairs) * use.shared.round, use.shared.upward

    def seconds(self, order: Sequence[int]) -> float:
        """Return what a byte occupies the slowest link of a ring in this order for each time it passes."""
        if len(order) < 3:
            return max(seconds for seconds, _ in self._loads(order))
        pairs = list(zip(order, (*order[1:], order[0]), strict=True))
        seconds = max([self.edges[a][b] for a, b in pairs])
        for use in self.uses:
            halves = sum([use.halves[a].get(b, 0) for a, b in pairs])
            if halves:
                seconds = max(seconds, (halves + 1) // 2 * use.shared.round)
        return seconds

    def _least(self, gpus: Sequence[int], mask: int) -> float:
        """Return what no ring is below: each GPU has two neighbours, and a group is left and entered."""
        slowest = max(
            [sorted([row[b] for b in gpus if b in row])[1] for row in map(self.edges.__getitem__, gpus)]
        )
        return max(slowest, *(use.floor(mask, len(gpus)) for use in self.uses), 0.0)

    def _better(self, gpus: Sequence[int], mask: int, limit: float) -> tuple[int, ...] | None:
        """Return a ring whose links all take less than `limit`, None if there is none."""
        allowed = {a: [b for b, bit, edge in self._near[a] if mask & bit and edge < limit] for a in gpus}
        start = min(gpus, key=lambda gpu: len(allowed[gpu]))
        if len(allowed[start]) < 2:
            return None
        tight = []
        crossing = dict.fromkeys(gpus, 0)
        for use in self.uses:
            times = int(limit / use.shared.round)
            halves = 2 * (times if times * use.shared.round < limit else times - 1)
            if halves < use.most(mask, len(gpus)):
                if use.floor(mask, len(gpus)) >= limit:
                    return None
                tight.append((use.halves, halves, use.group))
                for a in gpus:
                    crossing[a] |= use.crossing[a]
        return _Search(allowed, start, tight, crossing).path(mask)


class _Search:
    """Looks for a closed path over allowed edges, within what shared links allow."""

    def __init__(
        self,
        allowed: Mapping[int, Sequence[int]],
        start: int,
        tight: Sequence[tuple[Mapping[int, Mapping[int, int]], int, int]],
        crossing: Mapping[int, int],
    ) -> None:
        """`crossing`: of each GPU, the neighbours over an edge that uses a link of `tight`, as bits."""
        self._allowed, self._start, self._tight, self._crossing = allowed, start, tight, crossing
        self._steps = 0
        self._order = [start]
        self._last = 0  # the neighbours of the start from which the path may come home, as bits

    def path(self, mask: int) -> tuple[int, ...] | None:
        """Return the path, None where there is none, or none was found in time.

        Edges are the same in both directions, so a path that comes home from a neighbour was looked for
        when it left to that one.
        """
        start, left = self._start, mask & ~(1 << self._start)
        self._last = sum(1 << there for there in self._allowed[start])
        for there in self._allowed[start]:
            bit = 1 << there
            self._last &= ~bit
            now = self._after(start, there, [0] * len(self._tight), left & ~bit)
            self._order = [start, there]
            if now is not None and self._extend(there, left & ~bit, now):
                return tuple(self._order)
        return None

    def _extend(self, here: int, left: int, used: Sequence[int]) -> bool:
        self._steps += 1
        if self._steps > MAX_STEPS:
            return False
        if not left:
            return bool(self._last >> here & 1) and self._after(here, self._start, used, 0) is not None
        if not self._last & left:
            return False
        crossing = self._crossing[here]
        for there in self._allowed[here]:
            bit = 1 << there
            if not left & bit:
                continue
            now = self._after(here, there, used, left & ~bit) if crossing & bit else used
            if now is not None:
                self._order.append(there)
                if self._extend(there, left & ~bit, now):
                    return True
                self._order.pop()
        return False

    def _after(self, here: int, there: int, used: Sequence[int], left: int) -> Sequence[int] | None:
        """Return the use of shared links with one edge more, None if that is too much to come home."""
        now = []
        ahead = left | 1 << there | 1 << self._start
        for (halves, most, group), before in zip(self._tight, used, strict=True):
            count = before + halves[here].get(there, 0)
            if count > most or (count == most and group and group & ahead and ahead & ~group):
                return None
            now.append(count)
        return now


def ring_loads(paths: Paths, gpus: Sequence[int]) -> dict[Resource, Load]:
    """Return what each resource carries of the best ring over some GPUs."""
    rings = Rings(RateTable(paths, gpus))
    found = rings.best(gpus, sum(1 << gpu for gpu in gpus))
    assert found is not None
    return rings.loads(found[1], 2)


def order_loads(paths: Paths, gpus: Sequence[int]) -> dict[Resource, Load]:
    """Return what each resource carries of the ring in this order, once round."""
    return Rings(RateTable(paths, gpus)).loads(gpus, 1)


def ring_rate(paths: Paths, gpus: Sequence[int]) -> tuple[Resource | None, float]:
    """Return the slowest link of the best ring over some GPUs, and its seconds a byte of the model."""
    if len(gpus) < 2:
        return None, 0.0
    rings = Rings(RateTable(paths, gpus))
    found = rings.best(gpus, sum(1 << gpu for gpu in gpus))
    assert found is not None
    return rings.limit(found[1]), found[0]


def order_rate(paths: Paths, gpus: Sequence[int]) -> tuple[Resource | None, float]:
    """Return the slowest link of the ring in this order, and its seconds a byte of the model once round."""
    if len(gpus) < 2:
        return None, 0.0
    rings = Rings(RateTable(paths, gpus))
    return rings.limit(gpus), once_round(rings.seconds(gpus), len(gpus))


def once_round(seconds: float, towers: int) -> float:
    """Return the seconds a byte of the model, of which each link carries all but one of as many parts."""
    return seconds * (towers - 1) / towers


def _times(use: _Use, pairs: Sequence[Pair]) -> int:
    """Return how often a ring of these neighbours goes up and comes down a shared link."""
    return (sum(use.halves[a].get(b, 0) for a, b in pairs) + 1) // 2


def _use(shared: Shared, pool: Sequence[int], pairs: Sequence[Pair]) -> _Use:
    halves: dict[int, dict[int, int]] = {gpu: {} for gpu in pool}
    for a, b in pairs:
        both = [
            (one.get(a, 0) >> b & 1) + (one.get(b, 0) >> a & 1) for one in (shared.goes_up, shared.comes_down)
        ]
        if any(both):
            halves[a][b] = sum(both) // 2
    group = shared.group & sum(1 << gpu for gpu in pool)
    apart = [b in halves[a] for a, b in pairs if (group >> a & 1) != (group >> b & 1)]
    within = [b in halves[a] for a, b in pairs if group >> a & 1 and group >> b & 1]
    inside = True if all(within) else None if any(within) else False
    crossing = {gpu: sum(1 << other for other in row) for gpu, row in halves.items()}
    return _Use(shared, halves, crossing, group if all(apart) else 0, inside)


def _clusters(pool: Sequence[int], edges: Mapping[int, Mapping[int, float]]) -> list[tuple[float, int]]:
    """Return the groups that become connected as slower edges are added, with the edge that joins each."""
    parts = {gpu: 1 << gpu for gpu in pool}
    found: list[tuple[float, int]] = []
    for seconds, a, b in sorted((edges[a][b], a, b) for a in pool for b in pool if a < b):
        if parts[a] != parts[b]:
            joined = parts[a] | parts[b]
            found.append((seconds, joined))
            parts.update((gpu, joined) for gpu in pool if joined >> gpu & 1)
    return found


def _leaves(pool: Sequence[int], clusters: Sequence[tuple[float, int]]) -> list[int]:
    """Return the GPUs in an order in which those of each cluster stand together."""
    order = {gpu: [gpu] for gpu in pool}
    last = list(pool[:1])
    for _, cluster in clusters:
        parts: list[list[int]] = []
        for gpu in pool:
            if cluster >> gpu & 1 and order[gpu] not in parts:
                parts.append(order[gpu])
        last = [gpu for part in parts for gpu in part]
        order.update(dict.fromkeys(last, last))
    return last
