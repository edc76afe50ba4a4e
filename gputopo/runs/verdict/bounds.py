"""Confidence bounds of the median of a noisy, perhaps autocorrelated series, and of a slope.

Order statistics need no assumption about the shape of the noise: of n independent values, k lie below the
true median with the binomial chance of k heads in n tosses (W. J. Conover, Practical Nonparametric
Statistics, 3rd ed., section 3.2). Steps of a run are not independent, so the margin is widened by the
square root of the integrated autocorrelation time, as the error of a mean would be.

A slope is the median of those of all pairs of blocks that lie far apart (P. K. Sen, Estimates of the
regression coefficient based on Kendall's tau, Journal of the American Statistical Association 63, 1968):
between two levels of a clock this is the difference of the medians. Facts are fitted in turn, each to what
the others leave.
"""

import math
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import combinations, pairwise
from operator import mul, sub
from statistics import NormalDist, correlation, fmean, median

import msgspec

NO_NOISE = 1e-18  # variance of equal values that were computed
# Correlations are summed up to this lag, or a third of the run: beyond, too few pairs are left.
MAX_LAG = 50
# The time corrects the correlations that it is summed from; in three rounds it settles or is plainly long.
BIAS_ROUNDS = 3
# With fewer independent values neither the noise nor its correlation is known.
MIN_EFFECTIVE = 2.0
# Noise that remembers more than this from value to value is as good as a drift. Ours.
MAX_MEMORY = 0.95
# How far off n values of a random walk show how its differences grow, times the root of n: half of
# sqrt(20 / 9), by A. W. Lo and A. C. MacKinlay, Stock market prices do not follow random walks, 1988.
GROWS_ERROR = 0.75
MIN_REMEMBERED = 12  # values; fewer show no memory. Ours.
MAX_STEP = 4.0  # medians of the steps between values; larger ones are changes. Ours.
# Above this time the noise is correlated, not only by chance; and what remembers for a tenth of the run may
# remember for all of it. Ours, by simulation.
CORRELATED, MIN_EFFECTIVE_CORRELATED = 4.0, 15.0
CORRELATED_PART, MIN_EFFECTIVE_PART = 1.5, 25.0  # the same for parts of a series. Ours, by simulation.


def min_values(chance: float) -> int:
    """Return how many values a lower bound of the median needs to be wrong with at most this chance.

    The lowest of n values is above the median with chance 2^-n, and no lower bound is safer than that.
    """
    return max(2, math.ceil(-math.log2(chance)))


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """Median of a series with its bounds. `effective`: independent values that weigh as much as all."""

    low: float
    middle: float
    high: float
    effective: float

    @property
    def half_width(self) -> float:
        """Half of the distance between the bounds."""
        return (self.high - self.low) / 2

    def mapped(self, to: Callable[[float], float]) -> "Interval":
        """Return it with another measure of its values, which grows with them."""
        return Interval(
            low=to(self.low), middle=to(self.middle), high=to(self.high), effective=self.effective
        )


def interval(
    values: Sequence[float], chance: float, time: float | None = None, of: int = 0
) -> Interval | None:
    """Return the median of the process behind `values`, each bound wrong with at most this chance.

    `values` are in the order they were measured. `time`: their correlation time, where it is known from
    more than them: from `of` values. None if there are fewer than `min_values`, or too few by `lacking`.
    """
    ordered = sorted(values)
    rank = _rank(len(ordered), chance)
    if rank is None:
        return None
    middle = median(ordered)
    time = correlation_time(values) if time is None else time
    if lacking(len(values), time, of):
        return None
    effective, known = len(values) / time, max(of, len(values)) / time
    wider = math.sqrt(time) * _shortage(known, chance, time)
    return Interval(
        low=middle - (middle - ordered[rank]) * wider,
        middle=middle,
        high=middle + (ordered[-1 - rank] - middle) * wider,
        effective=effective,
    )


def lacking(count: int, time: float, of: int = 0) -> int:
    """Return how many more values so many of this correlation time need to have bounds; 0: none.

    They must weigh like `MIN_EFFECTIVE`, of plainly correlated noise `MIN_EFFECTIVE_CORRELATED`. `of`: see
    `interval`.
    """
    enough = MIN_EFFECTIVE if time < CORRELATED else MIN_EFFECTIVE_CORRELATED
    # Levels that were fitted to the noise take a part of its correlation away.
    enough_here = MIN_EFFECTIVE if not of or time < CORRELATED_PART else MIN_EFFECTIVE_PART
    return max(0, math.ceil(enough * time - max(of, count)), math.ceil(enough_here * time - count))


def _shortage(effective: float, chance: float, time: float) -> float:
    """Return how much wider bounds are where the noise is known from few independent values.

    By Student's t against the normal quantile. Order statistics of independent values need none of it.
    """
    normal = -NormalDist().inv_cdf(chance)
    return 1 + (students_t(effective - 1, chance) / normal - 1) * min(1.0, time - 1)


def students_t(freedom: float, chance: float) -> float:
    """Return what Student's t is above with this chance, at most 0.5; `freedom` need not be whole.

    By D. L. Wallace, Bounds on normal approximations, Annals of Mathematical Statistics 30(4), 1959.
    """
    normal = -NormalDist().inv_cdf(chance)
    scaled = normal * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(scaled**2 / freedom))


def correlation_time(values: Sequence[float], *, ranked: bool = True) -> float:
    """Return the number of successive values that weigh as much as one independent value: 1 or more.

    `ranked`: of ranks, so that single stalls do not hide a slow drift. The sum over the lags ends where the
    sum of two neighbours is no longer positive (C. J. Geyer, Practical Markov Chain Monte Carlo, Statistical
    Science 7(4), 1992, section 3.3). A few values of a long drift vary little around their own mean: where
    neighbours are plainly alike, what they remember counts.
    """
    levels = ranks_of(values) if ranked else values
    count = len(levels)
    mean = sum(levels) / count
    centred = [level - mean for level in levels]
    variance = sum(map(mul, centred, centred))
    if variance <= NO_NOISE * count:
        return 1.0

    known: list[float] = []  # correlations by lag

    last = 2 * (min(MAX_LAG, count // 3) // 2) + 1
    time = 1.0
    for _ in range(BIAS_ROUNDS):
        total = -1.0
        for lag in range(0, last, 2):
            # Around the mean of the run, correlations come out low by about time/count times what they lack
            # to 1.
            lack = (time - 1) / count
            for more in range(len(known), lag + 2):
                known.append(sum(map(mul, centred, centred[more:])) / variance)
            pair = (known[lag] + known[lag + 1]) * (1 - lack) + 2 * lack
            if pair <= 0:
                break
            total += 2 * pair
        time = max(1.0, total)
    if memory_time(values) < CORRELATED:
        return time
    return max(time, memory_time(values, 1 + GROWS_ERROR / math.sqrt(count)))


def memory_time(values: Sequence[float], longer: float = 1.0) -> float:
    """Return the correlation time of noise that forgets alike from value to value, whatever its levels.

    Of such noise, differences over three values have 1 + r + r^2 times the variance of those over one, where
    r is the correlation of neighbours, and its time is (1 + r) / (1 - r). Single changes are cut.
    `longer`: times by which differences over three values may be larger than was seen.
    """
    if len(values) < MIN_REMEMBERED:
        return 1.0
    one, three = (sorted(map(abs, map(sub, values[lag:], values))) for lag in (1, 3))
    limit = MAX_STEP * one[len(one) // 2]
    if limit <= 0:
        return 1.0
    grows = longer * _mean_up_to(limit, three) / _mean_up_to(limit, one)
    memory = min((math.sqrt(max(4 * grows**2 - 3, 1.0)) - 1) / 2, MAX_MEMORY)
    return (1 + memory) / (1 - memory)


def _mean_up_to(limit: float, ordered: Sequence[float]) -> float:
    count = bisect(ordered, limit)
    return (sum(ordered[:count]) + limit * (len(ordered) - count)) / len(ordered)


@cache
def _rank(count: int, chance: float) -> int | None:
    """Return the place (from 0) of the highest value whose chance to be above the median is small enough."""
    # In logarithms: 2^-n is no longer a float for runs of more than 1074 steps.
    log_term = -count * math.log(2)
    below, rank = math.exp(log_term), None
    for heads in range(count // 2 + 1):
        if below > chance:
            break
        rank = heads
        log_term += math.log((count - heads) / (heads + 1))
        below += math.exp(log_term)
    return rank


def ranks_of(values: Sequence[float]) -> list[float]:
    """Return the places of the values in their order, from 0; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    if len(set(values)) == len(values):
        for place, of in enumerate(order):
            ranks[of] = place
        return ranks
    ends = [0, *(i for i, (a, b) in enumerate(pairwise(order), 1) if values[a] != values[b]), len(order)]
    for start, end in pairwise(ends):
        for place in range(start, end):
            ranks[order[place]] = (start + end - 1) / 2  # equal values share the mean of their places
    return ranks


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
    error = _WIDER * sigma * math.sqrt(correlation_time(rest) / spread) * students_t(len(x) - 2, CHANCE)
    return Slope(low=middle - error, middle=middle, high=middle + error)
