"""What each reduction of gradients sends between towers: where parts are added, which copies there are. Pure.

As the functions of `gputopo.launch.train.reductions` build it; a test counts the copies in their graphs.

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

from collections.abc import Sequence
from functools import cache
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
