"""The first part of a run, before its speed was steady: a warm-up if it was slower, else a change.

It lasts while the medians of a few consecutive steps differ from the level of the last third of the run by
more than `LEVEL_SHARE` and by more than the noise of the steps. Medians ignore single slow steps. If the
speed never becomes steady, this is a change.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise, takewhile
from statistics import median

import msgspec

from gputopo.values.run.events import Step
from gputopo.values.run.noise import MAD_TO_SIGMA
from gputopo.values.run.result import SpeedChange
from gputopo.values.run.speed import RunningThroughput

# A smaller difference is no warm-up. Not measured; chosen because runs on an idle machine repeat within 1 to
# 2%.
LEVEL_SHARE = 0.05
MIN_STEPS = 8  # a shorter run has no level
# Steps per median: three steps, which ignore one stall and show a few slow steps; and a tenth of all steps,
# which shows smaller changes in more noise. Of 1,000 simulated runs of 12 to 300 steps without a change and
# with 1 to 20% of independent noise, 1% have a first part; if 5% of noise lasts for ten steps, a third of the
# runs have one.
MIN_WINDOW, WINDOWS = 3, 10
# The standard deviation of a median of n normal values is this times sigma / sqrt(n).
MEDIAN_EFFICIENCY = 1.2533
SIGMAS = 3.0  # a difference beyond this is not noise
# Share of the counted steps: a longer slow part is no warm-up. Not measured; chosen because the rest, which
# gives the speed, must be most of the run.
MAX_WARMUP_SHARE = 0.25
MAX_STEPS = 600  # steps that are searched, so that the memory of a long run is bounded

HasCause = Callable[[int], bool]
"""Whether samples up to this counted step showed more that slows a run than the samples after it."""


class FirstPart(msgspec.Struct, frozen=True, kw_only=True):
    """The first part of the counted steps, and its kind.

    `warmup`: number of counted steps that are warm-up; `warmup_s`: their time. None: the run was not steady,
    for the reason `says`. `change`: a change of the speed that is no warm-up.
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
    count = max(_steps_away(times, window) for window in (MIN_WINDOW, max(MIN_WINDOW, len(times) // WINDOWS)))
    before, after = (median(some) for some in (times[:count] or times, times[count:]))
    if min(before, after) <= 0 or abs(before - after) <= LEVEL_SHARE * after:
        return FirstPart(warmup=0)
    may_be_warmup = detects_warmup and count <= MAX_WARMUP_SHARE * len(times)
    if before > after and may_be_warmup and not has_cause(count):
        return FirstPart(warmup=count, warmup_s=sum(step.seconds for step in steps[:count]))
    change = SpeedChange(after_step=count, before=1 / before, after=1 / after)
    return FirstPart(change=change, says=f"the speed changed after {count} steps")


def _steps_away(times: Sequence[float], window: int) -> int:
    """Return how many first steps differ from the level of the last third, by medians of `window` steps."""
    last = times[-max(MIN_STEPS // 2, len(times) // 3) :]
    level = median(last)
    # From the differences of neighbours, so that a change of the level does not count as noise.
    sigma = MAD_TO_SIGMA * median(abs(a - b) for a, b in pairwise(times)) / 2**0.5
    noise = SIGMAS * MEDIAN_EFFICIENCY * sigma * (1 / window + 1 / len(last)) ** 0.5
    medians = (median(times[place : place + window]) for place in range(len(times) - window + 1))
    away = takewhile(lambda time: abs(time - level) > max(LEVEL_SHARE * level, noise), medians)
    count = sum(1 for _ in away)
    # In the first median that does not differ, a little less than half of the steps are before the change.
    return count + (window - 1) // 2 if count else 0


class SteadySpeed:
    """The speed of a run without its warm-up, from its counted steps one by one, in bounded memory.

    Only the first `MAX_STEPS` steps are searched for a first part. `has_cause` is called with a step number.
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
