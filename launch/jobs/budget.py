"""The time that a sequence of jobs may take."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class TimeBudget:
    """A time budget for a sequence of jobs, from now on. `seconds` None: no limit; `clock`: in seconds."""

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        self._limit = seconds
        self._clock = clock
        self._began = clock()
        self._longest = 0.0

    @property
    def used(self) -> float:
        """Seconds since the creation."""
        return self._clock() - self._began

    def fits(self, count: int = 1, *, each: float | None = None) -> bool:
        """Return whether `count` jobs would end in time. `each`: seconds of one; None: the longest so far."""
        if self._limit is None:
            return True
        return self.used + count * (self._longest if each is None else each) <= self._limit

    def timed(self, job: Callable[[], T]) -> T:
        """Run a job and record its duration."""
        began = self._clock()
        done = job()
        self._longest = max(self._longest, self._clock() - began)
        return done
