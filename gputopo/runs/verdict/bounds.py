"""Confidence bounds of the mean of a noisy, perhaps correlated series, and of a slope.

The error of a mean follows from the means of batches of successive values, by Student's t (B. Schmeiser,
Batch size effects in the analysis of simulation output, Operations Research 30(3), 1982). If batches are
still correlated, n of them count as n (1 - r) / (1 + r), and r is the correlation of neighbours (G. V. Bayley
and J. M. Hammersley, The "effective" number of independent observations in an autocorrelated time series,
Supplement to the Journal of the Royal Statistical Society 8(2), 1946).

A slope is the median of the slopes of all pairs of blocks that lie far apart (P. K. Sen, Estimates of the
regression coefficient based on Kendall's tau, Journal of the American Statistical Association 63, 1968):
between two levels of a clock this is the difference of the medians. Facts are fitted in turn, each to what
the others leave.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from statistics import correlation, fmean, median

import msgspec

from gputopo.values.run.noise import Error, error_of, students_t

# In the typical step, a value beyond so many deviations from the median counts as just there. By simulation:
# bursts and stalls of other devices hide a loss of 5% for less time than with 3 or 4.
OUTLIER = 2.0
MIN_AWAY = 0.03  # but not a value that is closer. Not measured; chosen because 3% is what is called slow.


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A mean with its bounds. `effective`: independent values that weigh as much."""

    low: float
    middle: float
    high: float
    effective: float

    def mapped(self, to: Callable[[float], float]) -> "Interval":
        """Return it with another measure of its values, which grows with them."""
        return msgspec.structs.replace(self, low=to(self.low), middle=to(self.middle), high=to(self.high))


def min_values(chance: float) -> int:
    """Return how many independent values a lower bound needs to be wrong with at most this chance.

    With chance 2^-n all of n values are above their median, whatever the noise, and a bound with them.
    """
    return math.ceil(-math.log2(chance))


def mean_bounds(values: Sequence[float], chance: float) -> Interval | None:
    """Return the mean of `values`, in the order of their steps, with bounds; None for fewer than two.

    Each bound is wrong with this chance at most.
    """
    return _interval(fmean(values), error_of(values), chance) if len(values) > 1 else None


def level_bounds(values: Sequence[float], chance: float) -> Interval | None:
    """Return the typical value with bounds: the mean without outliers."""
    return mean_bounds(without_outliers(values), chance)


def part_bounds(values: Sequence[float], chance: float) -> Interval:
    """Return the typical value in a part of a run with bounds.

    The slope of a part is no noise: a change may take its time, as heat does.
    """
    part = without_outliers(values)
    half, middle = len(part) // 2, (len(part) - 1) / 2
    slope = (median(part[half:]) - median(part[:half])) / (len(part) - half)
    level = [value - slope * (place - middle) for place, value in enumerate(part)]
    return _interval(fmean(part), error_of(level, lines=2), chance)


def _interval(middle: float, error: Error, chance: float) -> Interval:
    width = error.size * students_t(error.freedom, chance)
    return Interval(low=middle - width, middle=middle, high=middle + width, effective=error.effective)


def without_outliers(values: Sequence[float]) -> list[float]:
    """Return the values with those beyond `OUTLIER` deviations from the median brought there."""
    if not values:
        return []
    level = median(values)
    limit = max(MIN_AWAY, OUTLIER * _DEVIATION * median(abs(value - level) for value in values))
    return [min(max(value, level - limit), level + limit) for value in values]


# Blocks of a series at most, rows of a block at least, blocks at least. Ours.
MAX_BLOCKS, MIN_ROWS, MIN_BLOCKS = 40, 3, 8
# A fact that varied by less shows nothing: of a gap of 5 % it is a tenth. Ours.
MIN_VARIED = 0.005
FAR = 0.5  # of the range of the fact: pairs of blocks closer than that are mostly noise. Ours.
# Two facts that vary together so much cannot be told apart. Ours.
MAX_CORRELATION = 0.9
ROUNDS = 4  # of fitting in turn; by then they have settled
CHANCE = 0.025  # of each bound of a slope
# A deviation from the absolute one of normal noise, and how much wider the median is than the mean.
_DEVIATION, _WIDER = 1.4826, math.sqrt(math.pi / 2)


class Slope(msgspec.Struct, frozen=True, kw_only=True):
    """How much the gap changes with the fact: 1 is one to one. `low`, `high`: bounds of 95 %."""

    low: float
    middle: float
    high: float


def slopes(gap: Sequence[float], facts: Mapping[str, Sequence[float]]) -> dict[str, Slope]:
    """Return the slopes of the facts that varied enough, and not with another one.

    `gap`, `facts`: by row, all known.
    """
    starts = _starts(len(gap))
    if len(starts) < MIN_BLOCKS + 1:
        return {}
    y = [fmean(gap[begin:end]) for begin, end in pairwise(starts)]
    blocks = {
        name: [fmean(values[begin:end]) for begin, end in pairwise(starts)] for name, values in facts.items()
    }
    varied = {name: x for name, x in blocks.items() if max(x) - min(x) >= MIN_VARIED}
    alone = {
        name: x
        for name, x in varied.items()
        if not any(
            abs(correlation(x, other)) > MAX_CORRELATION for key, other in varied.items() if key != name
        )
    }
    middles = dict.fromkeys(alone, 0.0)
    for _ in range(ROUNDS if len(alone) > 1 else 1):
        for name, x in alone.items():
            middles[name] = _slope(x, _without(y, alone, {**middles, name: 0.0}))
    rest = _without(y, alone, middles)
    return {name: _bounds(x, rest, middles[name]) for name, x in alone.items()}


def _starts(rows: int) -> list[int]:
    blocks = min(MAX_BLOCKS, rows // MIN_ROWS)
    return [rows * block // blocks for block in range(blocks + 1)] if blocks else []


def _without(
    y: Sequence[float], facts: Mapping[str, Sequence[float]], middles: Mapping[str, float]
) -> list[float]:
    return [
        value - sum(middles[name] * x[place] for name, x in facts.items()) for place, value in enumerate(y)
    ]


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    far = FAR * (max(x) - min(x))
    return median(
        (b_y - a_y) / (b_x - a_x)
        for (a_x, a_y), (b_x, b_y) in combinations(zip(x, y, strict=True), 2)
        if abs(b_x - a_x) >= far
    )


def _bounds(x: Sequence[float], rest: Sequence[float], middle: float) -> Slope:
    level, mean = median(rest), fmean(x)
    sigma = _DEVIATION * median(abs(value - level) for value in rest)
    spread = sum((value - mean) ** 2 for value in x)
    error = (
        _WIDER
        * sigma
        * math.sqrt(len(rest) / error_of(rest).effective / spread)
        * students_t(len(x) - 2, CHANCE)
    )
    return Slope(low=middle - error, middle=middle, high=middle + error)
