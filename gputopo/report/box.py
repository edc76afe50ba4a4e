"""The history of a box as a document: what is worse and since when; runs and links over time."""

from collections.abc import Sequence

from gputopo.report.document import Block, Document, Table, of_sections
from gputopo.report.study_tables import bullets, table
from gputopo.report.units import counted
from gputopo.values.box import MIN_SIDE, Box, Series, Worsening
from gputopo.values.run.measurement import Measurement
from gputopo.values.words import date_in_words, figure

_ROWS = 12  # rows of a table in the short form
_MAX_CURVES = 8  # of one picture: the curves that changed first, then the ones with the most points
_NOTHING = "Nothing became worse beyond the noise of its measurements."
_TOO_FEW = "Too few undisturbed measurements: a change needs three before and three after it."


def box_document(box: Box, *, pictures: bool = False) -> Document:
    """Return the document; `pictures`: with charts over the dates."""
    sections: list[tuple[str, Sequence[Block]]] = [
        ("What is worse", _changes(box)),
        ("To repeat", bullets(map(_repeat_words, box.to_repeat), _ROWS)),
        ("Changed versions", bullets([f"{date_in_words(at.time_s)}: {at.says}" for at in box.events], _ROWS)),
    ]
    for title, unit in (("Speeds", "images/sec"), ("Links", "GB/s")):
        if shown := [series for series in box.series if series.unit == unit and series.points]:
            drawn = _pictures(box, shown, title, unit) if pictures else ()
            sections.append((title, (*drawn, _over_time(shown, unit))))
    sections.append(("Runs", (_runs(box.runs),) if box.runs else ()))
    summary = f"{counted(len(box.runs), 'run')} on {box.machine or 'this machine'}."
    if box.elsewhere:
        summary += f" {counted(box.elsewhere, 'run')} on other hardware not shown."
    if box.changes:
        headline = _change_words(box.changes[0])
    elif box.to_repeat:
        headline = _repeat_words(box.to_repeat[0])
    else:
        is_long = any(len(series.points) >= 2 * MIN_SIDE for series in box.series)
        headline = _NOTHING if is_long else _TOO_FEW
    return of_sections(sections, "History", summary, headline)


def _change_words(change: Worsening) -> str:
    """Return a change as a sentence with its numbers."""
    events = f", with {' and '.join(change.with_events)}" if change.with_events else ""
    return (
        f"{change.what}: {change.percent:.0f}% lower since {date_in_words(change.since_s)}{events}: "
        f"{figure(change.after)} instead of {figure(change.before)} {change.unit} (medians of "
        f"{change.measurements_after} and {change.measurements_before}, noise {change.noise_percent:.1f}%)."
    )


def _repeat_words(low: Worsening) -> str:
    return (
        f"{low.what}: the last measurement is {low.percent:.0f}% low ({figure(low.after)} {low.unit}, median "
        f"{figure(low.before)}): repeat it."
    )


def _changes(box: Box) -> list[Block]:
    """Return what is worse. If a job is slower, its devices are listed under the job."""
    jobs = {change.what for change in box.changes}
    words = []
    for change in box.changes:
        if change.what.partition(" in ")[2] not in jobs:
            slower = [
                f"{part.what.partition(' in ')[0]} {part.percent:.0f}%"
                for part in box.changes
                if part.what.endswith(f" in {change.what}")
            ]
            words.append(_change_words(change) + (f" Of its devices: {', '.join(slower)}." if slower else ""))
    return bullets(words, _ROWS)


def _over_time(series: Sequence[Series], unit: str) -> Table:
    """Return a table of first, last and extreme values."""
    rows = []
    for one_series in series:
        points = one_series.points
        values = [point.value for point in points]
        ends = map(figure, (values[-1], values[0], min(values), max(values)))
        rows.append((one_series.what, *ends, str(len(points)), date_in_words(points[-1].time_s)))
    heads = (unit, "last", "first", "lowest", "highest", "measured", "last measured")
    return table(heads, rows, words=(unit, "last measured"), shown=_ROWS)


def _pictures(box: Box, series: Sequence[Series], title: str, unit: str) -> tuple[Block, ...]:
    from gputopo.report.pictures import ChartPoint, ChartSeries, dated_picture
    from gputopo.values.run.over_time import Happening

    worse = {change.what: change for change in box.changes}
    several = [curve for curve in series if len(curve.points) > 1]
    drawn = sorted(several, key=lambda curve: (curve.what not in worse, -len(curve.points)))[:_MAX_CURVES]
    curves = [
        ChartSeries(curve.what, tuple(ChartPoint(point.time_s, point.value) for point in curve.points))
        for curve in drawn
    ]
    marks = {event.time_s: Happening(event.time_s, event.says, False) for event in box.events}
    for change in (worse[curve.what] for curve in drawn if curve.what in worse):
        words = ", ".join((f"{change.percent:.0f}% lower", *change.with_events))
        marks[change.since_s] = Happening(change.since_s, words, True)
    name = f"history-{title.lower()}"
    picture = dated_picture(name, f"{title} over time", unit, curves, list(marks.values()))
    return () if picture is None else (picture,)


def _runs(runs: Sequence[Measurement]) -> Table:
    rows = [
        (
            "unknown" if run.time_s is None else date_in_words(run.time_s),
            run.model,
            figure(run.images_per_sec) if run.is_measured else "",
            ",".join(map(str, run.gpus)) or str(run.n_gpus),
            run.mode,
            str(run.batch_per_gpu or ""),
            "; ".join(run.conditions) if run.is_measured else f"{run.status}: {run.reason}",
            run.source,
        )
        for run in reversed(runs)
    ]
    heads = ("date", "model", "images/sec", "GPUs", "variables", "batch", "remarks", "run")
    words = ("date", "model", "GPUs", "variables", "remarks", "run")
    return table(heads, rows, words=words, shown=_ROWS)
