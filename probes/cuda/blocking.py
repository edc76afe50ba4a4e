"""Blocks all streams of a window and releases them with one write, so that no driver call is timed."""

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from gputopo.probes.cuda.door import Cuda, CudaError, Stream
from gputopo.probes.cuda.gpus import EngineGpu
from gputopo.probes.cuda.waiting import PATIENCE_S, PAUSE_S, Waiter

NOT_HELD = "NOT_HELD"

_WORD_BYTES = 4096
# After this time the kernel ends by itself. Enqueueing a window's work takes milliseconds. Under WSL 2,
# Windows resets a GPU that does not react for 2 s (Microsoft's "TDR registry keys": TdrDelay).
SPIN_S = 1.0
# Not measured; chosen because an event in a stream that is not blocked happens within about 10 us, and this
# number of queries takes more than 2 ms.
_QUESTIONS = 40
_LATE_S = 0.5  # half of SPIN_S: if a stream is released later, the write did not release it


class Hold(NamedTuple):
    """A way to block a stream of one GPU."""

    name: str
    block: Callable[[Stream], None]


class StreamBlocker:
    """The word in host memory that the streams of a window wait for.

    `cuStreamWaitValue32` makes a stream wait. If that does not work on a GPU, a kernel with one thread runs
    in the stream until the word is written, as in nvbandwidth. `notes`: the GPUs that use the kernel, and
    why.
    """

    def __init__(self, cuda: Cuda, patience_s: float = PATIENCE_S) -> None:
        self._cuda = cuda
        self._patience_s = patience_s
        self._address: int | None = None
        self._window = 0
        self._timer: threading.Timer | None = None
        self._spins_since: float | None = None  # when the first kernel of this window was launched
        self._holds: dict[int, Hold | CudaError] = {}  # by CUDA's number of the GPU
        self.notes: dict[str, None] = {}
        self.gave_up = False

    def prepare(self, card: EngineGpu) -> Hold:
        """Return how streams of a GPU are blocked. The first call for a GPU tries it. Call between windows.

        Raises CudaError: NOT_HELD if they cannot be blocked; TIMED_OUT if a stream was not released.
        """
        if card.ordinal not in self._holds:
            self._holds[card.ordinal] = self._find_hold(card)
        hold = self._holds[card.ordinal]
        if isinstance(hold, CudaError):
            raise hold
        return hold

    def begin(self) -> None:
        """Start a window: streams that are blocked from now on wait for the next release.

        If that does not come in time, because a driver call does not return, the streams are released anyway:
        `gave_up`.
        """
        self._next_window()
        timer = threading.Timer(self._patience_s, self._give_up)
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # "can't start new thread": continue without the timer
            timer.start()
            self._timer = timer

    def block(self, card: EngineGpu, stream: Stream) -> None:
        """Block a stream of the current GPU until the release. Call `prepare` first. Raises CudaError."""
        hold = self._holds[card.ordinal]
        assert isinstance(hold, Hold)  # otherwise the window was not started
        hold.block(stream)

    def release(self) -> None:
        """Release all streams."""
        self._release_all()
        if self._spins_since is not None and time.monotonic() - self._spins_since > SPIN_S:
            self.gave_up = True  # a kernel may have ended before
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()  # so that it cannot release the next window's streams
            self._timer = None

    def close(self) -> None:
        """Release the streams and free all resources."""
        self.release()
        with contextlib.suppress(CudaError):
            if self._address is not None:
                self._cuda.ask("cuMemFreeHost", self._address)
        self._address = None

    def _find_hold(self, card: EngineGpu) -> Hold | CudaError:
        card.use()
        self._word()  # raises if there is no memory for it
        wait = Hold("cuStreamWaitValue32", self._wait)
        no_wait = self._why_not(wait, card)
        if no_wait is None:
            return wait
        spin = Hold("a kernel", lambda stream: self._spin(card, stream))
        no_spin = self._why_not(spin, card)
        if no_spin is None:
            self.notes[f"streams were held back by a kernel: {no_wait}"] = None
            return spin
        return CudaError(NOT_HELD, f"streams cannot be held back: {no_wait}; {no_spin}")

    def _why_not(self, hold: Hold, card: EngineGpu) -> str | None:
        """Return why a GPU's streams cannot be blocked this way, or None if a test stream could be.

        Raises CudaError.
        """
        stream, event = card.stream(0), card.event()
        self._next_window()
        refused: str | None = None
        try:
            hold.block(stream)
        except CudaError as error:
            refused = str(error)
        self._cuda.ask("cuEventRecord", event, stream)  # this also fails on a lost GPU
        if refused is not None:
            return refused
        passed = False
        for _ in range(_QUESTIONS):
            time.sleep(PAUSE_S)
            passed = passed or self._cuda.happened(event)
        self._release_all()
        released_s = time.monotonic()
        Waiter(self._cuda, self._patience_s).stream(stream, event, 0)
        late_s = time.monotonic() - released_s
        if passed:
            return f"{hold.name} did not block a stream"
        if late_s > _LATE_S:
            return f"{hold.name} released a stream {late_s:.1f} s late"
        return None

    def _wait(self, stream: Stream) -> None:
        self._cuda.wait_for_word(stream, self._cuda.device_view(self._word()), self._window)

    def _spin(self, card: EngineGpu, stream: Stream) -> None:
        if (kernels := card.load_kernels()) is None:
            assert card.no_kernels is not None
            raise card.no_kernels
        if self._spins_since is None:
            self._spins_since = time.monotonic()
        words = self._cuda.device_view(self._word()), self._window, int(SPIN_S * 1e9)
        self._cuda.launch(kernels["gputopo_hold"], stream, words, (1, 1))

    def _next_window(self) -> None:
        self._window = self._window % 0x40000000 + 1
        if self._window == 1 and self._address is not None:
            ctypes.c_uint32.from_address(self._address).value = 0
        self._spins_since = None
        self.gave_up = False

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
