"""Confidence bounds of the mean of a noisy, possibly correlated series.

The error of a mean comes from the means of batches of successive values, by Student's t (B. Schmeiser, Batch
size effects in the analysis of simulation output, Operations Research 30(3), 1982). If batches are still
correlated, n of them count as n (1 - r) / (1 + r), where r is the correlation of neighbours (G. V. Bayley and
J. M. Hammersley, The "effective" number of independent observations in an autocorrelated time series,
Supplement to the Journal of the Royal Statistical Society 8(2), 1946).
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median

import msgspec

from gputopo.values.run.noise import MAD_TO_SIGMA, Error, error_of, students_t

# For the typical step, values farther than this many deviations from the median are moved to this distance.
# In simulations, bursts and stalls of other devices hide a loss of 5% for less time than with 3 or 4.
OUTLIER = 2.0
MIN_AWAY = 0.03  # Closer values are not moved. Not measured; chosen because 3% is what is called slow.


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A mean with its bounds. `effective`: the number of independent values with the same weight."""

    low: float
    middle: float
    high: float
    effective: float

    def mapped(self, to: Callable[[float], float]) -> "Interval":
        """Return the interval in another unit. `to` must increase with the values."""
        return msgspec.structs.replace(self, low=to(self.low), middle=to(self.middle), high=to(self.high))


def min_values(chance: float) -> int:
    """Return how many independent values a lower bound needs to be wrong with at most this chance.

    All of n values are above their median with chance 2^-n, whatever the noise; then a bound is above it too.
    """
    return math.ceil(-math.log2(chance))


def mean_bounds(values: Sequence[float], chance: float) -> Interval | None:
    """Return the mean of `values`, in the order of their steps, with bounds; None for fewer than two.

    Each bound is wrong with at most this chance.
    """
    return _interval(fmean(values), error_of(values), chance) if len(values) > 1 else None


def level_bounds(values: Sequence[float], chance: float) -> Interval | None:
    """Return the typical value with bounds: the mean without outliers."""
    return mean_bounds(without_outliers(values), chance)


def part_bounds(values: Sequence[float], chance: float) -> Interval:
    """Return the typical value in a part of a run, with bounds.

    A slope within the part is not noise: a change may take time, as heating does.
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
    """Return the values; those beyond `OUTLIER` deviations from the median are moved to that distance."""
    if not values:
        return []
    level = median(values)
    limit = max(MIN_AWAY, OUTLIER * MAD_TO_SIGMA * median(abs(value - level) for value in values))
    return [min(max(value, level - limit), level + limit) for value in values]
