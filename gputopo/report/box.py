"""The history of a box as a document: what is worse and since when, runs and links over the dates."""

import csv
import io
from collections.abc import Sequence

from gputopo.captures.training_table import COLUMNS, cell_text
from gputopo.measurements.box import Box, Series, Worsening
from gputopo.measurements.study import Study
from gputopo.report.document import Block, Bullets, Document, Section, Table
from gputopo.report.layout import Side
from gputopo.runs.history import date_in_words
from gputopo.values.run.measurement import Measurement

_MAX_ROWS = 200
_MAX_CURVES = 8  # of one picture: those that changed first, then those with most points


def box_document(box: Box, *, pictures: bool = False) -> Document:
    """Return the document; `pictures`: with charts over the dates, which load matplotlib."""
    by_unit = {unit: [one for one in box.series if one.unit == unit] for unit in ("images/sec", "GB/s")}
    sections = [
        Section("What is worse", (_changes(box.changes),)),
        *(
            Section(title, _over_time(by_unit[unit], box.changes, title, unit, pictures=pictures))
            for title, unit in (("Speeds", "images/sec"), ("Links", "GB/s"))
            if by_unit[unit]
        ),
        Section("Runs", (_runs(box.runs),)),
    ]
    count = len(box.runs)
    summary = f"{count} run{'' if count == 1 else 's'} on {box.machine or 'this machine'}."
    return Document("History", summary, tuple(sections))


def change_words(change: Worsening) -> str:
    """Return a change as a sentence with its numbers."""
    return (
        f"{change.what}: {change.percent:.0f} % lower since {date_in_words(change.since_s)}, "
        f"{change.after:.4g} instead of {change.before:.4g} {change.unit} (medians of "
        f"{change.measurements_after} and {change.measurements_before}; noise explains "
        f"{change.noise_percent:.1f} % at most)."
    )


def _changes(changes: Sequence[Worsening]) -> Block:
    if changes:
        return Bullets(tuple(map(change_words, changes)))
    return (
        "Nothing is worse beyond the noise of its measurements. A series needs two measurements before a "
        "change, and two after it."
    )


def _over_time(
    series: Sequence[Series], changes: Sequence[Worsening], title: str, unit: str, *, pictures: bool
) -> tuple[Block, ...]:
    """Return a table of first, last and median values, and the series that matter most as a picture."""
    rows = tuple(
        (
            one.what,
            str(len(one.points)),
            f"{one.points[0].value:.4g}",
            f"{one.points[-1].value:.4g}",
            f"{min(point.value for point in one.points):.4g}",
            f"{max(point.value for point in one.points):.4g}",
            date_in_words(one.points[-1].time_s),
        )
        for one in series[:_MAX_ROWS]
        if one.points
    )
    heads = ("", "measured", "first", "last", "lowest", "highest", "last measured")
    sides: tuple[Side, ...] = ("left", "right", "right", "right", "right", "right", "left")
    notes = (unit, *_left_out(len(series)))
    table = Table.of(heads, rows, sides, notes)
    return (table, *(_pictures(series, changes, title, unit) if pictures else ()))


def _pictures(
    series: Sequence[Series], changes: Sequence[Worsening], title: str, unit: str
) -> tuple[Block, ...]:
    from gputopo.report.pictures.charts import ChartPoint, dated_picture
    from gputopo.report.pictures.charts import ChartSeries as Curve
    from gputopo.runs.over_time import Happening

    worse = {change.what: change for change in changes}
    several = [one for one in series if len(one.points) > 1]
    shown = sorted(several, key=lambda one: (one.what not in worse, -len(one.points)))[:_MAX_CURVES]
    curves = [
        Curve(one.what, tuple(ChartPoint(point.time_s, point.value) for point in one.points)) for one in shown
    ]
    faults = [
        Happening(worse[one.what].since_s, f"{worse[one.what].percent:.0f} % lower", True)
        for one in shown
        if one.what in worse
    ]
    name = f"history-{title.lower()}"
    picture = dated_picture(name, f"{title} over time", unit, curves, faults)
    return () if picture is None else (picture,)


def _runs(runs: Sequence[Measurement]) -> Table:
    rows = tuple(
        (
            "unknown" if one.time_s is None else date_in_words(one.time_s),
            one.model,
            str(one.n_gpus) if not one.gpus else ",".join(map(str, one.gpus)),
            one.mode,
            "" if one.batch_per_gpu is None else str(one.batch_per_gpu),
            f"{one.images_per_sec:.4g}" if one.is_measured else f"{one.status}: {one.reason}",
            "; ".join(one.conditions),
            one.source,
        )
        for one in reversed(runs[-_MAX_ROWS:])
    )
    heads = ("date", "model", "GPUs", "variables", "batch", "images/sec", "remarks", "run")
    sides: tuple[Side, ...] = ("left", "left", "left", "left", "right", "right", "left", "left")
    return Table.of(heads, rows, sides, _left_out(len(runs)))


def _left_out(count: int) -> tuple[str, ...]:
    return (f"{count - _MAX_ROWS} more are in the JSON.",) if count > _MAX_ROWS else ()


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
                [_printable(cell_text(getattr(one, name))) for name in COLUMNS]
                + [cell_text(v) for v in derived]
            )
    return out.getvalue()


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)
