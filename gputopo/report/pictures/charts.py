"""Charts: a quantity by GPUs with its spread, a run over time, a box over the dates."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, ScalarFormatter

from gputopo.report.document import Picture
from gputopo.report.pictures.drawing import BAD, DASHES, FAINT, INK, SERIES, Drawing, number, short
from gputopo.runs.over_time import Curve, Happening, OverTime

_MARKERS = "osD^vP*X"
_MAX_POINTS = 12_000  # of one picture, of some 100 KB
_PLOT = 5.5  # inches, without its legend
_MAX_LABELLED = 12  # happenings with words; the others are lines


class Point(NamedTuple):
    """A value at x, with the range of its repeats or its noise."""

    x: float
    value: float
    low: float | None = None
    high: float | None = None


class Series(NamedTuple):
    """Points under one label."""

    label: str
    points: tuple[Point, ...]


def scaling_picture(
    name: str, title: str, unit: str, series: Sequence[Series], *, devices: str = "GPUs", ideal: bool = False
) -> Picture | None:
    """Return a quantity over a number of devices; `ideal`: with the line of equal speedup. None if empty."""
    series = [_named(one) for one in series if one.points]
    if not series:
        return None
    counts = sorted({point.x for one in series for point in one.points})
    with Drawing(_PLOT + _legend_width(series), 3.8 + 0.16 * max(len(series) - 16, 0)) as drawing:
        (axes,) = drawing.axes()
        if ideal and len(counts) > 1:
            axes.plot(counts, counts, color=FAINT, linestyle=":", linewidth=1, label="ideal")
        for place, one in enumerate(series):
            _line(axes, one, place)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(counts))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel=devices, ylabel=unit)
        axes.set_ylim(bottom=0)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
        last = (f"{one.label} {number(one.points[-1].value)} at {one.points[-1].x:g}" for one in series[:8])
        more = f", and {len(series) - 8} more" if len(series) > 8 else ""
        return drawing.picture(name, title, f"{unit} by number of {devices}: {'; '.join(last)}{more}.")


def _named(one: Series) -> Series:
    """Return a series with its label on one line, which leaves the plot its room."""
    return one._replace(label=short(" ".join(one.label.split())))


def _legend_width(series: Sequence[Series]) -> float:
    """Return the inches that a legend beside the plot takes."""
    return 0.6 + 0.07 * max(len(one.label) for one in series)


def _line(axes: Axes, one: Series, place: int) -> None:
    points = sorted(one.points)
    errors = [
        [point.value - (point.value if point.low is None else point.low) for point in points],
        [(point.value if point.high is None else point.high) - point.value for point in points],
    ]
    axes.errorbar(
        [point.x for point in points], [point.value for point in points], yerr=errors,
        marker=_MARKERS[place % len(_MARKERS)], markersize=4, linewidth=1.5, capsize=2.5, label=one.label,
        **_looks(place),
    )  # fmt: skip


def _looks(place: int) -> dict[str, Any]:
    """Return colour and dashes of a series by its place in the legend."""
    return {
        "color": SERIES[place % len(SERIES)],
        "linestyle": DASHES[place // len(SERIES) % len(DASHES)],
    }


def over_time_picture(name: str, title: str, run: OverTime) -> Picture | None:
    """Return a run over time: paces above, then each fact, on one axis; None where no device has a pace."""
    if not run.paces:
        return None
    panels = [("images/sec", run.paces), *run.facts.items()]
    labels = list(dict.fromkeys(curve.label for _, curves in panels for curve in curves))
    with Drawing(9, 0.9 + 1.9 * len(panels)) as drawing:
        points = sum(len(curve.values) for _, curves in panels for curve in curves)
        every = -(-points // _MAX_POINTS)
        stacked = drawing.axes(len(panels))
        for axes, (unit, curves) in zip(stacked, panels, strict=True):
            for curve in curves:
                place = labels.index(curve.label)
                axes.plot(
                    curve.seconds[::every],
                    curve.values[::every],
                    linewidth=1.2,
                    label=curve.label,
                    **_looks(place),
                )
            axes.set_ylabel(unit)
            _happenings(axes, run.happenings, words=axes is stacked[0])
        stacked[0].legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=8)
        stacked[-1].set_xlabel("seconds since the start of the run")
        return drawing.picture(name, title, _in_words(run))


def _happenings(axes: Axes, happenings: Sequence[Happening], *, words: bool) -> None:
    """Mark what happened with a line through every panel, and its words above the first."""
    for place, one in enumerate(happenings):
        colour = BAD if one.is_fault else FAINT
        axes.axvline(one.seconds, color=colour, linewidth=1.5 if one.is_fault else 0.8, linestyle=":")
        if words and (one.is_fault or place < _MAX_LABELLED):
            axes.annotate(one.says, (one.seconds, 1.02), xycoords=("data", "axes fraction"), rotation=35,
                          fontsize=7.5, color=colour if one.is_fault else INK)  # fmt: skip


def _in_words(run: OverTime) -> str:
    def ends(curve: Curve) -> str:
        middle = sorted(curve.values)[len(curve.values) // 2]
        return f"{curve.label} {number(middle)} ({number(min(curve.values))} to {number(max(curve.values))})"

    words = [f"{math.ceil(run.duration_s)} s; median images/sec and range: {', '.join(map(ends, run.paces))}"]
    words += [f"{fact}: {', '.join(map(ends, curves))}" for fact, curves in run.facts.items()]
    faults = [f"{one.says} after {one.seconds:.0f} s" for one in run.happenings if one.is_fault]
    return "; ".join([*words, *faults]) + "."


def dated_picture(
    name: str, title: str, unit: str, series: Sequence[Series], faults: Sequence[Happening] = ()
) -> Picture | None:
    """Return values over dates: x of the points and of `faults` in seconds since the epoch. None if empty."""
    series = [_named(one) for one in series if one.points]
    if not series:
        return None
    with Drawing(_PLOT + 1.5 + _legend_width(series), 3.6) as drawing:
        (axes,) = drawing.axes()
        for place, one in enumerate(series):
            days = [_date(point.x) for point in one.points]
            axes.plot(days, [point.value for point in one.points], marker=_MARKERS[place % len(_MARKERS)],
                      markersize=4, linewidth=1.2, label=one.label, **_looks(place))  # fmt: skip
        for fault in faults:
            axes.axvline(_date(fault.seconds), color=BAD, linewidth=1.5, linestyle=":")
            axes.annotate(fault.says, (_date(fault.seconds), 1.02), xycoords=("data", "axes fraction"),
                          rotation=35, fontsize=7.5, color=BAD)  # fmt: skip
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        axes.set(ylabel=unit)
        axes.set_ylim(bottom=0)
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
        last = (f"{one.label} {number(one.points[-1].value)}" for one in series)
        words = [f"{unit}, the last of each: {'; '.join(last)}", *(fault.says for fault in faults)]
        return drawing.picture(name, title, f"{'. '.join(words)}.")


def _date(seconds: float) -> float:
    return float(date2num(datetime.fromtimestamp(seconds, UTC)))  # type: ignore[no-untyped-call]
