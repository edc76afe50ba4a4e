"""The text renderer of all reports: headings, aligned columns, labelled paragraphs.

A report is a list of lines. A line is a list of text spans, each with a style of rich ("bold", "dim",
"yellow", or ""). Plain text for a pipe does not import rich, which takes 36 ms.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import chain, repeat, zip_longest
from typing import Literal

import msgspec

Span = tuple[str, str]  # text, style
Line = tuple[Span, ...]
Side = Literal["left", "right"]

INDENT = 2
GAP = 2  # spaces between two columns
_MAX_WORD = 200  # letters without a space: longer than any useful path
_ENDLESS = re.compile(rf"\S{{{_MAX_WORD + 1},}}")
_MAX_LABEL = 24  # columns; the words of a longer label are below it

HEADING = "bold"
QUIET = "dim"
SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}

ANOMALY_STYLE = SEVERITY_STYLES["error"]

UNKNOWN = "?"  # requested but not available; the report has the reason
NOT_ASKED = "-"  # this source does not report it
LOST = "LOST"
FAILED = "FAIL"  # tried and failed; the report has the reason

_CELL_STYLES = {
    UNKNOWN: QUIET,
    NOT_ASKED: QUIET,
    LOST: SEVERITY_STYLES["error"],
    FAILED: SEVERITY_STYLES["error"],
}


class Column(msgspec.Struct, frozen=True):
    """A column of a table: its head (one or two lines) and its cells."""

    head: str
    cells: tuple[str, ...]
    side: Side = "left"
    max_width: int | None = None  # cells that are wider fold
    styles: tuple[str, ...] = ()  # for each cell, if it does not have the style of its mark below

    @property
    def width(self) -> int:
        """The width on the screen, in columns."""
        widest = max(map(len, chain(self.head.split("\n"), self.cells)))
        return widest if self.max_width is None else min(widest, self.max_width)

    def style(self, row: int) -> str:
        """Return the style of a cell."""
        return self.styles[row] if self.styles else _CELL_STYLES.get(self.cells[row], "")


def line(text: str = "", style: str = "") -> Line:
    """Return a line of one style."""
    return ((text, style),)


def text_of(lines: Iterable[Line]) -> str:
    """Return lines as plain text, each with a newline and without trailing spaces."""
    return "".join("".join(text for text, _ in spans).rstrip() + "\n" for spans in lines)


def indented(lines: Iterable[Line], by: int) -> list[Line]:
    """Return lines with spaces before them."""
    return [((" " * by, ""), *spans) for spans in lines]


def paragraph(text: str, width: int, style: str = "") -> list[Line]:
    """Return a text folded at spaces. A word that is too long is cut."""
    return [line(part, style) for part in _folded(text, width)]


def labelled(rows: Iterable[tuple[str, str]], width: int, styles: Iterable[str] = ()) -> list[Line]:
    """Return rows of a label and words. The words fold next to the label, or below it if the label is long.

    `styles`: the style of the words in each row; rows without one are unstyled.
    """
    rows = list(rows)
    space = max((len(label) for label, _ in rows if len(label) <= _MAX_LABEL), default=0)
    lines: list[Line] = []
    for (label, words), style in zip(rows, chain(styles, repeat("")), strict=False):
        if len(label) > _MAX_LABEL:
            lines += [*paragraph(label, width, QUIET), *indented(paragraph(words, width - GAP, style), GAP)]
            continue
        body = paragraph(words, width - space - GAP, style)
        heads = [label.ljust(space + GAP), *[" " * (space + GAP)] * len(body)]
        lines += [((head, QUIET), *spans) for head, spans in zip(heads, body, strict=False)]
    return lines


def blocks(groups: Sequence[Sequence[Column]], width: int, gap: int = GAP) -> list[list[Column]]:
    """Distribute columns over blocks of at most `width`; a group is split only if it is too wide for one."""
    shared: list[list[Column]] = [[]]
    for group in groups:
        for part in _even_parts(group, width, gap):
            if shared[-1] and width_of([*shared[-1], *part], gap) > width:
                shared.append([])
            shared[-1] += part
    return [block for block in shared if block]


def width_of(columns: Sequence[Column], gap: int = GAP) -> int:
    """Return the width of columns side by side, with the gap before each."""
    return sum(gap + column.width for column in columns)


def fitting(columns: Sequence[Column], width: int, optional: Sequence[str], gap: int = GAP) -> list[Column]:
    """Return the columns that fit a width. `optional`: heads of columns to drop, the first one first."""
    shown = list(columns)
    for head in optional:
        if width_of(shown, gap) <= width:
            break
        shown = [column for column in shown if column.head != head]
    return shown


def aligned(row_heads: Column, block: Sequence[Column], gap: int = GAP) -> list[Line]:
    """Return columns next to the heads of their rows. Empty rows are skipped."""
    columns = [row_heads, *block]
    heads = [column.head.split("\n") for column in columns]
    deepest = max(map(len, heads))
    heads = [[""] * (deepest - len(head)) + head for head in heads]
    quiet, widths = [QUIET] * len(columns), [column.width for column in columns]
    lines = [_row([head[depth] for head in heads], columns, quiet, gap, widths) for depth in range(deepest)]
    for number in range(len(row_heads.cells)):
        cells = [column.cells[number] for column in columns]
        if any(cells[1:]):
            folded = [_folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
            styles = [column.style(number) for column in columns]
            lines += [
                _row(parts, columns, styles, gap, widths) for parts in zip_longest(*folded, fillvalue="")
            ]
    return lines


def plain(text: str) -> str:
    """Return outside text (a name, a line of a capture) without control characters and long words."""
    shown = text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= _MAX_WORD else _ENDLESS.sub(lambda word: f"{word[0][:_MAX_WORD]}…", shown)


def printable(lines: Iterable[Line]) -> list[Line]:
    """Return lines without control characters in any span, whatever a capture contained."""
    return [tuple((plain(text), style) for text, style in spans) for spans in lines]


def _row(
    cells: Iterable[str], columns: Iterable[Column], styles: Iterable[str], gap: int, widths: Iterable[int]
) -> Line:
    spans = []
    for cell, column, style, width in zip(cells, columns, styles, widths, strict=True):
        padded = cell.ljust(width) if column.side == "left" else cell.rjust(width)
        spans.append((padded + " " * gap, style))
    return tuple(spans)


def _folded(text: str, width: int) -> list[str]:
    if len(text) <= width:
        return [text]
    return textwrap.wrap(text, max(width, 8), break_on_hyphens=False) or [""]


def _even_parts(group: Sequence[Column], width: int, gap: int) -> list[list[Column]]:
    """Cut a group into the fewest parts of about equal width.

    A column that is too wide is a part by itself.
    """
    for count in range(1, len(group) + 1):
        size = -(-len(group) // count)
        parts = [list(group[start : start + size]) for start in range(0, len(group), size)]
        if all(width_of(part, gap) <= width for part in parts):
            return parts
    return [[column] for column in group]
