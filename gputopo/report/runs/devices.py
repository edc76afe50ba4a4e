"""The devices of a run as a table, or as several where the screen is too narrow for one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table
from rich.text import Text

from gputopo.report import units
from gputopo.report.runs.facts import ANOMALY_STYLE
from gputopo.values.result import DeviceResult, Result

_NARROWEST_NAME = 8  # columns of the screen that the name of a card folds into at least
_GAP = 1


@dataclass(frozen=True)
class _Column:
    """A head of one or two lines, and a cell for each device. `folds`: over several lines if need be."""

    head: str
    cells: Sequence[str]
    side: Literal["left", "right"] = "right"
    folds: bool = False

    @property
    def least(self) -> int:
        """How narrow it may be."""
        widest = max(map(len, (*self.head.split("\n"), *self.cells)))
        return min(widest, _NARROWEST_NAME) if self.folds else widest


def device_tables(result: Result, width: int = 80) -> list[Table]:
    """Give one row per device; columns that mean nothing for this run are left out.

    No number and no device's name is cut: what `width` columns have no room for stands in a table of its own.
    """
    first, *rest = _columns(result)
    shared: list[list[_Column]] = [[first]]
    for column in rest:
        if len(shared[-1]) > 1 and _room([*shared[-1], column]) > width:
            shared.append([first])
        shared[-1].append(column)
    slow = [row.anomaly is not None for row in result.devices]
    return [_table(columns, slow) for columns in shared]


def link_name(hop_to_variables: str | None) -> str:
    """Name the class of the way to the variables; a device with its own copy has no way to go."""
    return "own copy" if hop_to_variables is None else hop_to_variables


def _columns(result: Result) -> list[_Column]:
    rows, gpu_run = result.devices, result.backend == "gpu"
    columns = [_Column("device", [row.device.device for row in rows], side="left")]
    if any(row.device.gpu is not None or row.device.gpu_name for row in rows):
        names = [_name(row) for row in rows]
        columns.append(_Column("GPU" if gpu_run else "stands for", names, side="left", folds=True))
    # Without a model the marks are those of the batch: waited for on the host, then brought to the device.
    parts = ("batch", "copy") if result.spec.get("task") == "input" else ("weights", "compute")
    columns += [
        _Column("images\n/sec", [units.images_per_sec(row.images_per_sec) for row in rows]),
        _Column("% of\nbest", [units.percent(row.percent_of_best) for row in rows]),
        _Column(f"{parts[0]}\nms", [units.milliseconds(row.weights_ms) for row in rows]),
        _Column(f"{parts[1]}\nms", [units.milliseconds(row.compute_ms) for row in rows]),
        _Column("other\nms", [units.milliseconds(row.other_ms) for row in rows]),
    ]
    if gpu_run:
        columns += [
            _Column(
                "core MHz\n(% max)", [units.clock(row.graphics_mhz, row.graphics_percent) for row in rows]
            ),
            _Column("mem. MHz\n(% max)", [units.clock(row.memory_mhz, row.memory_percent) for row in rows]),
        ]
    columns.append(_Column("link", [link_name(row.device.hop_to_variables) for row in rows], side="left"))
    if any(row.anomaly for row in rows):
        columns.append(_Column("", ["!" if row.anomaly else "" for row in rows], side="left"))
    return columns


def _room(columns: Sequence[_Column]) -> int:
    return sum(column.least + _GAP for column in columns) - _GAP


def _table(columns: Sequence[_Column], slow: Sequence[bool]) -> Table:
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim", expand=False)
    for column in columns:
        if column.folds:
            table.add_column(column.head, justify=column.side, overflow="fold", min_width=_NARROWEST_NAME)
        else:
            table.add_column(column.head, justify=column.side, no_wrap=True)
    for number, style in enumerate(slow):
        # Plain text, not markup: a name may hold square brackets.
        cells = [Text(column.cells[number]) for column in columns]
        table.add_row(*cells, style=ANOMALY_STYLE if style else "")
    return table


def _name(row: DeviceResult) -> str:
    name = (row.device.gpu_name or "").removeprefix("NVIDIA ").removeprefix("GeForce ")
    index = "" if row.device.gpu is None else str(row.device.gpu)
    return " ".join(part for part in (index, name) if part) or units.UNKNOWN
