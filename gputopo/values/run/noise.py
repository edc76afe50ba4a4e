"""The noise of a run's figures: standard errors of consecutive values, and of rounds."""

import math
from collections.abc import Sequence
from itertools import pairwise
from operator import mul
from statistics import NormalDist, fmean, median, stdev
from typing import NamedTuple

from gputopo.values.run.plan import TimedRun

# Maximum number of batches of a series. Not measured; chosen because Student's t for 60 is within 10% of the
# normal distribution at the chances of verdicts, and longer batches show noise that lasts longer.
MAX_BATCHES = 60
# Minimum degrees of freedom of Student's t for correlated values. Not measured; chosen because with fewer the
# bounds are too wide to be useful.
MIN_FREEDOM = 2.0
NO_NOISE = 1e-18  # maximum variance of computed values that are equal


class Error(NamedTuple):
    """Standard error of a mean. `effective`: the number of independent values with the same error.

    `freedom`: degrees of freedom of its `size`, for Student's t.
    """

    size: float
    effective: float
    freedom: float


def error_of(values: Sequence[float], lines: int = 1) -> Error:
    """Return the standard error of the mean of `values` (at least two), in the order of their steps.

    `lines`: 2 if their slope was removed, else 1.
    """
    count = len(values)
    batches = min(count, MAX_BATCHES)
    starts = [count * batch // batches for batch in range(batches + 1)]
    means = values if batches == count else [fmean(values[begin:end]) for begin, end in pairwise(starts)]
    squares, alike = _alike(means)
    if squares <= NO_NOISE * batches:
        return Error(size=0.0, effective=count, freedom=batches - 1)
    # Relative to their own mean, or line, values look less correlated than they are (M. G. Kendall, Note on
    # bias in the estimation of autocorrelation, Biometrika 41, 1954; for a line twice as much).
    alike = min(max(alike + (lines + (2 + lines) * alike) / batches, 0.0), 1 - 1 / batches)
    effective = batches * (1 - alike) / (1 + alike)
    size = math.sqrt(squares / (batches - 1) / effective)
    return Error(
        size=size,
        effective=min(count, _alike(values)[0] / (count - 1) / size**2),
        freedom=max(effective - 1, min(batches - 1, MIN_FREEDOM)),
    )


def error_of_ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the standard error of the ratio of two sums, as a share of it; 0 for fewer than two values.

    By Student's t, it is exceeded twofold in 5 % of cases, even with few values.
    """
    if len(values) < 2 or sum(others) <= 0 or sum(values) <= 0:
        return 0.0
    ratio = sum(values) / sum(others)
    error = error_of([value - ratio * other for value, other in zip(values, others, strict=True)])
    return error.size / fmean(values) * students_t(error.freedom, 0.025) / 2


def _alike(values: Sequence[float]) -> tuple[float, float]:
    """Return the sum of squared deviations from the mean, and the correlation of neighbours."""
    mean = fmean(values)
    centred = [value - mean for value in values]
    squares = sum(map(mul, centred, centred))
    return squares, sum(map(mul, centred, centred[1:])) / squares if squares > 0 else 0.0


def students_t(freedom: float, chance: float) -> float:
    """Return the value that Student's t exceeds with this chance (at most 0.5); `freedom` may be a fraction.

    By D. L. Wallace, Bounds on normal approximations, Annals of Mathematical Statistics 30(4), 1959.
    """
    normal = -NormalDist().inv_cdf(chance)
    scaled = normal * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(scaled**2 / freedom))


# Makes the median absolute deviation of normal noise equal to its standard deviation: 1 / Phi^-1(3/4).
MAD_TO_SIGMA = 1.4826
FOR_MAD = 5  # rounds: with fewer, the median absolute deviation is often near 0
# Student's t, 97.5 %, for 1, 2, ... degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2).
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def lead(faster: Sequence[TimedRun], slower: Sequence[TimedRun]) -> tuple[float, float]:
    """Return by how much one is faster, as a logarithm, and the noise of it; infinite for one round."""
    pairs = list(zip(faster, slower, strict=False))
    ratios = [math.log(a.images_per_sec / b.images_per_sec) for a, b in pairs]
    middle, rounds = median(ratios), len(ratios)
    if rounds < 2:
        return middle, math.inf
    if rounds < FOR_MAD:
        deviation = stdev(ratios)
    else:
        deviation = MAD_TO_SIGMA * median(abs(ratio - middle) for ratio in ratios)
    within = median(math.hypot(a.noise, b.noise) for a, b in pairs)
    t = _T[min(rounds - 1, len(_T)) - 1]
    return middle, t * max(deviation, within) / math.sqrt(rounds)
