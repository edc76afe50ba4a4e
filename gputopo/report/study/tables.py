"""Tables of a study, and what stands in their cells."""

import re
from collections.abc import Mapping, Sequence

from gputopo.measurements.cells import Cell
from gputopo.report.document import Bars, Block, Bullets, Table
from gputopo.report.layout import Side, plain
from gputopo.report.units import images_per_sec
from gputopo.values.run.measurement import Status

# Rows of one table in a document for people; JSON and CSV have all.
MAX_ROWS = 200
_MAX_WORD = 200  # letters without a space: longer than any path that is worth reading
_ENDLESS = re.compile(rf"\S{{{_MAX_WORD + 1},}}")
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
    heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, notes: Sequence[str] = ()
) -> Table:
    """Return a table whose first columns are left, all others right; of a long one the first rows."""
    sides: tuple[Side, ...] = tuple("left" if place < left else "right" for place in range(len(heads)))
    more = len(rows) - MAX_ROWS
    extra = (f"And {more} more rows: --format csv or json has all.",) if more > 0 else ()
    return Table(tuple(heads), tuple(tuple(row) for row in rows[:MAX_ROWS]), sides, (*notes, *extra))


def without_empty(found: Table) -> Table:
    """Return a table without the columns that have nothing in any row."""
    kept = [place for place in range(len(found.heads)) if any(row[place] for row in found.rows)]
    return Table(
        tuple(found.heads[place] for place in kept),
        tuple(tuple(row[place] for place in kept) for row in found.rows),
        tuple(found.side(place) for place in kept),
        found.notes,
    )


def cell_words(cell: Cell, digits: int | None = None) -> str:
    """Return the figure of a cell, or that there is none: `failed`, `missing`; never 0."""
    if cell.images_per_sec is None:
        return _WITHOUT_FIGURE[cell.of.status]
    return images_per_sec(cell.images_per_sec) if digits is None else f"{cell.images_per_sec:.{digits}f}"


def shown(text: str) -> str:
    """Return a text without the control characters that a log or a name had, and without endless words."""
    return _ENDLESS.sub(lambda found: f"{found[0][:_MAX_WORD]}…", plain(text))


def plain_block(block: Block) -> Block:
    """Return a block whose texts are `shown`."""
    if isinstance(block, str):
        return shown(block)
    if isinstance(block, Bullets):
        return Bullets(tuple(map(shown, block.items)))
    if isinstance(block, Table):
        rows = tuple(tuple(map(shown, row)) for row in block.rows)
        return block._replace(rows=rows, heads=tuple(map(shown, block.heads)))
    if isinstance(block, Bars):
        return block._replace(rows=tuple(row._replace(series=shown(row.series)) for row in block.rows))
    return block
