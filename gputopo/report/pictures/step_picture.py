"""A training step in time: its parts as predicted, and as measured on each device."""

from collections.abc import Mapping, Sequence

from gputopo.report.document import Picture
from gputopo.report.pictures.drawing import BOX, FAINT, INK, LINE, SERIES, Drawing, number
from gputopo.runs.devices import short_name_of
from gputopo.values.run.plan import StepLine
from gputopo.values.run.result import DeviceResult

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
    with Drawing(9, 1.2 + _ROW * len(rows)) as drawing:
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
