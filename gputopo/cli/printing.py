"""How a command prints: to stdout, in colour only on a terminal, never wider than the screen.

Data on stdout that cannot be written is an error. Talk on stderr that cannot be is lost, and only that.
"""

import contextlib
import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from gputopo.values.errors import InputError

if TYPE_CHECKING:
    from gputopo.report.layout import Line

_NARROWEST = 40


def emit(text: str) -> None:
    """Write text to stdout at once. Raises InputError where it cannot be written, such as on a full disk."""
    with _written():
        sys.stdout.write(text)
        sys.stdout.flush()


@contextlib.contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # whoever reads has read enough: no error
    except OSError as error:
        raise unwritten(error) from error


def unwritten(error: OSError) -> InputError:
    """Give the error for output that stdout did not take, and forget that output."""
    forget_unwritten(sys.stdout)
    return InputError(f"cannot write the output: {error.strerror}", "send it to a place that has room for it")


def tell(text: str) -> None:
    """Write text to stderr at once, or lose it: that is no reason to end what the command is about.

    The stream stays what it is, for a program that is started gets it.
    """
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError as error:
        if not went_with_terminal(error):
            forget_unwritten(sys.stderr)


@contextlib.contextmanager
def talking() -> Iterator[None]:
    """Let nothing fail where stderr takes no more (a full disk, a lost terminal): it leads nowhere then.

    Whoever reads it and has read enough still ends the command: raises BrokenPipeError.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        went_with_terminal(error)  # which takes stdout with it
        lead_nowhere(sys.stderr)


def went_with_terminal(error: OSError) -> bool:
    """Tell whether an error of printing means that the terminal is gone: an ssh session that broke off.

    What is printed to it from here on goes nowhere, so that a run can still be ended and kept.
    """
    if error.errno != errno.EIO:
        return False
    for stream in (sys.stdout, sys.stderr):
        if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
            lead_nowhere(stream)
    return True


def lead_nowhere(stream: TextIO) -> None:
    """Let what is printed to the stream from here on be lost, with what it could not write before."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: a stream without a file, as tests have
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def forget_unwritten(stream: TextIO) -> None:
    """Drop what the stream could not write: Python would try it again at its end, and exit with 120."""
    with contextlib.suppress(OSError, ValueError):
        kept = os.dup(stream.fileno())
        lead_nowhere(stream)
        stream.flush()
        os.dup2(kept, stream.fileno())
        os.close(kept)


def show(view: "Callable[[int], Sequence[Line]]") -> None:
    """Print what `view` gives for the width of the screen.

    A pipe gets plain text, 80 columns wide unless COLUMNS says otherwise. On a terminal rich decides about
    colours: it knows NO_COLOR and TERM.
    """
    if sys.stdout.isatty():
        _show_on_terminal(view)
        return
    from gputopo.report.layout import text_of

    columns = os.environ.get("COLUMNS", "")
    emit(text_of(view(max(int(columns), _NARROWEST) if columns.isdecimal() else 80)))


def _show_on_terminal(view: "Callable[[int], Sequence[Line]]") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    # The last column of the screen stays free: some terminals fold a line that fills it.
    width = max(min(console.width, shutil.get_terminal_size().columns) - 1, _NARROWEST)
    with _written():
        for pieces in view(width):
            text = Text.assemble(*pieces)
            text.rstrip()
            console.print(text, soft_wrap=True)
