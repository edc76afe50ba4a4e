"""The devices of a run as a table, or as several where the screen is too narrow for one."""

from collections.abc import Sequence

from gputopo.report import units
from gputopo.report.document import Table
from gputopo.report.layout import Column
from gputopo.report.runs.facts import ANOMALY_STYLE
from gputopo.runs.devices import label_of
from gputopo.runs.verdict.words import at_most, percent
from gputopo.values.run.drill import drills_of
from gputopo.values.run.result import DeviceResult, Result
from gputopo.values.run.verdict import EVEN, SLOW

_NAME_WIDTH = 12  # of a GPU; a longer one folds
_FIRST_CLOCK = "core"


def device_table(result: Result) -> Table:
    """Return a table with a row per device, without columns that mean nothing for this run."""
    devices, *rest = _columns(result)
    # The clocks are at the end, and stay together.
    clocks = next((at for at, one in enumerate(rest) if one.head.startswith(_FIRST_CLOCK)), len(rest))
    groups = [(column,) for column in rest[:clocks]]
    return Table(devices, (*groups, tuple(rest[clocks:])) if rest[clocks:] else tuple(groups), gap=1)


def link_name(hop_to_variables: str | None) -> str:
    """Return the class of the path to the variables; a device with its own copy has none."""
    return "own copy" if hop_to_variables is None else hop_to_variables


def _columns(result: Result) -> list[Column]:
    rows, gpu_run = result.devices, result.backend == "gpu"
    styles = tuple(ANOMALY_STYLE if row.anomaly else "" for row in rows)

    def left(head: str, cells: Sequence[str], max_width: int | None = None) -> Column:
        return Column(head, tuple(cells), "left", max_width, styles)

    def right(head: str, cells: Sequence[str]) -> Column:
        return Column(head, tuple(cells), "right", styles=styles)

    columns = [left("device", [label_of(row.device) for row in rows])]
    if any(row.device.gpu is not None or row.device.gpu_name for row in rows):
        columns.append(left("GPU" if gpu_run else "stands\nfor", [_name(row) for row in rows], _NAME_WIDTH))
    # Without a model the marks are those of the batch: waited for on the host, then copied to the device.
    parts = ("batch", "copy") if result.spec.get("task") == "input" else ("weights", "compute")
    if len({row.batch_size for row in rows}) > 1:
        columns.append(right("batch", [str(row.batch_size) for row in rows]))
    if any(row.alone_images_per_sec is not None for row in rows):
        alone = [units.images_per_sec(row.alone_images_per_sec) for row in rows]
        columns.append(right("images/sec\nalone", alone))
    columns += [
        right("images\n/sec", [units.images_per_sec(row.images_per_sec) for row in rows]),
        right("% of\nbest", [units.percent(row.percent_of_best) for row in rows]),
        right(f"{parts[0]}\nms", [units.milliseconds(row.weights_ms) for row in rows]),
        right(f"{parts[1]}\nms", [units.milliseconds(row.compute_ms) for row in rows]),
        right("other\nms", [units.milliseconds(row.other_ms) for row in rows]),
    ]
    columns.append(left("link", [link_name(row.device.hop_to_variables) for row in rows]))
    if any(drilled := [_drills_of(row, result) for row in rows]):
        columns.append(left("drill", drilled))
    if any(row.verdict for row in rows):
        columns.append(left("verdict", [_verdict(row) for row in rows]))
        if any(row.verdict and row.verdict.causes for row in rows):
            columns.append(left("cause", [_cause(row) for row in rows]))
    elif any(row.anomaly for row in rows):  # of a result that has no verdicts yet
        columns.append(left("", ["!" if row.anomaly else "" for row in rows]))
    if gpu_run:
        core = [units.clock(row.graphics_mhz, row.graphics_percent) for row in rows]
        memory = [units.clock(row.memory_mhz, row.memory_percent) for row in rows]
        columns += [
            right(f"{_FIRST_CLOCK} MHz\n(% max)", core),
            right("mem. MHz\n(% max)", memory),
            right("PCIe", [_pcie(row) for row in rows]),
            right(
                "C", [units.UNKNOWN if row.temperature_c is None else str(row.temperature_c) for row in rows]
            ),
            right("W", [units.UNKNOWN if row.power_w is None else f"{row.power_w:.0f}" for row in rows]),
        ]
    return columns


def _pcie(row: DeviceResult) -> str:
    """Return "gen 3 x16"; a part of it that is not known is left out."""
    generation = None if row.pcie_gen is None else f"gen {row.pcie_gen}"
    width = None if row.pcie_width is None else f"x{row.pcie_width}"
    return " ".join(filter(None, (generation, width))) or units.UNKNOWN


def _drills_of(row: DeviceResult, result: Result) -> str:
    """Return the faults that were injected into a device, such as "slow-gpu 0.85"."""
    by_tower = result.backend == "cpu" or row.device.gpu is None or row.device.host is not None
    number = row.device.tower if by_tower else row.device.gpu
    own = (one for one in drills_of(result.spec) if one.device == number)
    return ", ".join(f"{one.fault} {'' if one.factor is None else f'{one.factor:g}'}".rstrip() for one in own)


def _verdict(row: DeviceResult) -> str:
    """Return "! slow 15 %", "even < 0.8 %", or "cannot tell > 6.2 %"."""
    found = row.verdict
    if found is None:
        return units.UNKNOWN
    if found.word == SLOW:
        return f"! slow {percent(found.percent_under or 0.0)} %"
    bound = found.percent_under_high if found.word == EVEN else found.resolution_percent
    sign = "<" if found.word == EVEN else ">"
    return found.word if bound is None else f"{found.word} {sign} {at_most(bound)} %"


def _cause(row: DeviceResult) -> str:
    """Return "power-cap 13 %", or "memory-clock < 5.0 %" where that is the most that it explains."""
    causes = row.verdict.causes if row.verdict is not None else None
    if causes is None:
        return ""
    if not causes.found:
        return "not explained" if causes.checked else "not checked"
    largest, *others = causes.found
    sign = "" if largest.how == "fitted" else "< "
    return f"{largest.id} {sign}{percent(largest.percent)} %" + (f" +{len(others)}" if others else "")


def _name(row: DeviceResult) -> str:
    name = (row.device.gpu_name or "").removeprefix("NVIDIA ").removeprefix("GeForce ")
    index = "" if row.device.gpu is None or row.device.host is not None else str(row.device.gpu)
    return " ".join(part for part in (index, name) if part) or units.UNKNOWN
