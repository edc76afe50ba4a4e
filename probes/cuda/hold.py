"""All streams of a window held back, and let go by one write, so that no call's own time is in the clock."""

import contextlib
import ctypes
import threading

from gputopo.probes.cuda.calling import ABSENT, CudaError, Event, Stream
from gputopo.probes.cuda.door import Cuda

_CANNOT = {"CUDA_ERROR_NOT_SUPPORTED", "CUDA_ERROR_NOT_FOUND", ABSENT}
_WORD_BYTES = 4096
# A host function that waits gives up by itself, so that no thread of the driver waits for ever.
_LONGEST_S = 120.0


class Hold:
    """The word on which streams wait; for devices that cannot, a gate.

    A gate is one stream with a host function that waits; the others wait for the event behind it. So one host
    function is under way at most: the driver runs them one after another.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._address: int | None = None
        self._window = 0
        self._by_gate: set[int] = set()
        self._open = threading.Event()
        self._waiter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._wait)
        self._gate: tuple[int, Stream, Event] | None = None
        self._shut = False

    def begin(self) -> None:
        """Begin a window: what is held from now on waits for the next release."""
        self._window = self._window % 0x40000000 + 1
        if self._window == 1 and self._address is not None:
            ctypes.c_uint32.from_address(self._address).value = 0
        self._open.clear()
        self._shut = False

    def hold(self, ordinal: int, stream: Stream) -> None:
        """Hold a stream of a device (the current one) until the release. Raises CudaError."""
        if ordinal not in self._by_gate:
            try:
                self._cuda.wait_for_word(stream, self._cuda.device_view(self._word()), self._window)
                return
            except CudaError as error:
                if error.reason not in _CANNOT:
                    raise
                self._by_gate.add(ordinal)
        self._cuda.wait_for_event(stream, self._behind_gate(ordinal))

    def release(self) -> None:
        """Let all streams go."""
        if self._address is not None:
            ctypes.c_uint32.from_address(self._address).value = self._window
        self._open.set()

    def close(self) -> None:
        """Give all back."""
        self.release()
        with contextlib.suppress(CudaError):
            if self._gate is not None:
                ordinal, stream, event = self._gate
                self._cuda.use(ordinal)
                self._cuda.end_stream(stream)
                self._cuda.end_event(event)
        with contextlib.suppress(CudaError):
            if self._address is not None:
                self._cuda.release_host(self._address)
        self._gate = self._address = None

    def _word(self) -> int:
        if self._address is None:
            self._address = self._cuda.allocate_host(_WORD_BYTES, mapped=True)
            ctypes.c_uint32.from_address(self._address).value = 0
        return self._address

    def _behind_gate(self, ordinal: int) -> Event:
        if self._gate is None:
            self._gate = (ordinal, self._cuda.new_stream(), self._cuda.new_event())
        at, stream, event = self._gate
        if not self._shut:
            self._cuda.use(at)
            self._cuda.call_host(stream, int(ctypes.cast(self._waiter, ctypes.c_void_p).value or 0))
            self._cuda.record(event, stream)
            self._cuda.use(ordinal)
            self._shut = True
        return event

    def _wait(self, _: object) -> None:
        self._open.wait(_LONGEST_S)
