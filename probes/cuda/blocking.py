"""All streams of a window blocked and released by one write, so that no call is timed; waiting for events."""

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from gputopo.probes.cuda.door import Cuda, CudaError, Event, Stream

Key = TypeVar("Key", bound=Hashable)

NOT_HELD = "NOT_HELD"
TIMED_OUT = "TIMED_OUT"

_WORD_BYTES = 4096
# Enqueueing a window's work on the streams takes milliseconds. A driver whose queue is full blocks the call
# that adds more until earlier work is done, which waits for the release: after so long it is released anyway.
PATIENCE_S = 5.0  # also what a window may take beside its bytes: clock ramp-up, a busy machine
# A copy slower than this does not come back: one lane of Gen1 carries 200 MB/s and more.
_SLOWEST_BYTES_PER_S = 50e6
_PAUSE_S = 50e-6


class StreamBlocker:
    """The word of host memory on which the streams of a window wait."""

    def __init__(self, cuda: Cuda, patience_s: float = PATIENCE_S) -> None:
        self._cuda = cuda
        self._patience_s = patience_s
        self._address: int | None = None
        self._window = 0
        self._timer: threading.Timer | None = None
        self.gave_up = False

    def begin(self) -> None:
        """Begin a window: what is blocked from now on waits for the next release.

        Where that does not come in time, since a call of the driver does not return, the streams are
        released nevertheless: `gave_up`.
        """
        self._window = self._window % 0x40000000 + 1
        if self._window == 1 and self._address is not None:
            ctypes.c_uint32.from_address(self._address).value = 0
        self.gave_up = False
        timer = threading.Timer(self._patience_s, self._give_up)
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # "can't start new thread": then without this help
            timer.start()
            self._timer = timer

    def block(self, stream: Stream) -> None:
        """Block a stream of the current device until the release. Raises CudaError."""
        self._cuda.wait_for_word(stream, self._cuda.device_view(self._word()), self._window)

    def release(self) -> None:
        """Release all streams."""
        self._release_all()
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()  # so that it cannot release the next window's streams
            self._timer = None

    def close(self) -> None:
        """Release everything."""
        self.release()
        with contextlib.suppress(CudaError):
            if self._address is not None:
                self._cuda.ask("cuMemFreeHost", self._address)
        self._address = None

    def _release_all(self) -> None:
        if self._address is not None:
            ctypes.c_uint32.from_address(self._address).value = self._window

    def _give_up(self) -> None:
        self.gave_up = True
        self._release_all()

    def _word(self) -> int:
        if self._address is None:
            address = self._cuda.allocate_host(_WORD_BYTES, mapped=True)
            ctypes.c_uint32.from_address(address).value = 0
            self._address = address
        return self._address


class Waiter:
    """Polls events until a deadline. `patience_s`: what is allowed beside the time that the bytes take."""

    def __init__(self, cuda: Cuda, patience_s: float = PATIENCE_S) -> None:
        self._cuda = cuda
        self._patience_s = patience_s

    def seconds_for(self, size: int) -> float:
        """Return the longest that moving so many bytes may take."""
        return self._patience_s + size / _SLOWEST_BYTES_PER_S

    def each(
        self, events: Mapping[Key, Event], size: int, while_running: Callable[[], None] | None = None
    ) -> dict[Key, CudaError]:
        """Wait for all events; return by their keys those that went wrong: CudaError, or TIMED_OUT."""
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
                time.sleep(_PAUSE_S)
        return wrong

    def stream(self, stream: Stream, event: Event, size: int) -> None:
        """Wait until a stream is through with moving `size` bytes. Raises CudaError, TIMED_OUT."""
        self._cuda.ask("cuEventRecord", event, stream)
        for error in self.each({0: event}, size).values():
            raise error
