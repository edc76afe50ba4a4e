"""Tables of a study, and what stands in their cells."""

from collections.abc import Mapping, Sequence

from gputopo.measurements.cells import Cell
from gputopo.report.document import Table
from gputopo.report.layout import Side
from gputopo.report.units import images_per_sec
from gputopo.values.run.measurement import Status

# Rows of one table in a document for people; JSON and CSV have all.
MAX_ROWS = 200
# What stands in the place of a figure.
_WITHOUT_FIGURE: Mapping[Status, str] = {
    "complete": "missing",
    "failed": "failed",
    "interrupted": "interrupted",
    "missing": "missing",
    "refused": "refused",
    "left_out": "left out",
    "pending": "to run",
}


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: int = 1,
    notes: Sequence[str] = (),
    *,
    sides: Sequence[Side] = (),
) -> Table:
    """Return a table whose first columns are left, all others right; of a long one the first rows."""
    sides = sides or tuple("left" if place < left else "right" for place in range(len(heads)))
    more = len(rows) - MAX_ROWS
    extra = (f"And {more} more rows: --format csv or json has all.",) if more > 0 else ()
    return Table.of(heads, rows[:MAX_ROWS], sides, (*notes, *extra))


def without_empty(found: Table) -> Table:
    """Return a table without the columns that have nothing in any row."""
    return found.mapped(lambda column: column if any(column.cells) else None)


def cell_words(cell: Cell, digits: int | None = None) -> str:
    """Return the figure of a cell, or that there is none: `failed`, `missing`; never 0."""
    if cell.images_per_sec is None:
        return _WITHOUT_FIGURE[cell.of.status]
    return images_per_sec(cell.images_per_sec) if digits is None else f"{cell.images_per_sec:.{digits}f}"
