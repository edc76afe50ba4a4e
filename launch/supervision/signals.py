"""Signals to the launcher as bytes in a pipe, so that one loop can wait for them and for everything else."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def caught() -> Iterator[int]:
    """Catch SIGINT, SIGTERM and SIGHUP; give a pipe that holds a byte, the number, for each that came.

    An ignored SIGHUP stays ignored (nohup). Only the main thread can catch signals: elsewhere none come.
    What was set before is set again at the end.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)

    def note(signum: int, _: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):  # thousands are waiting already
            os.write(writing, bytes((signum,)))

    before = {}
    if threading.current_thread() is threading.main_thread():
        for signum in ENDING:
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
                before[signum] = signal.signal(signum, note)
    try:
        yield reading
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        os.close(reading)
        os.close(writing)
