"""The order of sets of GPUs by measured bandwidth, and the reasons in words. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple, Self

from gputopo.copies.numbers import Pair
from gputopo.copies.pair_speeds import SAME_SPEED, PairSpeed, gb, speed_classes
from gputopo.planner.reasons import Links, pairs_of
from gputopo.planner.request import gpus_in_words
from gputopo.runs.history import date_in_words
from gputopo.topology.hops import class_name, is_within, nearness
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.index_ranges import pairs_in_words
from gputopo.values.machine import Hop

_PAIRS_NAMED = 3


class MeasuredOrder(NamedTuple):
    """Pairs by the class of their measured speed; topology decides between pairs of one class.

    `pix_first`: a pair beyond PIX sorts behind all others, however fast it is (`--prefer-pix`).
    """

    speeds: Mapping[Pair, PairSpeed]
    classes: Mapping[Pair, int]
    links: Links
    pix_first: bool

    @classmethod
    def of(cls, speeds: Mapping[Pair, PairSpeed], links: Links, *, pix_first: bool) -> Self:
        """Return the order of these pairs."""
        return cls(speeds, speed_classes(speeds), links, pix_first)

    def key(self, pair: Pair) -> tuple[int, ...]:
        """Return the sort key of a measured pair, the best first."""
        link = self.links.get(pair)
        far = int(self.pix_first and not is_within(link, Hop.PIX))
        return (far, self.classes[pair], *nearness(link))

    def reasons(self, gpus: Sequence[int], others: Sequence[int]) -> list[str]:
        """Return how fast the pairs of the chosen GPUs are, and the fastest pair of `others`."""
        pairs = pairs_of(gpus)
        if not pairs:
            return []
        slowest = self._slowest(gpus)
        said = [self._speed_reason(pairs, slowest)]
        fastest = min(pairs_of(others), key=self._speed_key)
        if self.classes[fastest] < self.classes[slowest]:
            said.append(
                f"the fastest pair to choose from is GPUs {fastest[0]} and {fastest[1]}: "
                f"{self.speeds[fastest].says}"
            )
        elif len(pairs_of(others)) > 1:
            said.append(f"no pair to choose from is faster by more than noise ({SAME_SPEED - 1:.0%})")
        return said

    def slowest_words(self, gpus: Sequence[int]) -> str:
        """Return how fast a set is in a few words: `slowest pair measured 6.5 GB/s, staged`."""
        return "one GPU" if len(gpus) == 1 else f"slowest pair {self.speeds[self._slowest(gpus)].says}"

    def slowest(self, gpus: Sequence[int]) -> str:
        """Return the speed of the slowest pair of a set: `6.5 GB/s`."""
        return f"{gb(self.speeds[self._slowest(gpus)].gb_per_s)} GB/s"

    def _slowest(self, gpus: Sequence[int]) -> Pair:
        return max(pairs_of(gpus), key=lambda pair: (self._speed_key(pair), [-index for index in pair]))

    def _speed_key(self, pair: Pair) -> tuple[int, float]:
        return self.classes[pair], -self.speeds[pair].gb_per_s

    def _speed_reason(self, pairs: Sequence[Pair], slowest: Pair) -> str:
        name = class_name(self.links.get(slowest))
        where = "" if name == "unknown" else f" ({name})"
        if len(pairs) == 1:
            return f"{gpus_in_words(slowest)}{where}: {self.speeds[slowest].says}"
        by_class = Counter(self.classes[pair] for pair in sorted(pairs, key=self._speed_key))
        tally = ", ".join(f"{count} about {gb(self._typical(number))}" for number, count in by_class.items())
        halves = " in one direction" if any(self.speeds[pair].both for pair in pairs) else ""
        return (
            f"slowest pair GPUs {slowest[0]} and {slowest[1]}{where}: {self.speeds[slowest].says}; "
            f"pairs by measured GB/s{halves}: {tally}"
        )

    def _typical(self, number: int) -> float:
        return median(
            self.speeds[pair].gb_per_s for pair, its_class in self.classes.items() if its_class == number
        )


def when_measured(bandwidth: Bandwidth) -> str:
    """Return the source of the numbers, with their date where it is known."""
    sources = " + ".join(dict.fromkeys(bandwidth.source.split(" + ")))
    who = "by gputopo bandwidth" if bandwidth.source == "live" else f"by {sources}"
    when = "" if bandwidth.measured_at is None else f" on {date_in_words(bandwidth.measured_at)}"
    return f"the pairs were measured {who}{when}; each pair by its faster path and slower direction"


def not_used(bandwidth: Bandwidth, missing: Sequence[Pair]) -> str:
    """Return that measured numbers were not used, since some pairs have none."""
    when = "" if bandwidth.measured_at is None else f" of {date_in_words(bandwidth.measured_at)}"
    return (
        f"the measured bandwidth{when} was not used: "
        f"no rate for both directions of {pairs_in_words(missing, max_named=_PAIRS_NAMED)}"
    )
