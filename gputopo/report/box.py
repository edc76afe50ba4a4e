"""The history of a box as a document: what is worse and since when; runs and links over time."""

from collections.abc import Sequence

from gputopo.report.document import Block, Document, Section, Table
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
        if some := [one for one in box.series if one.unit == unit and one.points]:
            drawn = _pictures(box, some, title, unit) if pictures else ()
            sections.append((title, (*drawn, _over_time(some, unit))))
    sections.append(("Runs", (_runs(box.runs),) if box.runs else ()))
    summary = f"{counted(len(box.runs), 'run')} on {box.machine or 'this machine'}."
    if box.elsewhere:
        summary += f" {counted(box.elsewhere, 'run')} on other hardware not shown."
    shown = tuple(Section(title, tuple(blocks)) for title, blocks in sections if blocks)
    return Document("History", summary, shown, headline=_headline(box))


def _headline(box: Box) -> str:
    found = [change_words(one) for one in box.changes[:1]]
    found += [_repeat_words(one) for one in box.to_repeat[:1] if not found]
    is_long = any(len(one.points) >= 2 * MIN_SIDE for one in box.series)
    return " ".join(found or [_NOTHING if is_long else _TOO_FEW])


def change_words(change: Worsening) -> str:
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
    own = {one.what: one for one in box.changes}
    words = []
    for one in box.changes:
        if one.what.partition(" in ")[2] in own:
            continue
        with_it = [part for part in box.changes if part.what.endswith(f" in {one.what}")]
        parts = (f"{part.what.partition(' in ')[0]} {part.percent:.0f}%" for part in with_it)
        words.append(change_words(one) + (f" Of its devices: {', '.join(parts)}." if with_it else ""))
    return bullets(words, _ROWS)


def _over_time(series: Sequence[Series], unit: str) -> Table:
    """Return a table of first, last and extreme values."""
    rows = [
        (
            one.what,
            figure(one.points[-1].value),
            figure(one.points[0].value),
            figure(min(point.value for point in one.points)),
            figure(max(point.value for point in one.points)),
            str(len(one.points)),
            date_in_words(one.points[-1].time_s),
        )
        for one in series
    ]
    heads = (unit, "last", "first", "lowest", "highest", "measured", "last measured")
    return table(heads, rows, words=(unit, "last measured"), shown=_ROWS)


def _pictures(box: Box, series: Sequence[Series], title: str, unit: str) -> tuple[Block, ...]:
    from gputopo.report.pictures.charts import ChartPoint, dated_picture
    from gputopo.report.pictures.charts import ChartSeries as Curve
    from gputopo.values.run.over_time import Happening

    worse = {change.what: change for change in box.changes}
    several = [one for one in series if len(one.points) > 1]
    drawn = sorted(several, key=lambda one: (one.what not in worse, -len(one.points)))[:_MAX_CURVES]
    curves = [
        Curve(one.what, tuple(ChartPoint(point.time_s, point.value) for point in one.points)) for one in drawn
    ]
    marks = {one.time_s: Happening(one.time_s, one.says, False) for one in box.events}
    for change in (worse[one.what] for one in drawn if one.what in worse):
        words = ", ".join((f"{change.percent:.0f}% lower", *change.with_events))
        marks[change.since_s] = Happening(change.since_s, words, True)
    name = f"history-{title.lower()}"
    picture = dated_picture(name, f"{title} over time", unit, curves, list(marks.values()))
    return () if picture is None else (picture,)


def _runs(runs: Sequence[Measurement]) -> Table:
    rows = [
        (
            "unknown" if one.time_s is None else date_in_words(one.time_s),
            one.model,
            figure(one.images_per_sec) if one.is_measured else "",
            str(one.n_gpus) if not one.gpus else ",".join(map(str, one.gpus)),
            one.mode,
            "" if one.batch_per_gpu is None else str(one.batch_per_gpu),
            "; ".join(one.conditions) if one.is_measured else f"{one.status}: {one.reason}",
            one.source,
        )
        for one in reversed(runs)
    ]
    heads = ("date", "model", "images/sec", "GPUs", "variables", "batch", "remarks", "run")
    words = ("date", "model", "GPUs", "variables", "remarks", "run")
    return table(heads, rows, words=words, shown=_ROWS)
