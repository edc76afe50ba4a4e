"""The few shapes that all reports are made of: a heading, aligned rows, lines that hang under their label."""

from collections.abc import Iterable, Sequence
from typing import Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

INDENT = 2
GAP = 2  # columns between two columns

HEADING = "bold"
QUIET = "dim"
SEVERITY_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}

UNKNOWN = "?"  # asked for and not given; the report says why
NOT_ASKED = "-"  # this source does not tell it


def section(title: str, *body: RenderableType) -> Group:
    """Give a heading with its body indented under it, and an empty line after it."""
    return Group(Text(title, style=HEADING), *(Padding(part, (0, 0, 0, INDENT)) for part in body), Text())


def labelled(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Give rows of a label and a text that is folded beside it."""
    table = Table.grid(padding=(0, GAP, 0, 0))
    table.add_column(no_wrap=True, style=QUIET)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(label, Text(text) if isinstance(text, str) else text)
    return table


Side = Literal["left", "right"]


def columns(heads: Sequence[tuple[str, Side]], rows: Iterable[Sequence[Text]], *, folds: int = -1) -> Table:
    """Give aligned columns under their heads. Only column number `folds` may fold where it is too wide."""
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style=QUIET)
    for number, (head, side) in enumerate(heads):
        table.add_column(
            Text(head, justify=side), justify=side, no_wrap=number != folds, overflow="fold", vertical="top"
        )
    for row in rows:
        table.add_row(*row)
    return table


def plain(text: str) -> str:
    """Give text from outside (a card's name, a line of a capture) without control characters."""
    return "".join(character if character.isprintable() else "?" for character in text)


def gib(mib: int) -> str:
    """Give mebibytes as gibibytes with one digit: `62.8 GiB`."""
    return f"{mib / 1024:.1f} GiB"


def index_ranges(indices: Iterable[int]) -> str:
    """Give indices as `0-3,6`."""
    runs: list[list[int]] = []
    for index in sorted(set(indices)):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
