"""Output to stderr: notes and errors. A message that cannot be written is dropped."""

import contextlib
import errno
import os
import stat
import sys
from typing import TextIO


def to_stderr(text: str) -> None:
    """Write text to stderr immediately, or drop it: a lost message does not end the command.

    The stream is not changed, because a program that gputopo starts inherits it.
    """
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError as error:
        drop_unwritten(sys.stderr, error)


def note(message: str) -> None:
    """Write a line about what gputopo does to stderr. The message may contain any characters."""
    from gputopo.report.layout import plain

    to_stderr(f"gputopo: {plain(message)}\n")


def show_error(what: str, hint: str) -> None:
    """Write an error to stderr in two lines. The message may contain any characters."""
    to_stderr(f"gputopo: {_one_line(what)}\n  {_one_line(hint)}\n")


def _one_line(text: str) -> str:
    """Return text without line breaks and control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def drop_unwritten(stream: TextIO, error: OSError) -> bool:
    """Drop what the stream could not write; return whether the command may report that as an error.

    Without this, Python would retry at exit, and exit with 120. A terminal that is gone, for example after an
    ssh session ended, is no error: further output is dropped, so that a run can still be ended and saved.
    """
    with contextlib.suppress(OSError, ValueError):  # ValueError: a stream without a file, as in tests
        for standard in (sys.stdout, sys.stderr) if error.errno == errno.EIO else ():
            if stat.S_ISCHR(os.fstat(standard.fileno()).st_mode):
                redirect_to_null(standard)
        saved = os.dup(stream.fileno())
        redirect_to_null(stream)
        stream.flush()
        os.dup2(saved, stream.fileno())
        os.close(saved)
    return error.errno != errno.EIO


def redirect_to_null(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, including what it could not write before."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
