"""Output to stderr: notes, errors, progress. A message that cannot be written is dropped."""

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from typing import TextIO


def to_stderr(text: str) -> None:
    """Write text to stderr immediately, or drop it: a lost message does not end the command.

    The stream is not changed, because a program that gputopo starts inherits it.
    """
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError as error:
        if not is_lost_terminal(error):
            drop_unwritten(sys.stderr)


def note(message: str) -> None:
    """Write a line about what gputopo does to stderr. The message may contain any characters."""
    from gputopo.report.layout import plain

    to_stderr(f"gputopo: {plain(message)}\n")


def show_error(what: str, hint: str) -> None:
    """Write an error to stderr in two lines. The message may contain any characters."""
    to_stderr(f"gputopo: {one_line(what)}\n  {one_line(hint)}\n")


def one_line(text: str) -> str:
    """Return text without line breaks and control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


@contextlib.contextmanager
def tolerating_stderr_errors() -> Iterator[None]:
    """Redirect stderr to /dev/null if writing to it fails (a full disk, a lost terminal).

    Raises BrokenPipeError if the reader has closed the pipe; this ends the command.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        is_lost_terminal(error)  # redirects stdout too
        redirect_to_null(sys.stderr)


def is_lost_terminal(error: OSError) -> bool:
    """Return whether an output error means that the terminal is gone, for example after an ssh session ended.

    Further output is dropped, so that a run can still be ended and saved.
    """
    if error.errno != errno.EIO:
        return False
    for stream in (sys.stdout, sys.stderr):
        if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
            redirect_to_null(stream)
    return True


def redirect_to_null(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, including what it could not write before."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: a stream without a file, as in tests
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def drop_unwritten(stream: TextIO) -> None:
    """Drop what the stream could not write. Otherwise Python would retry at exit, and exit with 120."""
    with contextlib.suppress(OSError, ValueError):
        saved = os.dup(stream.fileno())
        redirect_to_null(stream)
        stream.flush()
        os.dup2(saved, stream.fileno())
        os.close(saved)
