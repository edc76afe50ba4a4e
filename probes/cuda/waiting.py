"""Waiting for events, with a time limit."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from gputopo.probes.cuda.door import Cuda, CudaError, Event, Stream

Key = TypeVar("Key", bound=Hashable)

TIMED_OUT = "TIMED_OUT"

# Enqueueing a window's work on the streams takes milliseconds. If the driver's queue is full, the call that
# adds more waits for earlier work, which waits for the release. After this time, the streams are released
# anyway. What a window may take in addition to the time for its bytes: clock ramp-up, a busy machine.
PATIENCE_S = 5.0
# A copy slower than this counts as hung: one lane of Gen1 carries 200 MB/s or more.
_SLOWEST_BYTES_PER_S = 50e6
PAUSE_S = 50e-6  # between two queries of an event


class Waiter:
    """Polls events until a deadline. `patience_s`: seconds allowed in addition to the time for the bytes."""

    def __init__(self, cuda: Cuda, patience_s: float = PATIENCE_S) -> None:
        self._cuda = cuda
        self._patience_s = patience_s

    def seconds_for(self, size: int) -> float:
        """Return the longest time that moving `size` bytes may take."""
        return self._patience_s + size / _SLOWEST_BYTES_PER_S

    def each(
        self, events: Mapping[Key, Event], size: int, while_running: Callable[[], None] | None = None
    ) -> dict[Key, CudaError]:
        """Wait for all events. Return the errors by the events' keys: CudaError, also TIMED_OUT."""
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
                says = f"a copy did not end within {self.seconds_for(size):.3g} s"
                return wrong | dict.fromkeys(pending, CudaError(TIMED_OUT, says))
            if pending and while_running is not None:
                while_running()
            if pending:
                time.sleep(PAUSE_S)
        return wrong

    def stream(self, stream: Stream, event: Event, size: int) -> None:
        """Wait until a stream has moved `size` bytes. Raises CudaError, also TIMED_OUT."""
        self._cuda.ask("cuEventRecord", event, stream)
        for error in self.each({0: event}, size).values():
            raise error
