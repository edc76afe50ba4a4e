"""Which GPUs explain slow copies between GPUs, and which pairs are slow by themselves. Pure."""

from collections.abc import Collection
from typing import NamedTuple

from gputopo.copies.numbers import Pair

# A GPU explains its slow copies in one direction where more than half of those with its peers are slow, and
# at least two: with fewer, the pair may be slow. Ours.
MIN_PARTNERS = 2
SLOW_SHARE = 0.5


class SlowEnds(NamedTuple):
    """GPUs that are slow as source or as destination, each with its slow copies, and the other slow pairs."""

    out: dict[int, list[Pair]]
    into: dict[int, list[Pair]]
    pairs: list[Pair]

    @property
    def gpus(self) -> list[int]:
        """Return the GPUs that are slow in one direction or both."""
        return sorted({*self.out, *self.into})


def slow_ends(slow: Collection[Pair], measured: Collection[Pair]) -> SlowEnds:
    """Return the fewest GPUs that explain the slow ones among measured copies (source, destination).

    The end with the largest share of slow copies explains them first; the others are judged by the rest.
    """
    found = SlowEnds({}, {}, [])
    rest, left = set(measured), set(slow)
    while left:
        ends = {(side, gpu) for pair in left for side, gpu in enumerate(pair)}
        side, gpu = max(sorted(ends), key=lambda end: _share(left, rest, end))
        if _share(left, rest, (side, gpu)) <= SLOW_SHARE:
            break
        (found.into if side else found.out)[gpu] = sorted(pair for pair in left if pair[side] == gpu)
        rest = {pair for pair in rest if pair[side] != gpu}
        left &= rest
    found.pairs.extend(sorted(left))
    return found


def _share(slow: Collection[Pair], measured: Collection[Pair], end: tuple[int, int]) -> float:
    """Return the share of slow copies among those out of (0) or into (1) a GPU; 0 where one alone is slow."""
    side, gpu = end
    of_end = [pair for pair in measured if pair[side] == gpu]
    count = sum(pair in slow for pair in of_end)
    return count / len(of_end) if count >= MIN_PARTNERS else 0.0
