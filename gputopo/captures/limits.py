"""Limits for captures, which come from other people and programs: a larger capture is refused."""

import contextlib
import io
import signal
import threading
from collections.abc import Iterator, Sized
from types import FrameType

from gputopo.values.errors import InputError

_PART = "give only the capture, or a part of it"
MAX_FILE_BYTES = 64 * 2**20  # far above any capture; stops at a device file or disk image
# A text is in memory several times (bytes, text, lines): this and MAX_LINES keep reading under 500 MiB.
MAX_TEXT_BYTES = 32 * 2**20
MAX_LINES = 1_000_000
MAX_LINE = 2**20  # characters; not for JSON or XML
MAX_GPUS = 256  # for one machine; the largest sold have 16, a rack of GB200 72
MAX_READING_S = 6.0  # CPU time for one file; a capture takes milliseconds, a log of 100,000 rows 2 s


class TooMuchError(InputError):
    """A file that exceeds a limit, whatever its content."""


def require_text_size(text: str, origin: str) -> None:
    """Raise InputError if a text is longer than any capture."""
    if len(text) > MAX_TEXT_BYTES:
        raise TooMuchError(f"{origin} is text of more than {MAX_TEXT_BYTES >> 20} MiB", _PART)
    if text.count("\n") > MAX_LINES:
        raise TooMuchError(f"{origin} has more than {MAX_LINES:,} lines", _PART)
    document = text[:100].lstrip().startswith(("{", "<"))
    if len(text) > MAX_LINE and not document and any(len(line) > MAX_LINE for line in io.StringIO(text)):
        raise TooMuchError(f"{origin} has a line of more than {MAX_LINE >> 20} MiB", _PART)


def require_gpus(gpus: Sized, origin: str) -> None:
    """Raise InputError if there are more GPUs than in any machine; call this before working on GPUs."""
    if len(gpus) > MAX_GPUS:
        raise TooMuchError(f"{origin} lists more than {MAX_GPUS} GPUs", "pass the capture of one machine")


@contextlib.contextmanager
def limited_time(origin: str, seconds: float = MAX_READING_S) -> Iterator[None]:
    """Raise InputError in the block after `seconds` of CPU time of this process.

    The timer is the process's only one (ITIMER_PROF). It works only in the main thread; in other threads
    there is no limit. Regular expressions check for signals while they search.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_PROF)[0]:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise TooMuchError(f"{origin} needs more than {seconds:g} s of CPU time to read", _PART)

    former = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)
