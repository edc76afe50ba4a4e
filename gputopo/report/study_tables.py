"""Tables of a study, and the contents of their cells."""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gputopo.report.document import Block, Bullets, Table
from gputopo.report.layout import Column
from gputopo.report.units import percent, three_figures
from gputopo.values.grouping import grouped
from gputopo.values.run.measurement import CONDITIONS, Status
from gputopo.values.study import DEVIATIONS, RUN_TO_RUN, Cell

ROWS = 5  # in the short form of a table
_END = re.compile(r"(?<=\d)(?:\.\d+)?x?$")  # matches what follows the whole part of a number
# The text in place of a figure.
_WITHOUT_FIGURE: Mapping[Status, str] = {
    "complete": "missing",
    "failed": "failed",
    "interrupted": "interrupted",
    "missing": "missing",
}


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: Sequence[str],
    notes: Sequence[str] = (),
    shown: int = ROWS,
) -> Table:
    """Return a table without empty columns. Columns not in `words` are numbers, with aligned decimals."""
    whole = Table.of(heads, rows, words=words, notes=notes, shown=shown)
    return without_empty(whole.mapped(lambda column: column if column.side == "left" else _aligned(column)))


def bullets(items: Iterable[str], shown: int) -> list[Block]:
    """Return a list with `shown` items in the short form; empty if there are no items."""
    listed = tuple(items)
    return [Bullets(listed, shown=shown)] if listed else []


def _aligned(column: Column) -> Column:
    """Return a column of numbers, padded with spaces so that the decimal points are aligned."""
    ends = [_END.search(cell) for cell in column.cells]
    widest = max((len(end[0]) for end in ends if end), default=0)
    cells = (
        f"{cell}{' ' * (widest - len(end[0]))}" if end else cell
        for cell, end in zip(column.cells, ends, strict=True)
    )
    return msgspec.structs.replace(column, cells=tuple(cells))


def without_empty(table: Table) -> Table:
    """Return a table without the columns that are empty in every row."""
    return table.mapped(lambda column: column if any(column.cells) else None)


def cell_words(cell: Cell) -> str:
    """Return the figure of a cell, or why there is none: `failed`, `missing`; never 0."""
    speed = cell.images_per_sec
    return _WITHOUT_FIGURE[cell.of.status] if speed is None else three_figures(speed)


def noise_words(cell: Cell) -> str:
    """Return two standard errors in percent; `2.0 assumed` if the noise was not measured."""
    if cell.noise is None:
        return ""
    return percent(100 * DEVIATIONS * cell.noise) + (" assumed" if cell.noise == RUN_TO_RUN else "")


def row_words(cells: Sequence[Cell], names: Sequence[str]) -> list[str]:
    """Return a name for each cell of a table that also shows the devices.

    If names and devices are equal, the conditions that differ are added, and for runs with drills the source.
    """
    keys = [(cell.of.job_words(names), cell.of.n_gpus, cell.of.gpus) for cell in cells]
    groups = grouped(zip(keys, cells, strict=True))
    words = []
    for key, cell in zip(keys, cells, strict=True):
        parts, alike = [key[0]], groups[key]
        if len(alike) > 1:
            parts += [
                f"{label} {cell.of.value_words(name)}"
                for name, label in CONDITIONS.items()
                if len({getattr(other.of, name) for other in alike}) > 1
            ]
            parts += [cell.of.source] if cell.of.is_drill else []
        words.append(", ".join(filter(None, parts)))
    return words


def devices_word(cells: Iterable[Cell]) -> str:
    """Return what the devices of cells are: `GPUs`, `CPU devices`, or `devices` if there are both."""
    words = {cell.of.device_word for cell in cells}
    return f"{words.pop()}s" if len(words) == 1 else "devices"


def speed_unit(cells: Iterable[Cell]) -> str:
    """Return the unit of the speeds of cells: `images/sec`; `per second` if they count different things."""
    units = {cell.of.unit for cell in cells}
    return f"{units.pop()}/sec" if len(units) == 1 else "per second"
