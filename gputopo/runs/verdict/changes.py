"""Where a series changed: parts of a run with different levels; its mean, with slow single steps.

A change is searched where the ranks before and after differ most (A. N. Pettitt, A non-parametric approach to
the change-point problem, Applied Statistics 28(2), 1979). Each part is searched again. A change is real if
the bounds of the levels on both sides do not overlap.
"""

import math
from bisect import bisect, bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean

import msgspec

from gputopo.runs.verdict.bounds import MIN_AWAY, Interval, mean_bounds, part_bounds

# Minimum values of a part: fewer have no bounds at the requested chances. And minimum steps. Not measured;
# chosen because a shorter disturbance is not a level.
MIN_PART, MIN_PART_STEPS = 14, 40
Span = tuple[int, int]  # begin, and end (not included), of a part
MIN_OF_PATTERN = 60  # minimum number of values to search for slow single steps. Not measured.
# Chance of error of each bound of a part's level, used only to divide. A verdict on a part has a smaller
# chance. Not measured.
CHANGE_CHANCE = 0.01
CANDIDATE_CHANCE = 0.1  # for a possible change; those that noise explains are joined again. Not measured.
MAX_PARTS = 8  # of a series. Not measured; chosen for three slow episodes and the parts around them.
PLACES = MAX_PARTS**3  # possible begins and ends of the part that is chosen for its level
DEVIATIONS = 4.0  # a step this far above the level of the fast steps is slow. Not measured.
# Minimum number of slow steps in a pattern, and their minimum ratio to fast ones. Not measured; chosen
# because what affects a device and its peers alike is noise.
MIN_SLOW, TIMES_AS_MANY = 10, 3
# The quantiles 5 % and 25 % of normal noise are 1.645 and 0.674 deviations below its median.
_Q05, _Q25 = 1.645, 0.674


def parts(values: Sequence[float], size: int = 1) -> list[Span]:
    """Return the parts of a series with different levels: begin and end (not included) of each.

    `size`: number of steps in each value.
    """
    smallest = max(MIN_PART, -(-MIN_PART_STEPS // size))
    places = _candidates(values, smallest)
    return _without_noise(values, [*pairwise([0, *places, len(values)])])


def lost_bounds(
    values: Sequence[float],
    chance: float,
    pattern: tuple[float, float] | None,
    others: Sequence[Sequence[float]],
) -> Interval | None:
    """Return the mean of the time lost, with bounds; None for fewer than two values.

    Each bound is wrong with at most this chance. If slow values recur beyond any noise, and only on this
    device or regularly, they are certain: the lower bound includes only the noise of the other values.

    `pattern`: the `slow_limit` of the values. `others`: the same series for the other devices; what affects
    all of them alike is noise.
    """
    plain = mean_bounds(values, chance)
    if plain is None or pattern is None:
        return plain
    level, limit = pattern
    starts, *of_others = (_starts(series, (level + limit) / 2, limit) for series in (values, *others))
    alike = _chance_of_as_many(len(starts), [*map(len, of_others)])
    cycles = [fmean(values[begin:end]) for begin, end in pairwise(starts)]
    # That it is only on this device, and that it is regular, are two tests: their chances multiply.
    again = mean_bounds(cycles, chance / alike if alike > 2 * chance else 0.5)
    noise = mean_bounds([level if value > limit else value for value in values], chance)
    if again is None or again.low <= 0 or noise is None:
        return plain
    return msgspec.structs.replace(
        plain, low=plain.middle - (noise.middle - noise.low), effective=noise.effective
    )


def _chance_of_as_many(episodes: int, of_others: Sequence[int]) -> float:
    """Return an upper bound of the chance that one of several equal devices has this many episodes.

    By H. Chernoff, A measure of asymptotic efficiency for tests of a hypothesis based on the sum of
    observations, Annals of Mathematical Statistics 23(4), 1952.
    """
    every, share = episodes + sum(of_others), 1 / (1 + max(1, len(of_others)))
    share_of_one = episodes / every
    if share_of_one <= share:
        return 1.0
    others = (1 - share_of_one) * math.log((1 - share_of_one) / (1 - share)) if share_of_one < 1 else 0.0
    return math.exp(-every * (share_of_one * math.log(share_of_one / share) + others))


def noise_limit(values: Sequence[float]) -> tuple[float, float]:
    """Return the level of the fast values, and the distance from it beyond which a value is not noise.

    Noise is symmetric; its deviation is estimated from the fast half of the values.
    """
    ordered = sorted(values)
    q05, q25 = ordered[len(ordered) // 20], ordered[len(ordered) // 4]
    sigma = (q25 - q05) / (_Q05 - _Q25)
    return q25 + _Q25 * sigma, max(MIN_AWAY, DEVIATIONS * sigma)


def slow_limit(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the level of the fast values, and the limit above which a value is slow.

    None if the slow values form no pattern.
    """
    if len(values) < MIN_OF_PATTERN:
        return None
    level, away = noise_limit(values)
    slow = sum(value > level + away for value in values)
    fast = sum(value < level - away for value in values)
    return (level, level + away) if slow >= TIMES_AS_MANY * fast + MIN_SLOW else None


def _starts(values: Sequence[float], low: float, high: float) -> list[int]:
    """Return where stretches above `high` start. A stretch ends when values are below `low`."""
    starts, inside = [], False
    for place, value in enumerate(values):
        if not inside and value > high:
            starts.append(place)
            inside = True
        inside = inside and value > low
    return starts


def _candidates(values: Sequence[float], smallest: int) -> list[int]:
    """Return where a series may have changed: the clearest changes, until there are `MAX_PARTS` parts.

    Each part is searched again, so that several changes in a part do not hide one another. Changes that are
    only correlated noise are removed later.
    """
    places: list[int] = []
    waiting = [_change(values, 0, len(values), smallest)]
    while waiting and len(places) < MAX_PARTS - 1:
        plainest = max(waiting)
        waiting.remove(plainest)
        weight, begin, place, end = plainest
        if 2 * math.exp(-weight) > CANDIDATE_CHANCE:
            break
        places.append(place)
        waiting += [_change(values, begin, place, smallest), _change(values, place, end, smallest)]
    return sorted(places)


def _change(values: Sequence[float], begin: int, end: int, smallest: int) -> tuple[float, int, int, int]:
    """Return the weight of the clearest change in a part, the begin of the part, the change, and the end."""
    part = values[begin:end]
    count = len(part)
    if count < 2 * smallest:
        return 0.0, begin, begin, end
    ordered = sorted(part)  # equal values have their mean rank, from 0
    ranks = [(bisect_left(ordered, value) + bisect(ordered, value) - 1) / 2 for value in part]
    sums = list(accumulate(rank - (count - 1) / 2 for rank in ranks))
    place = max(range(smallest, count - smallest + 1), key=lambda last: abs(sums[last - 1]))
    return 24 * sums[place - 1] ** 2 / (count**3 + count**2), begin, begin + place, end


def _without_noise(values: Sequence[float], spans: list[Span]) -> list[Span]:
    """Join neighbouring parts that correlated noise explains, the closest ones first."""
    while len(spans) > 1:
        levels = [part_bounds(values[begin:end], CHANGE_CHANCE) for begin, end in spans]
        alike = [
            (abs(following.middle - level.middle), place)
            for place, (level, following) in enumerate(pairwise(levels))
            if level.low <= following.high and following.low <= level.high
        ]
        if not alike:
            break
        _, closest = min(alike)
        spans = [*spans[:closest], (spans[closest][0], spans[closest + 1][1]), *spans[closest + 2 :]]
    return spans
