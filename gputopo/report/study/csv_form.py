"""A study as CSV: each run a row, with what is derived of its cell. `gputopo report --import` reads it."""

import csv
import io

from gputopo.captures.training_table import COLUMNS, cell_text
from gputopo.measurements.study import Study
from gputopo.report.layout import plain

DERIVED = ("speedup", "efficiency_percent", "noise_percent")


def study_csv(study: Study) -> str:
    """Return the table. A run without a figure has its status and reason, and no figures."""
    rows = {row.cell: row for scaling in study.figures.scalings for row in scaling.rows}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*COLUMNS, *DERIVED))
    for cell in study.figures.cells:
        row = rows.get(cell.number)
        noise = None if cell.noise is None else 100 * cell.noise
        derived = (row.speedup, row.efficiency_percent, noise) if row else (None, None, noise)
        for one in cell.runs:
            writer.writerow(
                [plain(cell_text(getattr(one, name))) for name in COLUMNS] + [cell_text(v) for v in derived]
            )
    return out.getvalue()
