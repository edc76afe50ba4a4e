"""Signals to the launcher, in one of two ways.

`caught`: as bytes in a pipe, so that one loop can wait for them and for everything else. `raised`: as
exceptions between two runs. `deferred` delays a signal while a result is written.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType

Handler = Callable[[int, FrameType | None], None]
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class EndedError(BaseException):
    """SIGTERM, SIGHUP or SIGQUIT came (KeyboardInterrupt: SIGINT). `number`: the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def caught(*numbers: signal.Signals) -> Iterator[int]:
    """Catch these signals, by default ENDING; yield a pipe with one byte, the number, for each signal."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)

    def note(signum: int, _: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):  # thousands of signals are already waiting
            os.write(writing, bytes((signum,)))

    try:
        with _handled(numbers or ENDING, note):
            yield reading
    finally:
        os.close(reading)
        os.close(writing)


def take(came: int) -> list[int]:
    """Return the signals that came through the pipe of `caught`."""
    try:
        return list(os.read(came, 64))
    except BlockingIOError:
        return []


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Raise EndedError at SIGTERM, SIGHUP or SIGQUIT, as KeyboardInterrupt at SIGINT, but not in `caught`."""

    def end(signum: int, _: FrameType | None) -> None:
        raise EndedError(signum)

    with _handled(ENDING[1:], end):
        yield


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Defer the first signal that would end the launcher until the end of the context."""
    with caught() as came:
        yield
        numbers = take(came)
    if numbers:
        signal.raise_signal(numbers[0])


@contextlib.contextmanager
def blocked(numbers: Iterable[int]) -> Iterator[None]:
    """Block signals for threads and processes that are started in the context and inherit the mask."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _handled(numbers: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Handle these signals, and restore the earlier handlers at the end.

    An ignored SIGHUP stays ignored (nohup). Only the main thread can catch signals; other threads catch none.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for signum in numbers:
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
                before[signum] = signal.signal(signum, handler)
    try:
        yield
    finally:
        for signum, earlier in before.items():
            signal.signal(signum, earlier)
