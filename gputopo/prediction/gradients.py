"""What each reduction of gradients sends between towers, and when the gradients of a step are transferred.

This follows the functions of `launch.train.placement.algorithms`; a test counts the copies in their graphs.

| reduction | adds | parts of a variable |
|---|---|---|
| `copy` | on the tower that has it, by bytes | one for each tower of a large one |
| `psgpu#K` | on towers, alternating by the number of the part | K |
| `pscpu#K` | on the host | K |
| `one_device` | on the first tower | one |
| `nccl`, `nccl_op` | in NCCL's order, one variable after another | as an op |

Other reductions are not predicted, because no figures for them are published.
"""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Literal, NamedTuple

from gputopo.values.run.all_reduce import Reduction
from gputopo.workload import chunk_count, spread_by_size

Traffic = Literal["none", "host", "owner", "spread", "ring"]

TRAFFIC: dict[str, Traffic] = {
    "copy": "spread",
    "psgpu": "spread",
    "pscpu": "host",
    "one_device": "owner",
    "nccl": "ring",
    "nccl_op": "ring",
}
"""Where weights and gradients flow, for the reductions that are predicted."""


class Parts(NamedTuple):
    """The parts in which variables are added: their number, and the share of numbers on the busiest tower."""

    pieces: int
    largest: float = 0.0


@cache
def parts_of(reduction: Reduction, sizes: tuple[int, ...], towers: int, *, cuts: bool) -> Parts:
    """Return the parts of a reduction over some towers.

    `sizes`: numbers in each variable. `cuts`: whether large variables are cut if they are spread by size.
    """
    if reduction.name == "copy":
        return spread_parts(sizes, towers, cuts=cuts)
    cut = [range(chunk_count(size, reduction.parts)) for size in sizes]
    owners = [
        [(number * reduction.parts + part) % towers for part in parts] for number, parts in enumerate(cut)
    ]
    return _parts(sizes, owners)


@cache
def spread_parts(sizes: tuple[int, ...], towers: int, *, cuts: bool) -> Parts:
    """Return the parts of variables that are spread by size."""
    return _parts(sizes, spread_by_size(sizes, towers, cuts=cuts))


def _parts(sizes: Sequence[int], owners: Sequence[Sequence[int]]) -> Parts:
    """Return the parts of variables. `owners`: of each variable, with equal parts of it."""
    loads: dict[int, float] = {}
    for size, towers in zip(sizes, owners, strict=True):
        for tower in towers:
            loads[tower] = loads.get(tower, 0.0) + size / len(towers)
    return Parts(sum(map(len, owners)), max(loads.values(), default=0.0) / (sum(sizes) or 1))


class GradientBlock(NamedTuple):
    """A block of a model: the bytes of its gradients and its share of the arithmetic."""

    bytes: int
    share: float


class GradientLine(NamedTuple):
    """The gradients of one step in the order in which the backward pass produces them, the last block first.

    `ready`: seconds from the start of the backward pass. `bytes`: of each block.
    """

    ready: tuple[float, ...]
    bytes: tuple[int, ...]

    def through(self, seconds_per_byte: float) -> tuple[float, ...]:
        """Return the times at which each block's gradients are transferred, in their order."""
        ends, end = [], 0.0
        for ready, size in zip(self.ready, self.bytes, strict=True):
            end = max(end, ready) + seconds_per_byte * size
            ends.append(end)
        return tuple(ends)

    def late_s(self, backward_s: float, seconds_per_byte: float) -> float:
        """Return the seconds from the end of the backward pass until all gradients are transferred.

        `backward_s`: seconds of the backward pass; `ready` is a share of it. `seconds_per_byte`: for which
        one byte occupies the slowest link.
        """
        return max(0.0, backward_s * (self.through(seconds_per_byte / backward_s)[-1] - 1))


@lru_cache(maxsize=256)  # for a few models; a fit tries one overlap after another
def line_of(blocks: tuple[GradientBlock, ...], overlap: float) -> GradientLine:
    """Return the gradients of a model whose backward pass takes one second.

    `blocks`: in forward order. `overlap`: share of the backward pass over which gradients are sent as they
    are produced; 0: all at its end, 1: each at once. Raises ValueError without blocks.
    """
    if not blocks:
        raise ValueError("a model without blocks has no gradients")
    made, ready = 0.0, list[float]()
    for block in reversed(blocks):
        made += block.share
        ready.append(overlap * made + (1 - overlap))
    return GradientLine(tuple(ready), tuple(block.bytes for block in reversed(blocks)))
