"""The GPUs as one table where the screen is wide enough, as two where it is not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from gputopo.machine import Gpu, Machine
from gputopo.report.facts import reason_for
from gputopo.report.layout import (
    NOT_ASKED,
    QUIET,
    SEVERITY_STYLES,
    UNKNOWN,
    Side,
    columns,
    index_ranges,
    labelled,
    plain,
)

_WIDE = 132  # columns of one table with everything


@dataclass(frozen=True)
class _Column:
    """A column: its head, and the paths of the facts in a cell, written with a slash between them."""

    head: str
    facts: tuple[str, ...]
    side: Side = "right"
    before: str = ""


_IDENTITY = (
    _Column("Name", ("name",), "left"),
    _Column("PCI address", ("pci_address",), "left"),
    _Column("NUMA", ("numa_node",)),
)
_LINK = (
    _Column("PCIe gen\nnow/max", ("pcie.gen_now", "pcie.gen_max")),
    _Column("Lanes\nnow/max", ("pcie.width_now", "pcie.width_max"), before="x"),
)
_STATE = (
    _Column("P-state", ("pstate",)),
    _Column("Graphics MHz\nnow/max", ("clocks_mhz.graphics.now", "clocks_mhz.graphics.max")),
    _Column("Memory MHz\nnow/max", ("clocks_mhz.memory.now", "clocks_mhz.memory.max")),
    _Column("Power W\nnow/limit", ("power_w.draw", "power_w.limit")),
    _Column("Temp\nC", ("temperature_c.gpu",)),
    _Column("Memory MiB\nused/total", ("memory_mib.used", "memory_mib.total")),
)


def gpu_tables(machine: Machine, width: int) -> list[RenderableType]:
    """Give the tables of the GPUs, and the lines that belong under them; empty if only indices are known.

    `?` is a fact that was asked for and not given (the reason stands in `Machine.missing`), `-` one that
    the source does not tell. A column of which the source tells nothing is left out.
    """
    groups = [_IDENTITY + _LINK + _STATE] if width >= _WIDE else [_IDENTITY + _LINK, _STATE]
    tables: list[RenderableType] = []
    for group in groups:
        told = [column for column in group if _is_told(machine, column)]
        if told:
            tables += [Text()] if tables else []
            tables.append(_table(machine, told))
    notes = _notes(machine)
    return [*tables, Text(), labelled(notes)] if tables and notes else tables


def _table(machine: Machine, group: Sequence[_Column]) -> RenderableType:
    heads: list[tuple[str, Side]] = [("GPU", "right")]
    heads += [(column.head, column.side) for column in group]
    rows = [
        [Text(str(gpu.index)), *(_cell(machine, position, column) for column in group)]
        for position, gpu in enumerate(machine.gpus)
    ]
    for gpu, row in zip(machine.gpus, rows, strict=True):
        if gpu.lost:
            lost = Text("LOST", SEVERITY_STYLES["error"])
            row[1] = lost if row[1].plain in (UNKNOWN, NOT_ASKED) else Text.assemble(row[1], " ", lost)
    return columns(heads, rows, folds=1)


def _is_told(machine: Machine, column: _Column) -> bool:
    """Whether any GPU has a fact of the column, or a reason is known why it has not."""
    return any(
        _fact(gpu, fact) is not None or reason_for(machine.missing, f"gpus[{gpu.index}].{fact}") is not None
        for gpu in machine.gpus
        for fact in column.facts
    )


def _cell(machine: Machine, position: int, column: _Column) -> Text:
    gpu = machine.gpus[position]
    values = [_fact(gpu, fact) for fact in column.facts]
    if all(value is None for value in values):
        return Text(_absent(machine, gpu, column.facts[0]), style=QUIET)
    return Text(
        "/".join(
            _absent(machine, gpu, fact) if value is None else column.before + _shown(value)
            for fact, value in zip(column.facts, values, strict=True)
        )
    )


def _absent(machine: Machine, gpu: Gpu, fact: str) -> str:
    return NOT_ASKED if reason_for(machine.missing, f"gpus[{gpu.index}].{fact}") is None else UNKNOWN


def _fact(gpu: Gpu, path: str) -> Any:
    value: Any = gpu
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _shown(value: Any) -> str:
    return f"{value:.0f}" if isinstance(value, float) else plain(str(value))


def _notes(machine: Machine) -> list[tuple[str, str]]:
    """Say what the columns of the PCIe link hide: card and slot of two generations, slow bridges."""
    slots: dict[tuple[int, int], list[int]] = {}
    bridges: list[str] = []
    for gpu in machine.gpus:
        card, slot = gpu.pcie.gen_max_device, gpu.pcie.gen_max_host
        if card is not None and slot is not None and card != slot:
            slots.setdefault((card, slot), []).append(gpu.index)
        if gpu.pcie.limiting_hop is not None:
            bridges.append(f"{plain(gpu.pcie.limiting_hop)} above GPU {gpu.index}")
    notes = [
        ("PCIe generation", f"card {card}, slot {slot}: GPU {index_ranges(gpus)}")
        for (card, slot), gpus in slots.items()
    ]
    if bridges:
        notes.append(("Slower than the card", ", ".join(bridges)))
    return notes
