"""Charts: a quantity by number of GPUs with its spread, a run over time, a box over the dates."""

import itertools
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from textwrap import wrap
from typing import NamedTuple

from gputopo.report.document import Picture
from gputopo.report.pictures.drawing import (
    BAD,
    DASHES,
    FAINT,
    INK,
    LETTER,
    LINE,
    SERIES,
    Anchor,
    Canvas,
    Place,
    number,
    short,
)
from gputopo.values.run.over_time import Curve, Happening, OverTime

_MAX_POINTS = 12_000  # of one picture, which then has about 100 KB
MAX_NAMED = 8  # series in a picture that have a colour and a name
_PLOT = 5.0  # inches; two fit side by side on a page of 1000 pixels
_NAME = 66  # letters in a line of the legend
_RUN = 6.5  # inches; the words are still readable on a screen of 400 pixels
_BREAK_FROM = 0.5  # share of the maximum: if all values are above it, the axis is broken
_DATES = 4  # ticks of an axis of dates
_BAR = 10.0  # thickness of a bar in points
_LEFT, _HIGH, _PANEL, _ROW = 0.75, 2.2, 1.8, 0.17  # inches: left of axes, axes' height, panel, line of words

Tick = tuple[float, str]


class ChartPoint(NamedTuple):
    """A value at x, with the range of its repeats or its noise."""

    x: float
    value: float
    low: float | None = None
    high: float | None = None


class ChartSeries(NamedTuple):
    """Points under one label."""

    label: str
    points: tuple[ChartPoint, ...]


Look = tuple[str, str | None]  # colour and dash of a line
Legend = list[tuple[str, Look | None]]  # the second line of a name has no look
_DOTTED: Look = (FAINT, "2 3")


def _look(place: int) -> Look:
    return SERIES[place % len(SERIES)], DASHES[place % len(DASHES)]


class _Axes:
    """A part of a canvas with an axis below and one at the left.

    `x_ends`, `y_ends`: the range of each axis.
    """

    def __init__(self, canvas: Canvas, corner: Place, size: Place, x_ends: Place, y_ends: Place) -> None:
        """`corner`: top left; `size`: width and height; both in inches."""
        self._canvas = canvas
        (self.left, self.top), self._size = corner, size
        self.bottom = self.top + size[1]
        self._x_ends, self._y_ends = x_ends, y_ends

    def at(self, x: float, y: float) -> Place:
        """Return the place of a value."""
        (left, right), (low, high) = self._x_ends, self._y_ends
        across, up = (x - left) / (right - left or 1.0), (y - low) / (high - low or 1.0)
        return self.left + across * self._size[0], self.bottom - up * self._size[1]

    def upright(self, x: float, look: Look, wide: float) -> float:
        """Draw a vertical line at a value of the axis below; return its place."""
        place, _ = self.at(x, 0.0)
        self._canvas.line([(place, self.top), (place, self.bottom)], look, wide)
        return place

    def grid(self, xs: Iterable[Tick], ys: Iterable[Tick], x_unit: str = "") -> None:
        """Draw a line with its words at each tick."""
        for x, words in xs:
            self._canvas.text(
                (self.upright(x, (LINE, None), 0.5), self.bottom + 0.12), words, anchor="middle"
            )
        for y, words in ys:
            _, place = self.at(0.0, y)
            self._canvas.line([(self.left, place), (self.left + self._size[0], place)], (LINE, None), 0.5)
            self._canvas.text((self.left - 0.06, place), words, anchor="end")
        self._canvas.text((self.left + self._size[0] / 2, self.bottom + 0.3), x_unit, anchor="middle")

    def curve(self, points: Iterable[Place], look: Look, wide: float = 1.5) -> None:
        """Draw a line through values."""
        self._canvas.line([self.at(*point) for point in points], look, wide)

    def happenings(self, happenings: Iterable[Happening], *, with_words: bool = True) -> None:
        """Draw a vertical line at each time, with its words above it."""
        for happening in happenings:
            colour, ink, wide = (BAD, BAD, 1.5) if happening.is_fault else (FAINT, INK, 0.8)
            place = self.upright(happening.seconds, (colour, "2 3"), wide)
            if with_words:
                anchor: Anchor = "end" if place > self.left + self._size[0] / 2 else "start"
                turned = 35 if anchor == "end" else -35
                where = (place, self.top - 0.08)
                self._canvas.text(where, happening.says, colour=ink, anchor=anchor, turned=turned)


def _above(happenings: Iterable[Happening]) -> float:
    """Return the height in inches of the words of happenings above the axes."""
    return 0.3 + 0.6 * LETTER * max((len(happening.says) for happening in happenings), default=0)


def _ticks(low: float, high: float, most: int = 6) -> list[Tick]:
    """Return round values between two values, with their words."""
    rough = (high - low or abs(high) or 1.0) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for n in (1, 2, 5, 10) if (step := n * power) >= rough * 0.999)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [(n * step, f"{n * step:,.{decimals}f}") for n in numbers]


def scaling_picture(
    name: str,
    title: str,
    unit: str,
    series: Sequence[ChartSeries],
    *,
    devices: str = "GPUs",
    ideal: bool = False,
) -> Picture | None:
    """Return a chart of a quantity over a number of devices, or None if it is empty.

    If there are many series, only the first ones have a colour. `ideal`: with the line of ideal speedup.
    """
    counts = sorted({point.x for curve in series for point in curve.points})
    if not counts:
        return None
    drawn = [
        curve._replace(points=tuple(point._replace(x=math.log2(point.x)) for point in curve.points))
        for curve in series
    ]
    equal = [(math.log2(count), count) for count in counts if ideal and len(counts) > 1]
    xs = [(math.log2(count), f"{count:g}") for count in counts]
    canvas = _lines(_PLOT, unit, drawn, xs, devices, (xs[0][0] - 0.1, xs[-1][0] + 0.1), equal=equal)
    last = (
        f"{short(curve.label)} {number(curve.points[-1].value)} at {curve.points[-1].x:g}"
        for curve in series[:MAX_NAMED]
    )
    more = f", and {len(drawn) - MAX_NAMED} more" if len(drawn) > MAX_NAMED else ""
    return canvas.picture(name, title, f"{unit} by number of {devices}: {'; '.join(last)}{more}.")


def _lines(
    wide: float,
    unit: str,
    series: Sequence[ChartSeries],
    xs: Sequence[Tick],
    x_unit: str,
    x_ends: Place,
    *,
    equal: Sequence[Place] = (),
    happenings: Sequence[Happening] = (),
) -> Canvas:
    """Return series over one axis from 0; the first ones have a colour and a name.

    `equal`: the ideal line.
    """
    looks = [_look(at) if at < MAX_NAMED else (LINE, None) for at in range(len(series))]
    legend: Legend = []
    for curve, look in zip(series[:MAX_NAMED], looks, strict=False):
        first, *more = wrap(short(curve.label), _NAME) or [""]
        legend += [(first, look), *((words, None) for words in more)]
    legend += [(f"{len(series) - MAX_NAMED} more", (LINE, None))] if len(series) > MAX_NAMED else []
    legend += [("ideal", _DOTTED)] if equal else []
    above, below = _above(happenings), 0.55 + len(legend) * _ROW
    canvas = Canvas(wide, above + _HIGH + below)
    values = [point.high or point.value for curve in series for point in curve.points]
    top = 1.05 * max(*values, *(y for _, y in equal), 1e-9)
    axes = _Axes(canvas, (_LEFT, above), (wide - _LEFT - 0.4, _HIGH), x_ends, (0.0, top))
    canvas.text((0.1, 0.1), unit)
    axes.grid(xs, _ticks(0.0, top), x_unit)
    axes.curve(equal, _DOTTED, 1.0)
    for curve, look in reversed([*zip(series, looks, strict=True)]):
        axes.curve([(point.x, point.value) for point in sorted(curve.points)], look)
        for point in curve.points:
            canvas.dot(axes.at(point.x, point.value), look[0])
            if point.low is not None and point.high is not None:
                axes.curve([(point.x, point.low), (point.x, point.high)], (look[0], None), 1.0)
    axes.happenings(happenings)
    _legend(canvas, axes.bottom + 0.5, legend)
    return canvas


def _legend(canvas: Canvas, top: float, legend: Legend, columns: int = 1) -> None:
    """Draw the names of the series next to their looks."""
    for at, (label, look) in enumerate(legend):
        x, y = 0.15 + at % columns * (canvas.width - 0.2) / columns, top + at // columns * _ROW
        if look is not None:
            canvas.line([(x, y), (x + 0.3, y)], look, 2.0)
        canvas.text((x + 0.38, y), label)


def over_time_picture(name: str, unit: str, run: OverTime) -> Picture | None:
    """Return a run over time: paces in `unit`, then each fact, on one axis; None if no device has a pace."""
    if not run.paces:
        return None
    panels = [(unit, run.paces), *run.facts.items()]
    labels = dict.fromkeys(curve.label for _, curves in panels for curve in curves)
    looks = {label: _look(place) for place, label in enumerate(labels)}
    every = -(-sum(len(curve.values) for _, curves in panels for curve in curves) // _MAX_POINTS)
    above, below = _above(run.happenings), 0.55 + _ROW * -(-len(looks) // 4)
    canvas = Canvas(_RUN, above + len(panels) * _PANEL + below)
    end = max(seconds for _, curves in panels for curve in curves for seconds in curve.seconds)
    for row, (fact, curves) in enumerate(panels):
        values = [value for curve in curves for value in curve.values]
        low, high = min(values), max(values)
        is_broken = low > high * _BREAK_FROM
        margin = (high - low) * 0.1 or high * 0.05
        y_ends = (low - margin if is_broken else min(low, 0.0), high + margin)
        top = above + row * _PANEL
        axes = _Axes(canvas, (_LEFT, top), (_RUN - _LEFT - 0.15, _PANEL - 0.3), (0.0, end), y_ends)
        canvas.text((0.1, top - 0.15 if row else 0.1), f"{fact} (not from 0)" if is_broken else fact)
        is_last = row == len(panels) - 1
        xs = [(x, words if is_last else "") for x, words in _ticks(0.0, end)]
        axes.grid(xs, _ticks(*y_ends, 4), "seconds since the start of the run" if is_last else "")
        for curve in curves:
            points = zip(curve.seconds[::every], curve.values[::every], strict=True)
            axes.curve(points, looks[curve.label], 1.2)
        axes.happenings(run.happenings, with_words=row == 0)
    _legend(canvas, above + len(panels) * _PANEL + 0.2, [*looks.items()], 4)
    return canvas.picture(name, f"{unit} and GPUs over time", _in_words(run, unit))


def _in_words(run: OverTime, unit: str) -> str:
    def ends(curve: Curve) -> str:
        middle = sorted(curve.values)[len(curve.values) // 2]
        return f"{curve.label} {number(middle)} ({number(min(curve.values))} to {number(max(curve.values))})"

    words = [f"{math.ceil(run.duration_s)} s; median {unit} and range: {', '.join(map(ends, run.paces))}"]
    words += [f"{fact}: {', '.join(map(ends, curves))}" for fact, curves in run.facts.items()]
    faults = [
        f"{happening.says} after {happening.seconds:.0f} s"
        for happening in run.happenings
        if happening.is_fault
    ]
    return "; ".join([*words, *faults]) + "."


def dated_picture(
    name: str, title: str, unit: str, series: Sequence[ChartSeries], faults: Sequence[Happening] = ()
) -> Picture | None:
    """Return values over dates, or None if there are none.

    `x` of points and faults: seconds since the epoch.
    """
    times = [point.x for curve in series for point in curve.points]
    if not times:
        return None
    first, last = min(times), max(times)
    form = "%Y-%m-%d" if last - first > _DATES * 86400 else "%m-%d %H:%M"
    dates = [first + place * (last - first) / _DATES for place in range(_DATES + 1)]
    xs = [(time, f"{datetime.fromtimestamp(time, UTC):{form}}") for time in dates]
    canvas = _lines(_PLOT + 2.5, unit, series, xs, "", (first, last), happenings=faults)
    ends = (f"{short(curve.label)} {number(curve.points[-1].value)}" for curve in series[:MAX_NAMED])
    words = [f"{unit}, the last of each: {'; '.join(ends)}", *(fault.says for fault in faults)]
    return canvas.picture(name, title, f"{'. '.join(words)}.")


BarGroup = tuple[str, Sequence[tuple[str, float]]]  # a name, and the values by label


def bars_picture(name: str, title: str, unit: str, groups: Sequence[BarGroup]) -> Picture:
    """Return groups of horizontal bars from 0, a colour for each label."""
    labels = list(dict.fromkeys(label for _, values in groups for label, _ in values))
    looks = {label: (colour, None) for label, colour in zip(labels, itertools.cycle(SERIES))}
    thick = 1 / (len(labels) + 0.7)  # of a bar, as a share of its group
    high = len(groups) * _ROW / thick
    canvas = Canvas(_PLOT, 0.7 + high + len(labels) * _ROW)
    top = 1.05 * max((value for _, values in groups for _, value in values), default=1.0)
    left = 0.15 + LETTER * max(len(short(group)) for group, _ in groups)
    axes = _Axes(canvas, (left, 0.1), (_PLOT - left - 0.25, high), (0.0, top), (len(groups) - 0.5, -0.5))
    axes.grid(_ticks(0.0, top), (), unit)
    for row, (group, values) in enumerate(groups):
        canvas.text((left - 0.06, axes.at(0.0, row)[1]), group, anchor="end")
        for label, value in values:
            middle = row + (labels.index(label) - (len(labels) - 1) / 2) * thick
            axes.curve([(0.0, middle), (value, middle)], looks[label], _BAR)
    _legend(canvas, axes.bottom + 0.5, [*looks.items()])
    words = (
        f"{group}: {', '.join(f'{label} {number(value)}' for label, value in values)}"
        for group, values in groups
    )
    return canvas.picture(name, title, f"{unit}; {'; '.join(words)}.")
