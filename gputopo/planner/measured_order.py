"""The order of pairs of GPUs by measured speed."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from gputopo.planner.reasons import Links, pairs_of
from gputopo.planner.request import gpus_in_words
from gputopo.topology import class_name, is_within, nearness
from gputopo.values.bandwidth import Bandwidth, Pair
from gputopo.values.index_ranges import pairs_in_words
from gputopo.values.machine import Hop
from gputopo.values.rates import SAME_SPEED, PairSpeed
from gputopo.values.words import date_in_words

# If neighbours in a row of pairs are that close, but its ends differ by this factor, the row is cut. Not
# measured; chosen because it is half of the step from one PCIe generation, or one width, to the next.
WIDEST_CLASS = 1.5


class MeasuredOrder(NamedTuple):
    """Pairs sorted by the class of their measured speed; topology decides within a class."""

    speeds: Mapping[Pair, PairSpeed]
    classes: Mapping[Pair, int]
    links: Links
    pix_first: bool  # a pair beyond PIX sorts last, however fast it is (`--prefer-pix`)

    def key(self, pair: Pair) -> tuple[int, ...]:
        """Return the sort key of a measured pair, the best first."""
        link = self.links.get(pair)
        far = int(self.pix_first and not is_within(link, Hop.PIX))
        return (far, self.classes[pair], *nearness(link))

    def reason(self, gpus: Sequence[int], bandwidth: Bandwidth) -> str:
        """Return the speed of the slowest pair of two or more chosen GPUs, and when it was measured."""
        pairs = pairs_of(gpus)
        slowest = max(
            pairs,
            key=lambda pair: (self.classes[pair], -self.speeds[pair].gb_per_s, [-index for index in pair]),
        )
        name = class_name(self.links.get(slowest))
        where = "" if name == "unknown" else f" ({name})"
        which = "" if len(pairs) == 1 else f"slowest of {len(pairs)} pairs: "
        when = "" if bandwidth.measured_at is None else f" ({date_in_words(bandwidth.measured_at)})"
        return f"{which}{gpus_in_words(slowest)}{where}: {self.speeds[slowest].says}{when}"


def pair_classes(speeds: Mapping[Pair, PairSpeed]) -> dict[Pair, int]:
    """Return the class of each pair, 0 for the fastest. Only noise separates pairs within a class."""
    classes: dict[float, int] = {}
    ordered = sorted({speed.gb_per_s for speed in speeds.values()}, reverse=True)
    for number, members in enumerate(_classes(ordered)):
        classes |= dict.fromkeys(members, number)
    return {pair: classes[speed.gb_per_s] for pair, speed in speeds.items()}


def unmeasured(speeds: Mapping[Pair, PairSpeed], gpus: Sequence[int]) -> list[Pair]:
    """Return the pairs of these GPUs without a measured speed."""
    return [pair for pair in pairs_of(gpus) if pair not in speeds]


def not_used(bandwidth: Bandwidth, missing: Sequence[Pair]) -> str:
    """Return that measured rates were not used because some pairs have none."""
    when = "" if bandwidth.measured_at is None else f" of {date_in_words(bandwidth.measured_at)}"
    return (
        f"the measured bandwidth{when} was not used: "
        f"no rate for both directions of {pairs_in_words(missing, max_named=3)}"
    )


def _classes(falling: Sequence[float]) -> list[Sequence[float]]:
    """Cut speeds, fastest first, at their largest gaps until each part is one class."""
    if len(falling) < 2:
        return [falling] if falling else []
    gaps = [fast / slow for fast, slow in pairwise(falling)]
    widest = max(range(len(gaps)), key=gaps.__getitem__)
    if gaps[widest] <= SAME_SPEED and falling[0] / falling[-1] <= WIDEST_CLASS:
        return [falling]
    return [*_classes(falling[: widest + 1]), *_classes(falling[widest + 1 :])]
