"""The devices of a run or a screen as a table: their speeds, their verdicts, and what they reported."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from gputopo.report import units
from gputopo.report.document import Table
from gputopo.report.layout import ANOMALY_STYLE, Column
from gputopo.report.runs.state import share_cores
from gputopo.report.units import UNKNOWN, clock, gpu_name, pcie_link, three_figures
from gputopo.values.run.drill import drills_of
from gputopo.values.run.result import DeviceResult, Result
from gputopo.values.run.several_runs import GpuReading
from gputopo.values.run.verdict import EVEN, SLOW, Verdict
from gputopo.values.words import at_most, percent

_NAME_WIDTH = 12  # of a GPU's name; longer names fold


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f}"


# Columns with what a GPU reported, by head.
HARDWARE: Mapping[str, Callable[[DeviceResult | GpuReading], str]] = {
    "core MHz\n(% max)": lambda row: clock(row.graphics_mhz, row.graphics_percent),
    "mem. MHz\n(% max)": lambda row: clock(row.memory_mhz, row.memory_percent),
    "PCIe": lambda row: pcie_link(row.pcie_gen, row.pcie_width) or UNKNOWN,
    "C": lambda row: _number(row.temperature_c),
    "W": lambda row: _number(row.power_w),
}
Row = TypeVar("Row")


def right_columns(
    rows: Sequence[Row], styles: tuple[str, ...], cells: Mapping[str, Callable[[Row], str]]
) -> list[Column]:
    """Return columns of numbers. `cells`: by head, the function for a row's cell. `styles`: of the rows."""
    return [Column(head, tuple(map(cell, rows)), "right", styles=styles) for head, cell in cells.items()]


def device_table(result: Result) -> Table:
    """Return a table with one row per device, without columns that mean nothing for this run."""
    rows, is_of_gpus = result.devices, result.backend == "gpu"
    styles = tuple(ANOMALY_STYLE if row.anomaly else "" for row in rows)

    def left(head: str, cells: Iterable[str], max_width: int | None = None) -> Column:
        return Column(head, tuple(cells), "left", max_width, styles)

    columns = []
    if any(row.device.gpu is not None or row.device.gpu_name for row in rows):
        columns.append(left("GPU" if is_of_gpus else "stands\nfor", map(_name, rows), _NAME_WIDTH))
    # Without a model, the time marks are of the batch: the wait for it on the host, then its copy to the
    # device.
    waits, computes = ("batch", "copy") if result.spec.get("task") == "input" else ("weights", "compute")
    numbers: dict[str, Callable[[DeviceResult], str]] = {}
    if len({row.batch_size for row in rows}) > 1:
        numbers["batch"] = lambda row: str(row.batch_size)
    if any(row.alone_images_per_sec is not None for row in rows):
        numbers["images/sec\nalone"] = lambda row: three_figures(row.alone_images_per_sec)
    numbers |= {
        "images\n/sec": lambda row: three_figures(row.images_per_sec),
        "% of\nbest": lambda row: units.percent(row.percent_of_best),
        f"{waits}\nms": lambda row: three_figures(row.weights_ms),
        f"{computes}\nms": lambda row: three_figures(row.compute_ms),
        "other\nms": lambda row: three_figures(row.other_ms),
    }
    columns += right_columns(rows, styles, numbers)
    columns.append(left("link", (row.device.hop_to_variables or "own copy" for row in rows)))
    if any(drills := [_drills_of(row, result) for row in rows]):
        columns.append(left("drill", drills))
    judged = len(rows) > 1 and not share_cores([row.device for row in rows])
    if any(row.verdict for row in rows) and (result.anomalies or judged):
        columns.append(left("verdict", map(_verdict, rows)))
        if any(row.verdict and row.verdict.causes for row in rows):
            columns.append(left("cause", map(_cause, rows)))
    groups = [(column,) for column in columns]
    hardware = tuple(right_columns(rows, styles, HARDWARE)) if is_of_gpus else ()
    head = left("device", (row.device.label for row in rows))
    return Table(head, (*groups, hardware) if hardware else tuple(groups), gap=1)


def _drills_of(row: DeviceResult, result: Result) -> str:
    """Return the faults that were injected into a device, such as "slow-gpu 0.85"."""
    by_tower = result.backend == "cpu" or row.device.gpu is None or row.device.host is not None
    number = row.device.tower if by_tower else row.device.gpu
    drills = (drill for drill in drills_of(result.spec) if drill.device == number)
    return ", ".join(
        f"{drill.fault} {'' if drill.factor is None else f'{drill.factor:g}'}".rstrip() for drill in drills
    )


def _verdict(row: DeviceResult) -> str:
    """Return "! slow 15 %", "even < 0.8 %", "not slower", or "at most 9.9 %"."""
    verdict = row.verdict
    if verdict is None:
        return UNKNOWN
    if is_ahead(verdict):
        return "not slower"
    return verdict_words(verdict.word, verdict.percent_under, verdict.percent_under_high) or "not compared"


def verdict_words(word: str, percent_under: float | None, high: float | None) -> str:
    """Return "! slow 15%", "even < 0.8%", or "at most 9.9%"; empty if no bound is known."""
    if word == SLOW:
        return f"! slow {percent(percent_under or 0.0)}%"
    return "" if high is None else f"{'even <' if word == EVEN else 'at most'} {at_most(max(high, 0.1))}%"


def is_ahead(verdict: Verdict) -> bool:
    """Return whether a device is ahead of its peers by more than the upper bound of its verdict."""
    return verdict.word == EVEN and (verdict.percent_under or 0.0) < -(verdict.percent_under_high or 0.0)


def _cause(row: DeviceResult) -> str:
    """Return "power-cap 13 %", or "memory-clock < 5.0 %" if this is only an upper bound."""
    causes = row.verdict.causes if row.verdict is not None else None
    if causes is None:
        return ""
    if not causes.found:
        return "not explained" if causes.checked else "not checked"
    largest, *others = causes.found
    sign = "" if largest.how == "fitted" else "< "
    return f"{largest.id} {sign}{percent(largest.percent)}%" + (f" +{len(others)}" if others else "")


def _name(row: DeviceResult) -> str:
    name = gpu_name(row.device.gpu_name)
    # Only a CPU device that represents a GPU needs the index: a GPU has it in the first column.
    is_named = row.device.gpu is None or row.device.host is not None or not row.device.is_cpu
    index = "" if is_named else str(row.device.gpu)
    return " ".join(part for part in (index, name) if part) or UNKNOWN
