"""The time that jobs in a row may take."""

from collections.abc import Callable
from typing import TypeVar

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
