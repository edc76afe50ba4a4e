"""The first part of a run, before its speed was steady: a warm-up if it was slower, else a change. Pure.

A run is steady after k steps if the medians of the first few of the others, of their first half and of their
second half agree, and the robust slope (H. Theil, 1950; P. K. Sen, 1968) is small. A difference agrees if it
is below `LEVEL_SHARE`, or if the noise of the steps explains it. Medians ignore single slow steps, so regular
ones (a checkpoint every hundredth step) do not count. A ramp slower than the noise is not detected: more
steps would be needed.
"""

from collections.abc import Callable, Sequence
from itertools import takewhile
from statistics import median

import msgspec

from gputopo.runs.speed import MAD_TO_SIGMA, RunningThroughput
from gputopo.values.run.events import Step
from gputopo.values.run.result import SpeedChange

# A smaller difference is no warm-up; runs on an idle machine repeat within 1 to 2%. Ours.
LEVEL_SHARE = 0.05
# Simulated runs of 12 to 300 steps with 1 to 20% of noise: with 8 steps as many parts are found in noise
# alone as with 20 (1% of the runs), and changes in runs of 16 steps are found as well.
MIN_STEPS = 8
HEAD_STEPS = 5  # the median of five ignores two outliers
# A slope is looked at over so many steps: a slow ramp must not pass because few steps were seen. Ours.
HORIZON_STEPS = 50
# Limit of the search, which takes quadratic time; a warm-up that is longer is a drift.
MAX_STEPS = 600
# Blocks whose medians the slope is taken of, so that its cost does not grow with the run.
MAX_BLOCKS = 30
# A median of n values of normal noise scatters by this times sigma / sqrt(n).
MEDIAN_EFFICIENCY = 1.2533
SIGMAS = 3.0  # beyond this a difference is no noise
MIN_FIRST = 2  # steps of a first part: one that is slow may be a stall
# Of the counted steps: a slower part that is longer is no warm-up. Not measured; chosen because the rest,
# which gives the speed, must be most of the run.
MAX_WARMUP_SHARE = 0.25

HasCause = Callable[[int], bool]
"""Whether something that slows a run was sampled more often up to this counted step than after it."""


def steady_from(seconds: Sequence[float]) -> int | None:
    """Return the length of the shortest prefix after which the step times (in order) are steady.

    None if there is none: too few steps, or they still change. At least `MIN_STEPS` steps follow it.
    Only the first `MAX_STEPS` are looked at.
    """
    times = list(seconds[:MAX_STEPS])
    for prefix in range(len(times) - MIN_STEPS + 1):
        if _is_steady(times[prefix:]):
            return _past_outliers(times, prefix)
    return None


def _is_steady(times: Sequence[float]) -> bool:
    middle = len(times) // 2
    later = times[middle:]
    level = median(later)
    sigma = MAD_TO_SIGMA * median(abs(time - level) for time in later)
    if not _agree(median(times[:HEAD_STEPS]), level, sigma, HEAD_STEPS):
        return False
    if not _agree(median(times[:middle]), level, sigma, middle):
        return False
    blocks = _blocks(times)
    change = abs(_slope(blocks)) * len(blocks) / len(times) * HORIZON_STEPS
    # The slope of n values of noise scatters by sigma * sqrt(12 / n^3).
    noise: float = SIGMAS * sigma * (12 / len(times) ** 3) ** 0.5 * HORIZON_STEPS
    return change <= max(LEVEL_SHARE * level, noise)


def _agree(found: float, level: float, sigma: float, count: int) -> bool:
    noise: float = SIGMAS * MEDIAN_EFFICIENCY * sigma / count**0.5
    return abs(found - level) <= max(LEVEL_SHARE * level, noise)


def _blocks(times: Sequence[float]) -> list[float]:
    """Return the medians of at most `MAX_BLOCKS` blocks of the same length."""
    size = -(-len(times) // MAX_BLOCKS)
    whole = len(times) // size * size  # a short last block would weigh as much as the others
    return [median(times[begin : begin + size]) for begin in range(0, whole, size)]


def _slope(values: Sequence[float]) -> float:
    """Return the median slope of all pairs, per value."""
    count = len(values)
    return median((values[b] - values[a]) / (b - a) for a in range(count) for b in range(a + 1, count))


def _past_outliers(times: Sequence[float], prefix: int) -> int:
    """Return the prefix with the outliers that follow it, which the head's median ignores."""
    rest = times[prefix:]
    level = median(rest)
    sigma = MAD_TO_SIGMA * median(abs(time - level) for time in rest)
    limit = max(LEVEL_SHARE * level, SIGMAS * sigma)
    return prefix + sum(1 for _ in takewhile(lambda time: abs(time - level) > limit, rest[: HEAD_STEPS // 2]))


class FirstPart(msgspec.Struct, frozen=True, kw_only=True):
    """The first part of the counted steps, and what it is.

    `warmup`: number of counted steps that are warm-up, `warmup_s`: their time; None: the run was not steady,
    for the reason `says`. `change`: a change of the speed, which is no warm-up.
    """

    warmup: int | None = None
    warmup_s: float = 0.0
    change: SpeedChange | None = None
    says: str = "after the warm-up"


def first_part(steps: Sequence[Step], has_cause: HasCause, *, detects_warmup: bool = True) -> FirstPart:
    """Return the first part of these counted steps. `detects_warmup`: False if its length is fixed."""
    times = [step.seconds / max(step.images, 1) for step in steps]
    if len(times) < MIN_STEPS:
        return FirstPart(says=f"not determined: needs {MIN_STEPS} steps, has {len(times)}")
    count = steady_from(times)
    if count is None:
        return FirstPart(says=f"not reached: step times were still changing after {len(times)} steps")
    steady, rest = FirstPart(warmup=0), times[count:]
    level = median(rest)
    sigma = MAD_TO_SIGMA * median(abs(time - level) for time in rest)
    before = median(times[:count]) if count else level
    if count < MIN_FIRST or min(before, level) <= 0 or _agree(before, level, sigma, count):
        return steady
    may_be_warmup = detects_warmup and count <= MAX_WARMUP_SHARE * len(times)
    if before > level and may_be_warmup and not has_cause(count):
        return FirstPart(warmup=count, warmup_s=sum(step.seconds for step in steps[:count]))
    if count < HEAD_STEPS:
        return steady
    change = SpeedChange(after_step=count, before=1 / before, after=1 / level)
    return FirstPart(change=change, says=f"the speed changed after {count} steps")


class SteadySpeed:
    """The speed of a run without its warm-up, from its counted steps one by one, in bounded memory.

    Only the first `MAX_STEPS` of them are searched for a first part. `has_cause`: asked after a step.
    """

    def __init__(self, has_cause: HasCause, *, detects_warmup: bool) -> None:
        self._has_cause = has_cause
        self._detects_warmup = detects_warmup
        self._first: list[Step] = []
        self._settled: tuple[FirstPart, RunningThroughput] | None = None

    def add(self, step: Step) -> None:
        """Add the next counted step."""
        if self._settled is not None:
            self._settled[1].add(step)
            return
        self._first.append(step)
        if len(self._first) == MAX_STEPS:
            self._settled = self.found()
            self._first.clear()

    def found(self) -> tuple[FirstPart, RunningThroughput]:
        """Return the first part, and the speed of the steps after the warm-up."""
        if self._settled is not None:
            return self._settled
        part = first_part(self._first, self._has_cause, detects_warmup=self._detects_warmup)
        running = RunningThroughput()
        for step in self._first[part.warmup or 0 :]:
            running.add(step)
        return part, running
