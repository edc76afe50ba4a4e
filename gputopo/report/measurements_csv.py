"""Measurements as CSV, which `gputopo report --import` reads: a header of field names, one row each."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from gputopo.values.box import Box
from gputopo.values.run.measurement import COLUMNS, Measurement
from gputopo.values.study import Study

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of a formula in a spreadsheet


def measured_csv(value: Study | Box) -> str:
    """Return a table of all runs, which `--import` reads. Cells that look like a formula get a quote.

    A run without a figure has its status and reason, but no figures.
    """
    return _study_csv(value) if isinstance(value, Study) else _csv(value.runs, {})


def _csv(measurements: Sequence[Measurement], more: Mapping[str, Sequence[float | None]]) -> str:
    """Return measurements as a table. `more`: columns that `--import` ignores."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*COLUMNS, *more))
    for number, measurement in enumerate(measurements):
        cells = [getattr(measurement, name) for name in COLUMNS] + [
            values[number] for values in more.values()
        ]
        writer.writerow(map(_cell_text, cells))
    return out.getvalue()


def _cell_text(value: Any) -> str:
    """Return a value as a cell: empty for None, numbers with all digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, float):
        return repr(value)
    return f"'{value}" if isinstance(value, str) and value.startswith((*_FORMULA, "'")) else str(value)


def _study_csv(study: Study) -> str:
    rows = {row.cell: row for scaling in study.figures.scalings for row in scaling.rows}
    runs = [(run, rows.get(cell.number), cell.noise) for cell in study.figures.cells for run in cell.runs]
    more: dict[str, list[float | None]] = {
        "speedup": [row.speedup if row else None for _, row, _ in runs],
        "efficiency_percent": [row.efficiency_percent if row else None for _, row, _ in runs],
        "noise_percent": [None if noise is None else 100 * noise for _, _, noise in runs],
    }
    text = _csv([run for run, _, _ in runs], more)
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in text)
