"""A part of a terminal that is drawn again in its place, with plain escape codes: rich would cost more."""

import os
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gputopo.cli.printing import emit

if TYPE_CHECKING:
    from gputopo.report.layout import Line

# ECMA-48, Select Graphic Rendition, for the styles that reports use.
_CODES = {"bold": "1", "dim": "2", "red": "31", "yellow": "33", "cyan": "36"}
# What a terminal that knows ASCII only gets instead of the lines of trees and the shades of pictures.
_ASCII = str.maketrans("├└│─▁▂▃▄▅▆▇█░▒▓", "+`|-._-=+*##.:+")


def can_redraw() -> bool:
    """Tell whether stdout is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def for_this_stdout(lines: "Sequence[Line]") -> "Sequence[Line]":
    """Give lines without box characters where stdout cannot write them."""
    try:
        "├▁".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return [tuple((text.translate(_ASCII), style) for text, style in line) for line in lines]
    return lines


class Screen:
    """Draws lines over those drawn before. What does not fit the terminal is cut."""

    def __init__(self) -> None:
        self._height = 0

    @property
    def width(self) -> int:
        """The columns that a line may have; the last one stays free."""
        return max(shutil.get_terminal_size().columns - 1, 20)

    def draw(self, lines: "Sequence[Line]") -> None:
        """Replace what was drawn last."""
        room = max(shutil.get_terminal_size().lines - 1, 1)
        shown = [_cut(line, self.width) for line in for_this_stdout(lines)[:room]]
        up = f"\x1b[{self._height}A\r" if self._height else ""
        emit(up + "".join(f"{_coloured(line)}\x1b[K\n" for line in shown) + "\x1b[J")
        self._height = len(shown)


def _cut(line: "Line", width: int) -> "Line":
    left, pieces = width, []
    for text, style in line:
        pieces.append((text[:left], style))
        left -= len(text[:left])
    return tuple(pieces)


def _coloured(line: "Line") -> str:
    if os.environ.get("NO_COLOR"):
        return "".join(text for text, _ in line).rstrip()
    return "".join(f"\x1b[{codes}m{text}\x1b[0m" if (codes := _sgr(style)) else text for text, style in line)


def _sgr(style: str) -> str:
    return ";".join(_CODES[word] for word in style.split() if word in _CODES)
