"""Waiting for events without ever waiting for ever."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from gputopo.probes.cuda.calling import CudaError, Event, Stream
from gputopo.probes.cuda.door import Cuda

Key = TypeVar("Key", bound=Hashable)

TIMED_OUT = "TIMED_OUT"

# A copy that is slower than this does not come back: one lane of Gen1 carries 200 MB/s and more.
_SLOWEST_BYTES_PER_S = 50e6
PATIENCE_S = 5.0  # beside it: a device that wakes up, a busy machine
_PAUSE_S = 50e-6


class Waiter:
    """Polls events until a deadline. `patience_s`: what is allowed beside the time that the bytes take."""

    def __init__(self, cuda: Cuda, patience_s: float = PATIENCE_S) -> None:
        self._cuda = cuda
        self._patience_s = patience_s

    def seconds_for(self, size: int) -> float:
        """Give the longest that moving so many bytes may take."""
        return self._patience_s + size / _SLOWEST_BYTES_PER_S

    def each(
        self, events: Mapping[Key, Event], size: int, while_running: Callable[[], None] | None = None
    ) -> dict[Key, CudaError]:
        """Wait for all events; give by their keys those that went wrong: CudaError, or TIMED_OUT."""
        pending, wrong = dict(events), dict[Key, CudaError]()
        end = time.monotonic() + self.seconds_for(size)
        while pending:
            late = time.monotonic() > end
            for key, event in list(pending.items()):
                try:
                    if self._cuda.happened(event):
                        del pending[key]
                except CudaError as error:
                    wrong[key] = error
                    del pending[key]
            if late:
                return wrong | dict.fromkeys(pending, self._late(size))
            if pending and while_running is not None:
                while_running()
            if pending:
                time.sleep(_PAUSE_S)
        return wrong

    def stream(self, stream: Stream, event: Event, size: int) -> None:
        """Wait until a stream is through with moving `size` bytes. Raises CudaError, TIMED_OUT."""
        self._cuda.record(event, stream)
        for error in self.each({0: event}, size).values():
            raise error

    def _late(self, size: int) -> CudaError:
        return CudaError(TIMED_OUT, f"a copy did not end within {self.seconds_for(size):.3g} s")
