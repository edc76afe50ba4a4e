"""Signals to the launcher: as bytes in a pipe, so that one loop can wait for them and for everything else;
as exceptions between two runs; and held back while a result is written.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

Handler = Callable[[int, FrameType | None], None]
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedError(BaseException):
    """SIGTERM or SIGHUP came, as KeyboardInterrupt tells of SIGINT. `number`: which."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def caught() -> Iterator[int]:
    """Catch SIGINT, SIGTERM and SIGHUP; give a pipe that holds a byte, the number, for each that came."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)

    def note(signum: int, _: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):  # thousands are waiting already
            os.write(writing, bytes((signum,)))

    try:
        with _handled(ENDING, note):
            yield reading
    finally:
        os.close(reading)
        os.close(writing)


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise EndedError, as SIGINT raises KeyboardInterrupt, except within `caught`."""

    def tell(signum: int, _: FrameType | None) -> None:
        raise EndedError(signum)

    with _handled((signal.SIGTERM, signal.SIGHUP), tell):
        yield


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let a signal that would end the launcher wait until what is being written has been.

    Of several the first is let through at the end.
    """
    came: list[int] = []

    def note(signum: int, _: FrameType | None) -> None:
        came.append(signum)

    with _handled(ENDING, note):
        yield
    if came:
        signal.raise_signal(came[0])


@contextlib.contextmanager
def _handled(numbers: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Let a handler take these signals, and set again at the end what was set before.

    An ignored SIGHUP stays ignored (nohup). Only the main thread can catch signals: elsewhere none come.
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
