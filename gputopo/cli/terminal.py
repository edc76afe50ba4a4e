"""Lines of a terminal that are redrawn in place, with plain escape codes: loading rich takes longer."""

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gputopo.cli.printing import emit, is_terminal

if TYPE_CHECKING:
    from gputopo.report.layout import Line

# ECMA-48, Select Graphic Rendition, for the styles that reports use.
_CODES = {"bold": "1", "dim": "2", "red": "31", "yellow": "33", "cyan": "36"}
# ASCII replacements of the box and block characters of trees and heat maps.
_ASCII = str.maketrans("├└│─▁▂▃▄▅▆▇█░▒▓", "+`|-._-=+*##.:+")


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


class Screen:
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
    return "".join(f"\x1b[{codes}m{text}\x1b[0m" if (codes := _sgr(style)) else text for text, style in line)


def _sgr(style: str) -> str:
    return ";".join(_CODES[word] for word in style.split() if word in _CODES)
