"""Output of commands: data to stdout, coloured only on a terminal, never wider than it.

Data that cannot be written is an error. Messages go to stderr: `gputopo.report.to_stderr`.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from gputopo.report import drop_unwritten
from gputopo.values.errors import HardwareError

if TYPE_CHECKING:
    import msgspec
    from rich.console import Console

    from gputopo.report import Document, Line


_NARROWEST = 40

# ASCII replacements for the box and block characters of trees and matrices, and for other signs.
_ASCII = str.maketrans("├└│─▁▂▃▄▅▆▇█░▒▓\N{MULTIPLICATION SIGN}…", "+`|-._-=+*##.:+x~")


def emit(text: str) -> None:
    """Write text to stdout at once. Raises InputError if it cannot be written, such as on a full disk."""
    with _written():
        sys.stdout.write(text)
        sys.stdout.flush()


@contextlib.contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # the reader has closed the pipe: not an error
    except OSError as error:
        raise unwritten(error) from error


def unwritten(error: OSError) -> HardwareError:
    """Return the error for output that could not be written to stdout, and discard that output."""
    drop_unwritten(sys.stdout, error)
    return HardwareError(f"cannot write the output: {error.strerror}", "write it where there is free space")


def is_terminal() -> bool:
    """Return whether stdout is a terminal.

    The stdout of an Open MPI rank is always a pseudo-terminal, which mpirun copies to its own stdout, even if
    that is a file.
    """
    return sys.stdout.isatty() and "OMPI_COMM_WORLD_RANK" not in os.environ


def show(document: "Document", *, whole: bool = True) -> None:
    """Print a document for the width of the terminal, complete or short.

    A pipe gets plain text, 80 columns wide unless COLUMNS is set. On a terminal, rich decides on colours by
    NO_COLOR and TERM.
    """
    from gputopo.report import document_lines, document_text

    if not is_terminal():
        columns = os.environ.get("COLUMNS", "")
        width = max(int(columns), _NARROWEST) if columns.isdecimal() else 80
        emit(_encodable(document_text(document, width, whole=whole)))
        return
    from rich.text import Text

    console = _console()
    # Keep the last column free: some terminals wrap a line that fills it.
    width = max(min(console.width, shutil.get_terminal_size().columns) - 1, _NARROWEST)
    with _written():
        for line in for_this_stdout(document_lines(document, width, whole=whole, on_screen=True)):
            text = Text.assemble(*line)
            text.rstrip()
            console.print(text, soft_wrap=True)


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def can_redraw() -> bool:
    """Return whether stdout is a terminal that can move its cursor."""
    return is_terminal() and os.environ.get("TERM", "dumb") != "dumb"


@contextlib.contextmanager
def redrawn_lines() -> "Iterator[Callable[[Sequence[Line]], None]]":
    """Yield a function that draws lines over those that it drew last, cut to the size of the terminal."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(
        console=_console(),
        auto_refresh=False,
        vertical_overflow="crop",
        redirect_stdout=False,
        redirect_stderr=False,
    ) as live:

        def draw(lines: "Sequence[Line]") -> None:
            texts = (Text.assemble(*line, no_wrap=True, overflow="crop") for line in for_this_stdout(lines))
            with _written():
                live.update(Group(*texts), refresh=True)

        yield draw


def for_this_stdout(lines: "Sequence[Line]") -> "Sequence[Line]":
    """Return the lines, without box characters if stdout cannot encode them."""
    return [tuple((_encodable(text), style) for text, style in line) for line in lines]


def _encodable(text: str) -> str:
    try:
        "├▁".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_ASCII)
    return text


def show_report(
    value: "msgspec.Struct", document: "Callable[[], Document]", shape: str, *, whole: bool = True
) -> None:
    """Print a value as JSON, or its document as Markdown or text, complete or short."""
    if shape == "json":
        from gputopo.values import schema

        emit(schema.encode_pretty(value))
    elif shape == "markdown":
        from gputopo.report import document_markdown

        emit(document_markdown(document()))
    else:
        show(document(), whole=whole)
