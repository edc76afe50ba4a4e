"""Charts: a quantity by GPUs with its spread, a run over time, a box over the dates."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from textwrap import wrap
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, ScalarFormatter

from gputopo.copies.pair_speeds import gb
from gputopo.report.bandwidth.numbers import Numbers
from gputopo.report.bandwidth.pairs import SHADES, STAGED_MARK, end_name, ends_of, link_speeds
from gputopo.report.document import Picture
from gputopo.report.layout import NOT_ASKED
from gputopo.report.pictures.drawing import (
    BAD,
    BOX,
    DASHES,
    FAINT,
    INK,
    LINE,
    PAPER,
    SERIES,
    Canvas,
    number,
    short,
)
from gputopo.runs.devices import short_name_of
from gputopo.runs.over_time import Curve, Happening, OverTime
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.machine import Machine
from gputopo.values.run.plan import StepLine
from gputopo.values.run.result import DeviceResult

_MARKERS = "osD^vP*X"
_MAX_POINTS = 12_000  # of one picture, of some 100 KB
MAX_NAMED = 8  # series of a picture with a colour and a name
_PLOT = 5.0  # inches, two side by side on a page of 1000 pixels
_RUN = 6.5  # inches, of a run: on a screen of 400 pixels its words are still read
_NAME = 58  # letters of a line of the legend
_BREAK_FROM = 0.5  # share of the maximum: an axis whose values are all above it is broken
_MAX_LABELLED = 12  # happenings with words; the others are lines


class ChartPoint(NamedTuple):
    """A value at x, with the range of its repeats or its noise."""

    x: float
    value: float
    low: float | None = None
    high: float | None = None


class ChartSeries(NamedTuple):
    """Points under one label. `place`: of its colour, if the charts of a page share it; None of the rest."""

    label: str
    points: tuple[ChartPoint, ...]
    place: int | None = None


def scaling_picture(
    name: str,
    title: str,
    unit: str,
    series: Sequence[ChartSeries],
    *,
    devices: str = "GPUs",
    ideal: bool = False,
) -> Picture | None:
    """Return a quantity over a number of devices; `ideal`: with the line of equal speedup. None if empty."""
    series = [one for one in series if one.points]
    if not series:
        return None
    counts = sorted({point.x for one in series for point in one.points})
    named, rest = _named(series)
    with Canvas(_PLOT, _height(named, rest)) as drawing:
        (axes,) = drawing.axes()
        if ideal and len(counts) > 1:
            axes.plot(counts, counts, color=FAINT, linestyle=":", linewidth=1, label="ideal")
        for at, one in enumerate(rest):
            points = sorted(one.points)
            axes.plot([point.x for point in points], [point.value for point in points], color=LINE,
                      linewidth=1, label=f"{len(rest)} more" if at == 0 else None)  # fmt: skip
        for place, one in enumerate(named):
            _line(axes, one, place if one.place is None else one.place)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(counts))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel=devices, ylabel=unit)
        axes.set_ylim(bottom=0)
        _legend(drawing)
        last = (f"{_flat(one)} {number(one.points[-1].value)} at {one.points[-1].x:g}" for one in named)
        more = f", and {len(rest)} more" if rest else ""
        return drawing.picture(name, title, f"{unit} by number of {devices}: {'; '.join(last)}{more}.")


def _named(series: Sequence[ChartSeries]) -> tuple[list[ChartSeries], list[ChartSeries]]:
    """Return the series that have a colour and a name, and the others: of many those that end last and first.

    A long name has two lines.
    """
    series = [one._replace(label="\n".join(wrap(short(one.label), _NAME))) for one in series]
    chosen = [one for one in series if one.place is not None]
    if chosen or len(series) <= MAX_NAMED:
        return chosen or series, [one for one in series if chosen and one.place is None]
    ordered = sorted(series, key=lambda one: max(one.points).value)
    ends = [*ordered[: MAX_NAMED // 2], *ordered[-MAX_NAMED // 2 :]]
    return ends, [one for one in series if one not in ends]


def _flat(one: ChartSeries) -> str:
    return one.label.replace("\n", " ")


def _height(named: Sequence[ChartSeries], rest: Sequence[ChartSeries]) -> float:
    return 3.2 + 0.17 * (sum(one.label.count("\n") + 1 for one in named) + bool(rest) + 1)


def _legend(drawing: Canvas) -> None:
    """Put the legend below, a line for each name: names may be as long as the picture is wide."""
    drawing.figure.legend(loc="outside lower left", fontsize=8, labelspacing=0.25)


def _line(axes: Axes, one: ChartSeries, place: int) -> None:
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
    return {
        "color": SERIES[place % len(SERIES)],
        "linestyle": DASHES[place // len(SERIES) % len(DASHES)],
    }


def _begin_at_zero(axes: Axes, unit: str, values: Sequence[float]) -> None:
    """Begin an axis at 0, or mark it as broken where that would hide the differences."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    axes.set_ylabel(unit)
    if low <= high * _BREAK_FROM:
        axes.set_ylim(bottom=min(low, 0.0))
        return
    margin = (high - low) * 0.1 or high * 0.05
    axes.set_ylim(low - margin, high + margin)
    axes.set_ylabel(f"{unit}\n(not from 0)")
    axes.text(0, 0.06, "≈", transform=axes.transAxes, ha="center", va="center", fontsize=11, color=INK,
              bbox={"facecolor": PAPER, "edgecolor": PAPER, "pad": 0})  # fmt: skip


def over_time_picture(name: str, title: str, run: OverTime) -> Picture | None:
    """Return a run over time: paces above, then each fact, on one axis; None where no device has a pace."""
    if not run.paces:
        return None
    panels = [("images/sec", run.paces), *run.facts.items()]
    labels = list(dict.fromkeys(curve.label for _, curves in panels for curve in curves))
    with Canvas(_RUN, 1.1 + 1.9 * len(panels)) as drawing:
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
            _begin_at_zero(axes, unit, [value for curve in curves for value in curve.values])
            _happenings(axes, run.happenings, words=axes is stacked[0])
        lines, names = stacked[0].get_legend_handles_labels()
        drawing.figure.legend(lines, names, loc="outside lower left", ncols=4, fontsize=8)
        stacked[-1].set_xlabel("seconds since the start of the run")
        return drawing.picture(name, title, _in_words(run))


def _happenings(axes: Axes, happenings: Sequence[Happening], *, words: bool) -> None:
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
    name: str, title: str, unit: str, series: Sequence[ChartSeries], faults: Sequence[Happening] = ()
) -> Picture | None:
    """Return values over dates: x of the points and of `faults` in seconds since the epoch. None if empty."""
    named, rest = _named([one for one in series if one.points])
    if not named:
        return None
    with Canvas(_PLOT + 2.5, _height(named, rest) + 0.3) as drawing:
        (axes,) = drawing.axes()
        for place, one in enumerate((*named, *rest)):
            days = [_date(point.x) for point in one.points]
            looks = _looks(place) if place < len(named) else {"color": LINE, "zorder": 1}
            label = one.label if place < len(named) else None
            axes.plot(days, [point.value for point in one.points], marker=_MARKERS[place % len(_MARKERS)],
                      markersize=4, linewidth=1.2, label=label, **looks)  # fmt: skip
        for fault in faults:
            colour = BAD if fault.is_fault else INK
            axes.axvline(_date(fault.seconds), color=colour, linewidth=1.2, linestyle=":")
            axes.annotate(fault.says, (_date(fault.seconds), 1.02), xycoords=("data", "axes fraction"),
                          rotation=25, fontsize=7.5, color=colour)  # fmt: skip
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        axes.set(ylabel=unit)
        axes.set_ylim(bottom=0)
        _legend(drawing)
        last = (f"{_flat(one)} {number(one.points[-1].value)}" for one in named)
        words = [f"{unit}, the last of each: {'; '.join(last)}", *(fault.says for fault in faults)]
        return drawing.picture(name, title, f"{'. '.join(words)}.")


def _date(seconds: float) -> float:
    return float(date2num(datetime.fromtimestamp(seconds, UTC)))  # type: ignore[no-untyped-call]


BarGroup = tuple[str, Sequence[tuple[str, float]]]  # a name, and the values under their labels


def bars_picture(name: str, title: str, unit: str, groups: Sequence[BarGroup]) -> Picture:
    """Return groups of horizontal bars from 0, a colour for each label."""
    labels = list(dict.fromkeys(label for _, values in groups for label, _ in values))
    thick = 0.8 / len(labels)
    with Canvas(_PLOT, 1.2 + 0.17 * len(labels) * (len(groups) + 1) + 0.1 * len(groups)) as drawing:
        (axes,) = drawing.axes()
        for place, label in enumerate(labels):
            known = [
                (at, dict(values)[label]) for at, (_, values) in enumerate(groups) if label in dict(values)
            ]
            axes.barh([at + (place - (len(labels) - 1) / 2) * thick for at, _ in known],
                      [value for _, value in known], height=thick * 0.9, label=label,
                      color=_looks(place)["color"])  # fmt: skip
        axes.set_yticks(range(len(groups)), [group for group, _ in groups])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(unit)
        _legend(drawing)
        words = (
            f"{group}: {', '.join(f'{label} {number(value)}' for label, value in values)}"
            for group, values in groups
        )
        return drawing.picture(name, title, f"{unit}; {'; '.join(words)}.")


_CELL = 0.62  # inches
_SCALE = LinearSegmentedColormap.from_list("rate", ["#f6b8a8", "#f7e0a3", "#bfe3c0"])
_ON_SCALE = "#1b1f24"  # ink on these squares, whatever the page's scheme


def heat_map_picture(machine: Machine, bandwidth: Bandwidth) -> Picture | None:
    """Return the map, rows to columns; None where fewer than two links have a number."""
    numbers = Numbers(machine, bandwidth)
    speeds, sums = link_speeds(numbers)
    if len(speeds) < 2:
        return None
    ends = ends_of(numbers, speeds)
    fastest = max(speed for speed, _ in speeds.values())
    side = len(ends) * _CELL
    with Canvas(max(side + 1.0, 4.2), side + 1.1) as drawing:
        sheet = drawing.sheet()
        for place, end in enumerate(ends):
            middle = 0.8 + (place + 0.5) * _CELL
            sheet.text(middle, 0.42, end_name(end), ha="center", fontsize=8.5, color=INK)
            sheet.text(0.72, middle - 0.2, end_name(end), ha="right", va="center", fontsize=8.5, color=INK)
        for row, source in enumerate(ends):
            for column, to in enumerate(ends):
                corner = (0.8 + column * _CELL, 0.6 + row * _CELL)
                speed, staged = speeds.get((source, to), (None, False))
                if speed is None:
                    words = "" if source == to else NOT_ASKED
                    sheet.text(corner[0] + _CELL / 2, corner[1] + _CELL / 2, words, ha="center", va="center",
                               color=FAINT)  # fmt: skip
                    continue
                shade = _SCALE(speed / fastest)
                sheet.add_patch(Rectangle(corner, _CELL * 0.96, _CELL * 0.96, facecolor=shade, linewidth=0))
                words = gb(speed) + (STAGED_MARK if staged else "")
                sheet.text(corner[0] + _CELL / 2, corner[1] + _CELL / 2, words, ha="center", va="center",
                           fontsize=8.5, color=_ON_SCALE)  # fmt: skip
        marks = f"green: the fastest ({gb(fastest)} GB/s), red: far below"
        if any(staged for _, staged in speeds.values()):
            marks += f"; {STAGED_MARK}: staged through host memory"
        sheet.text(0.1, side + 0.85, marks, fontsize=7.5, color=INK)
        slow = [f"{end_name(a)} to {end_name(b)} {gb(speed)}" for (a, b), (speed, _) in speeds.items()
                if speed / fastest < SHADES[1][0]]  # fmt: skip
        kind = "sum of both directions at once" if sums else "row to column"
        alt = f"GB/s, {kind}; {len(speeds)} links, the fastest {gb(fastest)}"
        alt += f"; below {SHADES[1][0]:.0%} of it: {', '.join(slow[:8])}" if slow else ""
        return drawing.picture("heat-map", f"Measured rates, GB/s ({kind})", f"{alt}.")


# The parts by name: colour and hatch, since colour alone does not separate them for everybody.
_PARTS: Mapping[str, tuple[str, str]] = {
    "weights": (SERIES[1], "///"),
    "forward": (SERIES[0], ""),
    "backward": (SERIES[6], "..."),
    "forward and backward": (SERIES[0], ""),
    "gradients": (SERIES[3], "\\\\\\"),
    "variables": (SERIES[7], "xxx"),
    "reduction, update, waiting": (LINE, ""),
}
_ROW, _BAR = 0.42, 0.26  # inches

_Bar = tuple[str, float, float]  # part, begin and length in ms


def step_picture(
    name: str, title: str, predicted: StepLine | None, measured: Sequence[DeviceResult]
) -> Picture | None:
    """Return the step as bars over milliseconds; None where nothing is known of it."""
    rows: list[tuple[str, list[_Bar]]] = []
    if predicted is not None:
        rows += _predicted(predicted)
    rows += [(f"{short_name_of(row.device)}, measured", bars) for row in measured if (bars := _measured(row))]
    if not rows:
        return None
    with Canvas(_RUN, 1.2 + _ROW * len(rows)) as drawing:
        (axes,) = drawing.axes()
        for place, (_, bars) in enumerate(rows):
            for part, begin, length in bars:
                colour, hatch = _PARTS[part]
                axes.barh(place, length, left=begin, height=_BAR / _ROW, color=colour, hatch=hatch,
                          edgecolor=BOX, linewidth=0.5)  # fmt: skip
        axes.set_yticks(range(len(rows)), [label for label, _ in rows])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("ms since the start of the step")
        shown = dict.fromkeys(part for _, bars in rows for part, _, _ in bars)
        for part in shown:
            colour, hatch = _PARTS[part]
            axes.barh(0, 0, color=colour, hatch=hatch, edgecolor=BOX, label=part)
        drawing.figure.legend(loc="outside upper center", ncols=4, fontsize=8)
        words = (
            f"{label}: {', '.join(f'{part} {number(length)} ms' for part, _, length in bars)}"
            for label, bars in rows
        )
        axes.tick_params(axis="y", colors=INK)
        axes.axvline(0, color=FAINT, linewidth=0.8)
        return drawing.picture(name, title, f"{'; '.join(words)}.")


def _predicted(step: StepLine) -> list[tuple[str, list[_Bar]]]:
    parts = {
        "weights": step.weights_ms,
        "forward": step.forward_ms,
        "backward": step.backward_ms,
        "gradients": step.gradients_ms,
        "variables": step.variables_ms,
    }
    bars: list[_Bar] = []
    begin = 0.0
    for part, length in parts.items():
        if length > 0:
            bars.append((part, begin, length))
        begin += length
    rows = [("a step, predicted", bars)]
    busiest = max((one for one in step.resources if one.busy_ms), key=lambda one: one.busy_ms, default=None)
    if busiest is not None:
        start = max(busiest.through_ms - busiest.busy_ms, 0.0)
        rows.append((f"{busiest.resource}, predicted", [("gradients", start, busiest.busy_ms)]))
    return rows


def _measured(row: DeviceResult) -> list[_Bar]:
    if row.weights_ms is None or row.compute_ms is None:
        return []
    bars: list[_Bar] = [
        ("weights", 0.0, row.weights_ms),
        ("forward and backward", row.weights_ms, row.compute_ms),
    ]
    if row.other_ms:
        bars.append(("reduction, update, waiting", row.weights_ms + row.compute_ms, row.other_ms))
    return [bar for bar in bars if bar[2] > 0]
