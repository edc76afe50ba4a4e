"""Where a series changed: parts of a run with levels of their own; its mean, with slow single steps. Pure.

A change is looked for where the ranks before and after differ most (A. N. Pettitt, A non-parametric approach
to the change-point problem, Applied Statistics 28(2), 1979). Each part is searched again. A change counts if
the intervals of the medians on both sides do not overlap, by the noise that is left within all parts.
"""

import math
from bisect import bisect, bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import mul
from statistics import fmean, median

import msgspec

from gputopo.runs.verdict.bounds import (
    Interval,
    correlation_time,
    interval,
    lacking,
    memory_time,
    ranks_of,
    students_t,
)
from gputopo.runs.verdict.words import FALSE_ALARM, SLOW_PERCENT

# Values of a part at least: fewer have no bounds at the chances that are asked for. And steps: what is over
# within fewer is no level. Ours.
MIN_PART, MIN_PART_STEPS = 14, 40
MIN_OF_PATTERN = 60  # values that are searched for slow single steps. Ours.
# Each bound of the median of a part that only divides: what is said of a part has a smaller chance. Ours.
CHANGE_CHANCE = 0.01
CANDIDATE_CHANCE = 0.1  # of what is looked at as a change; what noise explains is joined again. Ours.
MAX_PARTS = 8  # of a series: three slow episodes and what is around them. Ours.
# A slow single step is this far from the fast ones, in their deviations and at least. Ours.
DEVIATIONS, MIN_AWAY = 4.0, 0.03
# Slow steps that make a pattern at least, and how many times as many as fast ones: what hits a device and its
# peers alike is noise. Ours.
MIN_SLOW, TIMES_AS_MANY = 10, 3
MIN_EPISODES = 4  # what comes so often, and as regularly, comes again
# Chance that cycles of nothing look like a loss on one of two devices, and that a device has more episodes
# than the others. By simulation of bursts.
AGAIN, MORE = 0.01, 0.04
# Quantiles 5 % and 25 % of normal noise are 1.645 and 0.674 deviations below its median.
_Q05, _Q25 = 1.645, 0.674


def parts(values: Sequence[float], size: int = 1) -> list[tuple[int, int]]:
    """Return the parts of a series with levels of their own: begin and end (not included) of each.

    `size`: steps of each value.
    """
    smallest = _smallest(size)
    places = _candidates(values, smallest)
    return _without_noise(values, [*pairwise([0, *places, len(values)])])


def _smallest(size: int) -> int:
    return max(MIN_PART, -(-MIN_PART_STEPS // size))


def differs_somewhere(values: Sequence[float], size: int) -> bool:
    """Whether half of a part is slow, or fast, by its median; elsewhere no part is."""
    half = _smallest(size) // 2
    starts = range(0, len(values), half)
    return any(abs(median(values[start : start + half])) > SLOW_PERCENT / 100 for start in starts)


def residual_time(values: Sequence[float], spans: Sequence[tuple[int, int]]) -> float:
    """Return the correlation time of what is left when each part is brought to one level, without its slope.

    A change may take its time, as heat does: the quarter of a part next to a change is left out.
    """
    levelled: list[float] = []
    for begin, end in spans:
        quarter = (end - begin) // 4
        first = begin + quarter if begin else begin
        last = end - quarter if end < len(values) else end
        part = values[first:last]
        half = len(part) // 2
        early, late = median(part[:half]), median(part[half:])
        slope = (late - early) / (len(part) - half)
        middle = (len(part) - 1) / 2
        levelled += [
            value - slope * (place - middle) - (early + late) / 2 for place, value in enumerate(part)
        ]
    return correlation_time(levelled)


def mean_bounds(
    values: Sequence[float], chance: float, others: Sequence[Sequence[float]] = ()
) -> Interval | None:
    """Return the mean of `values` with bounds; None: too few independent ones.

    The lower bound, which accuses, is wrong with at most this chance, the upper one with `FALSE_ALARM`. Where
    values are slow again and again beyond any noise, and on this device alone or as regularly, the lower
    bound is that of what was lost in them: only the noise of the other values is unsure.
    `others`: the same of the other devices; what hits all of them alike is noise.
    """
    count, mean = len(values), fmean(values)
    if (found := slow_limit(values)) is not None:
        level, limit = found
        starts, *of_others = (_starts(one, (level + limit) / 2, limit) for one in (values, *others))
        alike = _chance_of_as_many(len(starts), [*map(len, of_others)])
        if len(starts) >= MIN_EPISODES and alike <= MORE:
            cycle = fmean(values[starts[0] : starts[-1]])
            length = (starts[-1] - starts[0]) / (len(starts) - 1)
            more = [sum(value - cycle for value in values[begin:end]) for begin, end in pairwise(starts)]
            chance_of_each = 2 * AGAIN / max(2, 1 + len(others))
            again = _by_students_t(cycle, _deviation(more) / length, len(more), chance_of_each)
            if again.low > 0 or alike <= chance:
                noise = [level if value > limit else value for value in values]
                time = correlation_time(noise, ranked=False)
                lost = _by_students_t(mean, _deviation(noise), count / time, chance)
                return msgspec.structs.replace(
                    lost, high=max(lost.high, again.high), effective=again.effective
                )
    time = correlation_time(values, ranked=False)
    if count < 2 or lacking(count, time, chance):
        return None
    return _by_students_t(mean, _deviation(values), count / time, chance)


def _chance_of_as_many(episodes: int, of_others: Sequence[int]) -> float:
    """Return with what chance one of several devices that are alike has so many of all episodes or more."""
    every, share = episodes + sum(of_others), 1 / (1 + max(1, len(of_others)))
    return math.fsum(  # the binomial tail; by logarithms, as long runs have thousands of episodes
        math.exp(
            math.lgamma(every + 1)
            - math.lgamma(one + 1)
            - math.lgamma(every - one + 1)
            + one * math.log(share)
            + (every - one) * math.log1p(-share)
        )
        for one in range(episodes, every + 1)
    )


def _deviation(values: Sequence[float]) -> float:
    mean = fmean(values)  # `statistics.stdev` is exact, and a hundred times as slow
    centred = [value - mean for value in values]
    return math.sqrt(sum(map(mul, centred, centred)) / (len(values) - 1))


def _by_students_t(mean: float, deviation: float, count: float, chance: float) -> Interval:
    error = deviation / math.sqrt(count)
    low, high = (error * students_t(count - 1, one) for one in (chance, FALSE_ALARM))
    return Interval(low=mean - low, middle=mean, high=mean + high, effective=count)


def slow_limit(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the level of the fast values, and above what a value is too slow for noise; None: none is.

    Noise is as often below as above; its deviation is that of the fast half of the values.
    """
    if len(values) < MIN_OF_PATTERN:
        return None
    ordered = sorted(values)
    q05, q25 = ordered[len(ordered) // 20], ordered[len(ordered) // 4]
    sigma = (q25 - q05) / (_Q05 - _Q25)
    level = q25 + _Q25 * sigma
    away = max(MIN_AWAY, DEVIATIONS * sigma)
    slow, fast = len(ordered) - bisect(ordered, level + away), bisect_left(ordered, level - away)
    return (level, level + away) if slow >= TIMES_AS_MANY * fast + MIN_SLOW else None


def _starts(values: Sequence[float], low: float, high: float) -> list[int]:
    """Return where stretches above `high` begin; one is over when values are below `low` again."""
    starts, inside = [], False
    for place, value in enumerate(values):
        if not inside and value > high:
            starts.append(place)
            inside = True
        inside = inside and value > low
    return starts


def _candidates(values: Sequence[float], smallest: int) -> list[int]:
    """Return where a series may have changed, the plainest changes first until there are `MAX_PARTS`.

    Each part is searched again, by the noise of neighbouring values, so that further changes within a part do
    not hide one; what is only correlated noise is sorted out afterwards.
    """
    found: list[int] = []
    waiting = [_change(values, 0, len(values), smallest)]
    while waiting and len(found) < MAX_PARTS - 1:
        plainest = max(waiting)
        waiting.remove(plainest)
        weight, begin, place, end = plainest
        if 2 * math.exp(-weight) > CANDIDATE_CHANCE:
            break
        found.append(place)
        waiting += [_change(values, begin, place, smallest), _change(values, place, end, smallest)]
    return sorted(found)


def _change(values: Sequence[float], begin: int, end: int, smallest: int) -> tuple[float, int, int, int]:
    """Return how much a change in a part weighs, after its begin and before its end where it may be."""
    part = values[begin:end]
    count = len(part)
    if count < 2 * smallest:
        return 0.0, begin, begin, end
    sums = list(accumulate(rank - (count - 1) / 2 for rank in ranks_of(part)))
    place = max(range(smallest, count - smallest + 1), key=lambda last: abs(sums[last - 1]))
    # By Pettitt; correlated values weigh like fewer.
    weight = 24 * sums[place - 1] ** 2 / (count**3 + count**2) / memory_time(part)
    return weight, begin, begin + place, end


def _without_noise(values: Sequence[float], spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join parts that correlated noise explains, those that are closest first."""
    while len(spans) > 1:
        time = residual_time(values, spans)
        alike = [
            place
            for place, (one, other) in enumerate(pairwise(spans))
            if not _differ(values, one, other, time, of=len(values))
        ]
        if not alike:
            break
        levels = [median(values[begin:end]) for begin, end in spans]
        closest = min(alike, key=lambda place: abs(levels[place + 1] - levels[place]))
        spans = [*spans[:closest], (spans[closest][0], spans[closest + 1][1]), *spans[closest + 2 :]]
    return spans


def _differ(
    values: Sequence[float], one: tuple[int, int], other: tuple[int, int], time: float, of: int = 0
) -> bool:
    """Whether the intervals of the medians of two parts do not overlap. `time`: correlation of the noise."""
    first = interval(values[slice(*one)], CHANGE_CHANCE, time, of=of)
    second = interval(values[slice(*other)], CHANGE_CHANCE, time, of=of)
    if first is None or second is None:
        return False
    return first.high < second.low or second.high < first.low
