"""Confidence bounds of the slope of a gap over facts that vary with it.

A slope is the median of the slopes of all pairs of blocks that are far apart (P. K. Sen, Estimates of the
regression coefficient based on Kendall's tau, Journal of the American Statistical Association 63, 1968).
Between two levels of a clock, this is the difference of the medians. Facts are fitted in turn, each to what
the others do not explain.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from statistics import correlation, fmean, median

import msgspec

from gputopo.values.run.noise import MAD_TO_SIGMA, error_of, students_t

# Maximum blocks of a series, minimum rows of a block, minimum blocks. Not measured.
MAX_BLOCKS, MIN_ROWS, MIN_BLOCKS = 40, 3, 8
# A fact that varied by less shows nothing. Not measured; chosen because it is a tenth of a gap of 5 %.
MIN_VARIED = 0.005
FAR = 0.5  # share of the fact's range: closer pairs of blocks are mostly noise. Not measured.
# Two facts with a higher correlation cannot be told apart. Not measured.
MAX_CORRELATION = 0.9
ROUNDS = 4  # iterations of fitting in turn; this converges
CHANCE = 0.025  # chance of error of each bound of a slope

_WIDER = math.sqrt(math.pi / 2)


class Slope(msgspec.Struct, frozen=True, kw_only=True):
    """How much the gap changes with the fact: 1 is one to one. `low`, `high`: bounds of 95 %."""

    low: float
    middle: float
    high: float


def slopes(gap: Sequence[float], facts: Mapping[str, Sequence[float]]) -> dict[str, Slope]:
    """Return the slopes of the facts that varied enough, and not together with another fact.

    `gap`, `facts`: by row; all values are known.
    """
    rows = len(gap)
    count = min(MAX_BLOCKS, rows // MIN_ROWS)
    if count < MIN_BLOCKS:
        return {}
    starts = [rows * block // count for block in range(count + 1)]
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
    sigma = MAD_TO_SIGMA * median(abs(value - level) for value in rest)
    spread = sum((value - mean) ** 2 for value in x)
    error = (
        _WIDER
        * sigma
        * math.sqrt(len(rest) / error_of(rest).effective / spread)
        * students_t(len(x) - 2, CHANCE)
    )
    return Slope(low=middle - error, middle=middle, high=middle + error)
