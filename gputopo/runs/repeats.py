"""The same run several times: mean and spread (`gputopo.repeats/1`); and jobs in a limited time."""

from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import TypeVar

import msgspec

from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import Repeats, Spread

T = TypeVar("T")


class TimeBudget:
    """Time of jobs in a row. `seconds` None: no limit. It begins when it is made; `clock` in seconds."""

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self._limit = seconds
        self._clock = clock
        self._began = clock()
        self._longest = 0.0

    @property
    def used(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._began

    def fits(self, count: int = 1, *, each: float | None = None) -> bool:
        """Return whether so many jobs would end in time: of `each` seconds, None: as the longest so far."""
        if self._limit is None:
            return True
        return self.used + count * (self._longest if each is None else each) <= self._limit

    def timed(self, job: Callable[[], T]) -> T:
        """Do a job, and note how long it took."""
        began = self._clock()
        done = job()
        self._longest = max(self._longest, self._clock() - began)
        return done


def combine(runs: Sequence[Result], asked: int) -> Repeats:
    """Combine the results of repeats, in their order. The first incomplete one sets the exit code."""
    bad = next((run for run in runs if run.status != "complete"), None)
    complete = [run for run in runs if run.status == "complete"]
    means = [run.throughput.mean for run in complete if run.throughput is not None]
    return Repeats(
        status="complete" if bad is None else bad.status,
        exit_code=0 if bad is None else bad.exit_code,
        asked=asked,
        complete=len(complete),
        images_per_sec=spread(means),
        runs=tuple(runs),
    )


def ended_by(repeats: Repeats, status: str, exit_code: int) -> Repeats:
    """Return repeats that were ended from outside; the status of an incomplete repeat has precedence."""
    if repeats.exit_code:
        return repeats
    return msgspec.structs.replace(repeats, status=status, exit_code=int(exit_code))


def spread(means: Sequence[float]) -> Spread | None:
    """Return mean and spread of the repeats' speeds, None of none."""
    if not means:
        return None
    return Spread(
        mean=fmean(means),
        deviation=stdev(means) if len(means) > 1 else None,
        lowest=min(means),
        highest=max(means),
        of=len(means),
    )
