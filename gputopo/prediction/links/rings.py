"""The best order of a ring over some GPUs: the one whose slowest link carries most. Pure.

Each link of a ring carries 2 (n - 1) / n of the bytes of a model (nccl-tests, doc/PERFORMANCE.md), and every
GPU sends and receives at once. A link between two neighbours counts in its slower direction, since rings run
both ways round; one that several pairs share counts once for each two neighbours that use it, rounded up: a
ring that leaves the GPUs behind an uplink comes back to them.

Searched depth first, nearest neighbours first, for orders better than the best so far, which is at first that
of the tree; exact up to eight GPUs, above them unless `MAX_STEPS` partial orders were tried in vain.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import combinations, permutations
from math import ceil
from operator import or_
from typing import NamedTuple

from gputopo.prediction.links.flows import GB, Flows, Load, pair_costs, reverse
from gputopo.prediction.links.paths import Paths, Resource
from gputopo.prediction.links.shared_links import Gpus

# What each link of a ring of GPUs without P2P carries through host memory, whatever copies reach: kernels
# write and read it there. Rings of NCCL in the published figures of 2020, most with 16 lanes of generation 3
# or 4; errors on machines left out are the same from 6 to 9.
THROUGH_HOST_GB_PER_S = 8.0
MAX_STEPS = 20_000  # all orders of eight GPUs are 13,700
_LESS = 1 - 1e-12  # a better order is better by more than the noise of floating-point sums

_SHARED = ("uplink up", "uplink down", "socket")
_BETWEEN = ("pair", "nvlink")
_INTO = ("down", "nvlink in")

Pair = tuple[int, int]


class _Use(NamedTuple):
    """A link that several pairs share, and how often each edge uses it, in halves of up and down once."""

    resource: Resource
    round: float  # seconds a byte of a ring that goes up and comes down once
    halves: Mapping[int, Mapping[int, int]]
    group: int  # GPUs on one side of it, if no pair of two sides goes past it, else 0
    inside: bool | None  # whether all pairs of that side use it as well, None where only some do

    def floor(self, mask: int, towers: int) -> float:
        """Return the seconds a byte that any ring over some GPUs occupies it."""
        among = (self.group & mask).bit_count()
        if not among or (among == towers and not self.inside):
            return 0.0
        return self.round * (among if self.inside else 1)

    def times(self, pairs: Sequence[Pair]) -> int:
        return (sum(self.halves[a].get(b, 0) for a, b in pairs) + 1) // 2


class Rings:
    """The rings over sets of GPUs of one pool."""

    def __init__(self, paths: Paths, pool: Sequence[int]) -> None:
        self._paths = paths
        self._own = {(a, b): tuple(self._edge_loads(a, b)) for a, b in permutations(pool, 2)}
        self.edges = {
            a: {b: max(seconds for seconds, _ in self._own[a, b]) for b in pool if b != a} for a in pool
        }
        self._fastest_first = sorted(
            (self.edges[a][b], 1 << a | 1 << b) for a, b in combinations(sorted(pool), 2)
        )
        # The others of each GPU, the nearest first: its bit, and what the edge takes.
        self._near = {
            a: [(b, 1 << b, row[b]) for b in sorted(row, key=row.__getitem__)]
            for a, row in self.edges.items()
        }
        self.uses = [
            *(
                _use(paths, pool, ("uplink up", number), one.gpus, (one.up, one.down, one.both))
                for number, one in enumerate(paths.uplinks)
            ),
            *(
                _use(paths, pool, ("socket", *one.nodes), one.gpus[0], (one.gb_per_s, one.gb_per_s, one.both))
                for one in paths.sockets
            ),
        ]
        leaves = _leaves(pool, self.edges)
        self._position = {gpu: number for number, gpu in enumerate(leaves)}

    def best(self, gpus: Sequence[int]) -> tuple[float, tuple[int, ...]]:
        """Return the seconds a byte of the model on the slowest link of the best ring, and its order."""
        towers = len(gpus)
        if towers < 2:
            return 0.0, tuple(gpus)
        order = tuple(sorted(gpus, key=self._position.__getitem__))
        seconds = self.seconds(order)
        if towers > 3:
            low = self._least(gpus) / _LESS
            while seconds > low and (better := self._better(gpus, seconds * _LESS)):
                order, seconds = better, self.seconds(better)
        return seconds * 2 * (towers - 1) / towers, order

    def least(self, gpus: Sequence[int]) -> float:
        """Return the seconds a byte of the model that no ring over these GPUs is below."""
        towers = len(gpus)
        return 0.0 if towers < 3 else self._least(gpus) * 2 * (towers - 1) / towers

    def limit(self, order: Sequence[int]) -> Resource | None:
        """Return the resource that a ring in this order occupies longest."""
        return max(self._loads(order), default=(0.0, None), key=lambda load: load[0])[1]

    def loads(self, order: Sequence[int], rounds: int) -> dict[Resource, Load]:
        """Return what each resource carries of a ring in this order, of which bytes go so often around."""
        share = rounds * (len(order) - 1) / len(order)
        shares = dict.fromkeys((resource for _, resource in self._loads(order)), share)
        pairs = list(zip(order, (*order[1:], order[0]), strict=True))
        for use in self.uses:
            shares[use.resource] = share * use.times(pairs)
        seconds: dict[Resource, float] = {}
        for each, resource in self._loads(order):
            seconds[resource] = max(share * each, seconds.get(resource, 0.0))
        return {resource: Load(shares[resource], each) for resource, each in seconds.items() if each}

    def _edge_loads(self, a: int, b: int, *, alone: bool = False) -> Iterator[tuple[float, Resource]]:
        """Iterate over what two neighbours need of links that no other pair uses.

        Each sends and receives at the same time, over what lies between in one direction unless `alone`.
        """
        flows = Flows(self._paths)
        flows.between(a, b)
        flows.between(b, a)
        loads = flows.loads
        for resource, load in loads.items():
            kind, seconds = resource[0], load.seconds
            if kind in _BETWEEN:
                seconds = seconds if alone else flows.seconds[resource] / GB
                staged = kind == "pair" and self._paths.pair(a, b).kind == "staged"
                yield max(seconds, 1 / (THROUGH_HOST_GB_PER_S * GB) if staged else 0.0), resource
            elif kind not in _SHARED:
                back = loads.get(reverse(resource))
                if back is None or (back.seconds, kind in _INTO) <= (seconds, False):
                    yield seconds, resource

    def _loads(self, order: Sequence[int]) -> Iterator[tuple[float, Resource]]:
        pairs = list(zip(order, (*order[1:], order[0]), strict=True))
        for a, b in pairs:
            yield from self._own[a, b] if len(order) > 2 else self._edge_loads(a, b, alone=True)
        for use in self.uses:
            yield use.times(pairs) * use.round, use.resource

    def seconds(self, order: Sequence[int]) -> float:
        """Return what a byte occupies the slowest link of a ring in this order for each time it passes."""
        if len(order) < 3:
            return max(seconds for seconds, _ in self._loads(order))
        pairs = list(zip(order, (*order[1:], order[0]), strict=True))
        seconds = max([self.edges[a][b] for a, b in pairs])
        for use in self.uses:
            halves = sum([use.halves[a].get(b, 0) for a, b in pairs])
            if halves:
                seconds = max(seconds, (halves + 1) // 2 * use.round)
        return seconds

    def _least(self, gpus: Sequence[int]) -> float:
        """Return what no ring is below: each GPU has two neighbours, all are joined, uplinks are shared."""
        mask, once, twice, parts = mask_of(gpus), 0, 0, list[int]()
        slowest = 0.0
        for seconds, edge in self._fastest_first:
            if edge & mask != edge:
                continue
            twice, once = twice | once & edge, once | edge
            joined = [part for part in parts if part & edge]
            if len(joined) != 1 or joined[0] & edge != edge:
                parts = [part for part in parts if not part & edge]
                parts.append(reduce(or_, joined, edge))
            if twice == mask and len(parts) == 1:
                slowest = seconds
                break
        return max(slowest, *(use.floor(mask, len(gpus)) for use in self.uses), 0.0)

    def _better(self, gpus: Sequence[int], limit: float) -> tuple[int, ...] | None:
        """Return a ring whose links all take less than `limit`; None: there is none, or it takes too long."""
        mask = mask_of(gpus)
        allowed = {a: [b for b, bit, edge in self._near[a] if mask & bit and edge < limit] for a in gpus}
        start = min(gpus, key=lambda gpu: len(allowed[gpu]))
        if len(allowed[start]) < 2 or any(use.floor(mask, len(gpus)) >= limit for use in self.uses):
            return None
        # How many halves a ring may use of each shared link.
        uses = [(use.halves, 2 * (ceil(limit / use.round) - 1), use.group) for use in self.uses]
        uses = [use for use in uses if use[1] < 2 * len(gpus)]
        home, steps, last = 1 << start, 0, mask_of(allowed[start])

        def extended(order: tuple[int, ...], left: int, used: Sequence[int]) -> tuple[int, ...] | None:
            nonlocal steps, last
            steps += 1
            here, ahead = order[-1], left | home
            for there in allowed[here]:
                bit = 1 << there
                if not bit & (left or home) or not last & (left or 1 << here) or steps > MAX_STEPS:
                    continue
                now = [
                    before + halves[here].get(there, 0)
                    for (halves, _, _), before in zip(uses, used, strict=True)
                ]
                for (_, most, group), count in zip(uses, now, strict=True):
                    # A link that is used up cannot bring the ring to those on its other side.
                    if count > most or (
                        count == most and left and group & ahead and ahead & ~group and group
                    ):
                        break
                else:
                    found = extended((*order, there), left & ~bit, now) if left else order
                    if found is not None:
                        return found
                if here == start:
                    last &= ~bit  # the ring that comes home from it was looked for the other way round
            return None

        return extended((start,), mask & ~home, [0] * len(uses))


def mask_of(gpus: Iterable[int]) -> int:
    """Return the bits 1 << gpu of a set."""
    return sum(1 << gpu for gpu in gpus)


def _use(
    paths: Paths, pool: Sequence[int], resource: Resource, side: Gpus, rates: tuple[float, float, float]
) -> _Use:
    """`side`: GPUs on one side of the link; `rates`: GB/s up and down, both at once as a share of the sum."""
    up, down, both = 1 / (rates[0] * GB), 1 / (rates[1] * GB), rates[2]
    ways = (resource, reverse(resource))
    halves: dict[int, dict[int, int]] = {gpu: {} for gpu in pool}
    pairs = list(permutations(pool, 2))
    for a, b in pairs:
        costs = (*pair_costs(paths, a, b), *pair_costs(paths, b, a))
        if used := sum(cost[0] in ways for cost in costs):
            halves[a][b] = used // 2
    group = mask_of(side.intersection(pool))
    apart = [b in halves[a] for a, b in pairs if (group >> a & 1) != (group >> b & 1)]
    within = [b in halves[a] for a, b in pairs if group >> a & 1 and group >> b & 1]
    inside = True if all(within) else None if any(within) else False
    slowed = max(up, down) + (1 / both - 1) * min(up, down)
    return _Use(resource, slowed, halves, group if all(apart) else 0, inside)


def _leaves(pool: Sequence[int], edges: Mapping[int, Mapping[int, float]]) -> list[int]:
    """Return the GPUs in an order in which those joined by fast edges stand together."""
    order = {gpu: [gpu] for gpu in pool}
    for _, a, b in sorted((edges[a][b], a, b) for a, b in combinations(sorted(pool), 2)):
        if order[a] is not order[b]:
            joined = order[a] + order[b]
            order.update(dict.fromkeys(joined, joined))
    return order[pool[0]]
