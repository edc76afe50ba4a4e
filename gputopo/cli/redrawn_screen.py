"""A screen that is redrawn in place, on a terminal that can move its cursor."""

import os
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputopo.report import Line
from gputopo.cli.printing import emit, for_this_stdout, is_terminal

# ECMA-48, Select Graphic Rendition, for the styles that reports use.
_CODES = {"bold": "1", "dim": "2", "red": "31", "yellow": "33", "cyan": "36"}


def can_redraw() -> bool:
    """Return whether stdout is a terminal that can move its cursor."""
    return is_terminal() and os.environ.get("TERM", "dumb") != "dumb"


class RedrawnScreen:
    """A block of lines that is redrawn in place. It is cut to the size of the terminal."""

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
