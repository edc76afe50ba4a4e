"""When a resource that serves gradients in the order in which they are ready has served the last one. Pure.

A gradient exists when backward has reached its block. A resource (a link in one direction, the host's cores)
takes them one after another, `seconds_per_byte` each, and ends at the maximum over k of
`ready(k) + seconds_per_byte * bytes(k and all after it)`. As a function of `seconds_per_byte` that is a
maximum of straight lines, of which only the upper hull counts: a few for any model.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple


class Block(NamedTuple):
    """A block of a model: bytes of its gradients, its share of the arithmetic."""

    bytes: int
    share: float


class Line(NamedTuple):
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

    def rate(self, end: float, more: float = 0.0) -> float:
        """Return the most seconds per byte with which all is through by then; below 0: none.

        `more`: seconds that each of the rate takes besides, after the last gradient.
        """
        return min(
            (
                (end - start) / (slope + more)
                for slope, start in zip(self.slopes, self.starts, strict=True)
                if slope + more
            ),
            default=inf,
        )


@lru_cache(maxsize=256)  # of a few models; a fit asks for one overlap after another
def line_of(blocks: tuple[Block, ...], backward_s: float, overlap: float) -> Line:
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


def _hull(lines: Sequence[tuple[float, float]]) -> Line:
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
    return Line(tuple(slopes), tuple(starts), tuple(from_rate))
