"""Where a series changed: parts of a run with levels of their own, and slow single steps all over it. Pure.

A change is looked for where the ranks before and after differ most (A. N. Pettitt, A non-parametric approach
to the change-point problem, Applied Statistics 28(2), 1979), and counts if the intervals of both medians do
not overlap. Each part is searched again.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean, median, stdev

import msgspec

from gputopo.runs.median_bound import correlation_time, interval, ranks_of, students_t
from gputopo.runs.verdict.thresholds import POWER

# Values of a part at least: fewer have no bounds at the chances that are asked for. And steps: what is over
# within fewer is no level. Ours.
MIN_PART, MIN_PART_STEPS = 20, 40
# Each bound of the median of a part that only divides: what is said of a part has a smaller chance. Ours.
CHANGE_CHANCE = 0.01
MAX_DEPTH = 3  # changes within changes: eight parts at most
# A slow single step is this far from the fast ones, in their deviations and at least. Ours.
DEVIATIONS, MIN_AWAY = 4.0, 0.03
# Slow steps that make a pattern at least, and how many times as many as fast ones: what hits a device and its
# peers alike is noise. Ours.
MIN_SLOW, TIMES_AS_MANY = 10, 3
MIN_EPISODES = 5  # what comes so often comes again; a program that was started four times need not
# Quantiles 5 % and 25 % of normal noise are 1.645 and 0.674 deviations below its median.
_Q05, _Q25 = 1.645, 0.674


class Dips(msgspec.Struct, frozen=True, kw_only=True):
    """Slow steps all over a run. `share` of the steps, 0 to 1; `level` of the fast ones; `away` from it.

    `mean_low`: lower bound of the mean distance of all steps from the level.
    """

    share: float
    level: float
    away: float
    mean_low: float


def parts(values: Sequence[float], size: int = 1) -> list[tuple[int, int]]:
    """Return the parts of a series with levels of their own: begin and end (not included) of each.

    `size`: steps of each value.
    """
    smallest = max(MIN_PART, -(-MIN_PART_STEPS // size))
    return [*pairwise([0, *_changes(values, 0, smallest, MAX_DEPTH), len(values)])]


def residual_time(values: Sequence[float], spans: Sequence[tuple[int, int]]) -> float:
    """Return the correlation time of what is left when each part is brought to the same median.

    A change may take its time, as heat does: the quarter of a part next to a change is left out.
    """
    levelled: list[float] = []
    for begin, end in spans:
        level, quarter = median(values[begin:end]), (end - begin) // 4
        first = begin + quarter if begin else begin
        last = end - quarter if end < len(values) else end
        levelled += [value - level for value in values[first:last]]
    return correlation_time(levelled)


def dips(values: Sequence[float]) -> Dips | None:
    """Return the slow steps that are no noise, None where there are none.

    Noise is as often below as above; its deviation is that of the fast half of the values.
    """
    if len(values) < 3 * MIN_PART:
        return None
    ordered = sorted(values)
    q05, q25 = ordered[len(ordered) // 20], ordered[len(ordered) // 4]
    sigma = (q25 - q05) / (_Q05 - _Q25)
    level = q25 + _Q25 * sigma
    away = max(MIN_AWAY, DEVIATIONS * sigma)
    slow = [value - level for value in values if value > level + away]
    fast = sum(value < level - away for value in values)
    starts = _starts(values, level + away / 2, level + away)
    if len(slow) < TIMES_AS_MANY * fast + MIN_SLOW or len(starts) < MIN_EPISODES:
        return None
    # Of each stretch of slow steps and the fast ones until the next.
    cycles = [fmean(values[begin:end]) - level for begin, end in pairwise(starts)]
    error = stdev(cycles) / len(cycles) ** 0.5 * students_t(len(cycles) - 1, 1 - POWER)
    return Dips(share=len(slow) / len(values), level=level, away=median(slow), mean_low=fmean(cycles) - error)


def _starts(values: Sequence[float], low: float, high: float) -> list[int]:
    """Return where stretches above `high` begin; one is over when values are below `low` again."""
    starts, inside = [], False
    for place, value in enumerate(values):
        if not inside and value > high:
            starts.append(place)
            inside = True
        inside = inside and value > low
    return starts


def _changes(values: Sequence[float], begin: int, smallest: int, depth: int) -> list[int]:
    place = _change(values, smallest) if depth else None
    if place is None:
        return []
    return [
        *_changes(values[:place], begin, smallest, depth - 1),
        begin + place,
        *_changes(values[place:], begin + place, smallest, depth - 1),
    ]


def _change(values: Sequence[float], smallest: int) -> int | None:
    count = len(values)
    if count < 2 * smallest:
        return None
    sums = list(accumulate(rank - (count - 1) / 2 for rank in ranks_of(values)))
    place = max(range(smallest, count - smallest + 1), key=lambda end: abs(sums[end - 1]))
    time = residual_time(values, [(0, place), (place, count)])
    before = interval(values[:place], CHANGE_CHANCE, time, of=count)
    after = interval(values[place:], CHANGE_CHANCE, time, of=count)
    if before is None or after is None:
        return None
    return place if before.high < after.low or after.high < before.low else None
