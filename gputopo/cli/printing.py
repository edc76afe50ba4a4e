"""Output of commands: data to stdout, coloured only on a terminal, never wider than it; messages to stderr.

Data on stdout that cannot be written is an error. Messages on stderr that cannot be are dropped.
"""

import contextlib
import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from gputopo.values.errors import InputError

if TYPE_CHECKING:
    import msgspec

    from gputopo.report.document import Document
    from gputopo.report.layout import Line

_NARROWEST = 40


def emit(text: str) -> None:
    """Write text to stdout at once. Raises InputError where it cannot be written, such as on a full disk."""
    with _written():
        sys.stdout.write(text)
        sys.stdout.flush()


def emit_each(texts: Iterable[str]) -> None:
    """Write texts to stdout as they come. Raises InputError where they cannot be written."""
    with _written():
        sys.stdout.writelines(texts)
        sys.stdout.flush()


@contextlib.contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # the reader has closed the pipe: no error
    except OSError as error:
        raise unwritten(error) from error


def unwritten(error: OSError) -> InputError:
    """Return the error for output that could not be written to stdout, and drop that output."""
    drop_unwritten(sys.stdout)
    return InputError(f"cannot write the output: {error.strerror}", "write it where there is free space")


def to_stderr(text: str) -> None:
    """Write text to stderr at once, or drop it: a lost message does not end the command.

    The stream stays as it is, since a program that is started inherits it.
    """
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError as error:
        if not is_lost_terminal(error):
            drop_unwritten(sys.stderr)


def note(message: str) -> None:
    """Write a line about what gputopo does to stderr, whatever the message contains."""
    from gputopo.report.layout import plain

    to_stderr(f"gputopo: {plain(message)}\n")


def show_error(what: str, hint: str) -> None:
    """Write an error to stderr in two lines, whatever its words contain."""
    to_stderr(f"gputopo: {one_line(what)}\n  {one_line(hint)}\n")


def one_line(text: str) -> str:
    """Return text without line breaks and control characters."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


@contextlib.contextmanager
def tolerating_stderr_errors() -> Iterator[None]:
    """Redirect stderr to /dev/null where writing to it fails (a full disk, a lost terminal).

    Raises BrokenPipeError where the reader has closed the pipe, which ends the command.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        is_lost_terminal(error)  # redirects stdout too
        redirect_to_null(sys.stderr)


def is_lost_terminal(error: OSError) -> bool:
    """Return whether an error of printing means that the terminal is gone, as when an ssh session breaks off.

    Further output to it is dropped, so that a run can still be ended and saved.
    """
    if error.errno != errno.EIO:
        return False
    for stream in (sys.stdout, sys.stderr):
        if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
            redirect_to_null(stream)
    return True


def redirect_to_null(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, with what it could not write before."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: a stream without a file, as tests have
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def drop_unwritten(stream: TextIO) -> None:
    """Drop what the stream could not write: Python would try it again at its end, and exit with 120."""
    with contextlib.suppress(OSError, ValueError):
        saved = os.dup(stream.fileno())
        redirect_to_null(stream)
        stream.flush()
        os.dup2(saved, stream.fileno())
        os.close(saved)


def is_terminal() -> bool:
    """Return whether stdout is a terminal. That of a rank of Open MPI is a pseudo-terminal in any case, which
    mpirun copies to its own stdout: a file, too.
    """
    return sys.stdout.isatty() and "OMPI_COMM_WORLD_RANK" not in os.environ


def show(view: "Callable[[int], Sequence[Line]]") -> None:
    """Print the lines that `view` returns for the width of the terminal.

    A pipe gets plain text, 80 columns wide unless COLUMNS is set. On a terminal rich decides about
    colours: by NO_COLOR and TERM.
    """
    if is_terminal():
        _show_on_terminal(view)
        return
    from gputopo.report.layout import text_of

    columns = os.environ.get("COLUMNS", "")
    emit(text_of(view(max(int(columns), _NARROWEST) if columns.isdecimal() else 80)))


def _show_on_terminal(view: "Callable[[int], Sequence[Line]]") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    # The last column stays free: some terminals wrap a line that fills it.
    width = max(min(console.width, shutil.get_terminal_size().columns) - 1, _NARROWEST)
    with _written():
        for line in view(width):
            text = Text.assemble(*line)
            text.rstrip()
            console.print(text, soft_wrap=True)


def show_report(value: "msgspec.Struct", document: "Callable[[], Document]", shape: str) -> None:
    """Print a value as JSON, or its document as Markdown or, for any other shape, as text."""
    if shape == "json":
        from gputopo.values import schema

        emit(schema.encode_pretty(value))
    elif shape == "markdown":
        from gputopo.report.markdown import document_markdown

        emit(document_markdown(document()))
    else:
        from gputopo.cli.terminal import for_this_stdout
        from gputopo.report.document import document_lines

        shown = document()
        show(lambda width: for_this_stdout(document_lines(shown, width)))
