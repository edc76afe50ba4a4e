"""Output of commands: data to stdout, coloured only on a terminal, never wider than it.

Data that cannot be written is an error. Messages go to stderr: `gputopo.report.stderr`.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from gputopo.report.stderr import drop_unwritten
from gputopo.values.errors import HardwareError

if TYPE_CHECKING:
    import msgspec

    from gputopo.probes.session.session import SessionProgress
    from gputopo.report.document import Document
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
        raise  # the reader has closed the pipe: no error
    except OSError as error:
        raise unwritten(error) from error


def unwritten(error: OSError) -> HardwareError:
    """Return the error for output that could not be written to stdout, and drop that output."""
    drop_unwritten(sys.stdout)
    return HardwareError(f"cannot write the output: {error.strerror}", "write it where there is free space")


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


# ECMA-48, Select Graphic Rendition, for the styles that reports use.
_CODES = {"bold": "1", "dim": "2", "red": "31", "yellow": "33", "cyan": "36"}
# ASCII replacements of the box and block characters of trees and matrices, and of signs.
_ASCII = str.maketrans("├└│─▁▂▃▄▅▆▇█░▒▓\N{MULTIPLICATION SIGN}…", "+`|-._-=+*##.:+x~")


def can_redraw() -> bool:
    """Return whether stdout is a terminal that can move its cursor."""
    return is_terminal() and os.environ.get("TERM", "dumb") != "dumb"


def for_this_stdout(lines: "Sequence[Line]") -> "Sequence[Line]":
    """Return the lines, without box characters where stdout cannot encode them."""
    try:
        "├▁".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return [tuple((text.translate(_ASCII), style) for text, style in line) for line in lines]
    return lines


class RedrawnScreen:
    """A block of lines that is redrawn in place. What does not fit the terminal is cut."""

    def __init__(self) -> None:
        self._height = 0

    @property
    def width(self) -> int:
        """Columns of a line; the last one of the terminal stays free."""
        return max(shutil.get_terminal_size().columns - 1, 20)

    def draw(self, lines: "Sequence[Line]") -> None:
        """Replace the lines drawn last."""
        height = max(shutil.get_terminal_size().lines - 1, 1)
        shown = [_cut(line, self.width) for line in for_this_stdout(lines)[:height]]
        up = f"\x1b[{self._height}A\r" if self._height else ""
        emit(up + "".join(f"{_coloured(line)}\x1b[K\n" for line in shown) + "\x1b[J")
        self._height = len(shown)


def _cut(line: "Line", width: int) -> "Line":
    left, cut = width, []
    for text, style in line:
        cut.append((text[:left], style))
        left -= len(text[:left])
    return tuple(cut)


def _coloured(line: "Line") -> str:
    if os.environ.get("NO_COLOR"):
        return "".join(text for text, _ in line).rstrip()
    codes = (";".join(_CODES[word] for word in style.split() if word in _CODES) for _, style in line)
    spans = zip(line, codes, strict=True)
    return "".join(f"\x1b[{code}m{text}\x1b[0m" if code else text for (text, _), code in spans)


_PLAIN_STEPS = 4  # lines where there is no terminal: at each quarter of the jobs


class ProgressLine:
    """Display of a session's progress: a context manager that clears its line at the end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._quarter = -1

    def __enter__(self) -> Self:
        """Start the display."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the line."""
        if self._live:
            self._write("\r\x1b[K")

    def show(self, progress: "SessionProgress") -> None:
        """Show the progress of the session."""
        if self._live:
            width = max(shutil.get_terminal_size().columns - 1, 20)
            self._write(f"\r{progress_in_words(progress)[:width]}\x1b[K")
            return
        quarter = _PLAIN_STEPS * progress.done // max(progress.total, 1)
        if quarter > self._quarter:
            self._quarter = quarter
            self._write(f"gputopo: {progress_in_words(progress)}\n")

    def _write(self, text: str) -> None:
        # A stderr that cannot be written does not end the measurement.
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            drop_unwritten(self._stream)
            self._live, self._quarter = False, _PLAIN_STEPS


def progress_in_words(progress: "SessionProgress") -> str:
    """Return `measuring 12 of 87, about 21.0 s left: h2d host -> gpu:0`."""
    from gputopo.report.layout import plain
    from gputopo.report.units import seconds

    left = "" if progress.seconds_left is None else f", about {seconds(progress.seconds_left)} left"
    number = min(progress.done + 1, progress.total)
    return f"measuring {number} of {progress.total}{left}: {plain(progress.now)}"


def show_report(
    value: "msgspec.Struct", document: "Callable[[], Document]", shape: str, *, whole: bool = True
) -> None:
    """Print a value as JSON, or its document as Markdown or, for any other shape, as text, whole or short."""
    if shape == "json":
        from gputopo.values import schema

        emit(schema.encode_pretty(value))
    elif shape == "markdown":
        from gputopo.report.markdown import document_markdown

        emit(document_markdown(document()))
    else:
        from gputopo.report.document import document_lines

        shown = document()
        on_screen = is_terminal()
        show(lambda width: for_this_stdout(document_lines(shown, width, whole=whole, on_screen=on_screen)))
