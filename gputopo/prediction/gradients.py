"""What each reduction of gradients sends between towers: where parts are added, which copies there are. Pure.

As the functions of `launch.train.placement.algorithms` build it; a test counts the copies in their graphs.

| reduction | adds | parts of a variable |
|---|---|---|
| `copy` | on the tower that has it, by bytes | one for each tower of a large one |
| `psgpu#K` | on towers, alternating by the number of the part | K |
| `pscpu#K` | on the host | K |
| `one_device` | on the first tower | one |
| `hierarchical` | on leaders of groups, then on one of these; leaders rotate | one |
| `tf_hierarchical` | so, with two halves whose first towers lead | one for all variables |
| `ring#K` | on every tower of a ring in their order | K for each tower |
| `collective` | so, variables one after another | as an op |
| `nccl`, `nccl_op` | in the order that NCCL finds, variables one after another | as an op |
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Literal, NamedTuple

from gputopo.topology.hops import Groups, halves, leaders_of
from gputopo.values.run.all_reduce import Reduction
from gputopo.workload.spreading import chunk_count, largest_share, spread

Traffic = Literal["none", "host", "owner", "first", "spread", "ring", "order", "groups"]

TRAFFIC: dict[str, Traffic] = {
    "copy": "spread",
    "psgpu": "spread",
    "pscpu": "host",
    "one_device": "first",
    "hierarchical": "groups",
    "tf_hierarchical": "groups",
    "ring": "order",
    "collective": "order",
    "nccl": "ring",
    "nccl_op": "ring",
}
"""Where weights and gradients flow: `first`, on the first tower; `order`, a ring in the order of the towers;
`ring`, the best ring; `groups`, the copies of `stages_of`."""

IN_ORDER = ("first", "order", "groups")
"""Traffic that depends on the order of the towers."""


class Parts(NamedTuple):
    """The parts in which variables are added: their number, and the share of all on the busiest tower."""

    pieces: int
    largest: float = 0.0


Stage = tuple[tuple[int, int, float], ...]


class Stages(NamedTuple):
    """Copies between towers as (sender, receiver, share of the model's bytes), to the sums and back.

    Those of one stage go at the same time; stages follow one another.
    """

    sums: tuple[Stage, ...]
    back: tuple[Stage, ...]


@cache
def parts_of(reduction: Reduction, sizes: tuple[int, ...], towers: int, *, cuts: bool) -> Parts:
    """Return the parts of a reduction over some towers.

    `sizes`: numbers of each variable. `cuts`: whether large variables are cut where they are spread by size.
    """
    if reduction.name == "tf_hierarchical":
        return Parts(1)
    if reduction.name == "copy":
        return spread_parts(sizes, towers, cuts=cuts)
    if reduction.name == "psgpu":
        return _alternating(sizes, towers, reduction.parts)
    if reduction.name in ("pscpu", "ring"):
        most = reduction.parts * (towers if reduction.name == "ring" else 1)
        return Parts(sum(chunk_count(size, most) for size in sizes))
    return Parts(len(sizes))


@cache
def spread_parts(sizes: tuple[int, ...], towers: int, *, cuts: bool) -> Parts:
    """Return the parts of variables that are spread by size."""
    return _parts(sizes, spread(sizes, towers, cuts=cuts))


def _alternating(sizes: Sequence[int], towers: int, parts: int) -> Parts:
    owners = [
        tuple((number * parts + part) % towers for part in range(chunk_count(size, parts)))
        for number, size in enumerate(sizes)
    ]
    return _parts(sizes, owners)


def _parts(sizes: Sequence[int], owners: Sequence[Sequence[int]]) -> Parts:
    return Parts(sum(map(len, owners)), largest_share(sizes, owners))


@cache
def stages_of(name: str, sizes: tuple[int, ...], groups: Groups) -> Stages:
    """Return the copies of a reduction in groups. `groups`: of towers, for `hierarchical`."""
    if name == "tf_hierarchical":
        # All gradients are one tensor, so nothing of a stage starts before the one before it has ended.
        within, between, out, home = _by_groups((1,), halves(sum(map(len, groups))))
        return Stages((within, between), (out, home))
    within, between, out, home = _by_groups(sizes, groups)
    return Stages(((*within, *between),), ((*out, *home),))


def _by_groups(sizes: Sequence[int], groups: Groups) -> tuple[Stage, ...]:
    """Return the copies to leaders, from these to the main one, back to them, and back to all towers."""
    whole = sum(sizes) or 1
    stages: list[dict[tuple[int, int], float]] = [{}, {}, {}, {}]
    for number, size in enumerate(sizes):
        leaders, main = leaders_of(groups, number)
        to, between = stages[0], stages[1]
        for group, leader in zip(groups, leaders, strict=True):
            for tower in group:
                if tower != leader:
                    to[tower, leader] = to.get((tower, leader), 0.0) + size / whole
            if leader != leaders[main]:
                pair = leader, leaders[main]
                between[pair] = between.get(pair, 0.0) + size / whole
    stages[2] = {(b, a): share for (a, b), share in stages[1].items()}
    stages[3] = {(b, a): share for (a, b), share in stages[0].items()}
    return tuple(tuple((a, b, share) for (a, b), share in stage.items()) for stage in stages)


class GradientBlock(NamedTuple):
    """A block of a model: bytes of its gradients, its share of the arithmetic."""

    bytes: int
    share: float


class GradientLine(NamedTuple):
    """The gradients of one step in the order in which backward makes them.

    `slopes` (bytes) and `starts` (seconds) are those of the hull's lines, by rising slope; `from_rate` the
    seconds per byte from which each of them is the uppermost. `ready` and `bytes`: of each block, the last
    of the model first.
    """

    slopes: tuple[float, ...]
    starts: tuple[float, ...]
    from_rate: tuple[float, ...]
    ready: tuple[float, ...] = ()
    bytes: tuple[int, ...] = ()

    def end(self, seconds_per_byte: float) -> float:
        """Return the seconds from the start of backward until the last gradient is through."""
        number = bisect_right(self.from_rate, seconds_per_byte) - 1
        return self.starts[number] + seconds_per_byte * self.slopes[number]

    def through(self, seconds_per_byte: float) -> tuple[float, ...]:
        """Return when each block's gradients are through, in their order."""
        ends, end = [], 0.0
        for ready, size in zip(self.ready, self.bytes, strict=True):
            end = max(end, ready) + seconds_per_byte * size
            ends.append(end)
        return tuple(ends)


@lru_cache(maxsize=256)  # of a few models; a fit asks for one overlap after another
def line_of(blocks: tuple[GradientBlock, ...], backward_s: float, overlap: float) -> GradientLine:
    """Return the line of a model whose backward takes `backward_s`.

    `blocks`: in the order of forward. `overlap`: share of backward over which gradients leave as they are
    made; 0: all of them at its end, 1: each of them at once. Raises ValueError without blocks.
    """
    if not blocks:
        raise ValueError("a model without blocks has no gradients")
    left = float(sum(block.bytes for block in blocks))
    made = 0.0
    lines: list[tuple[float, float]] = []
    for block in reversed(blocks):
        made += block.share
        lines.append((left, backward_s * (overlap * made + (1 - overlap))))
        left -= block.bytes
    found = _hull([*lines, (0.0, backward_s)])
    return found._replace(
        ready=tuple(start for _, start in lines), bytes=tuple(block.bytes for block in reversed(blocks))
    )


def _hull(lines: Sequence[tuple[float, float]]) -> GradientLine:
    """Return the lines that are the uppermost somewhere at rates from 0 on."""
    best: dict[float, float] = {}
    for slope, start in lines:
        best[slope] = max(start, best.get(slope, start))
    slopes: list[float] = []
    starts: list[float] = []
    from_rate: list[float] = []
    for slope, start in sorted(best.items()):
        at = 0.0
        while slopes:
            at = (starts[-1] - start) / (slope - slopes[-1])
            if at > from_rate[-1]:
                break
            slopes.pop()
            starts.pop()
            from_rate.pop()
        from_rate.append(at if slopes else 0.0)
        slopes.append(slope)
        starts.append(start)
    return GradientLine(tuple(slopes), tuple(starts), tuple(from_rate))
