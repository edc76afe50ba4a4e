"""The GPUs as one table where the screen is wide enough, as several below one another where it is not."""

from collections.abc import Iterator
from typing import Any

import msgspec

from gputopo.report.facts import reason_for
from gputopo.report.idle_links import link_is_slow_while_idle
from gputopo.report.indices import index_rows, order_warning
from gputopo.report.layout import (
    LOST,
    NOT_ASKED,
    SEVERITY_STYLES,
    UNKNOWN,
    Column,
    Line,
    Side,
    aligned,
    blocks,
    labelled,
    line,
    paragraph,
    plain,
)
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Gpu, Machine

_NAME_WIDTH = 34  # longer names are folded


class _Facts(msgspec.Struct, frozen=True):
    """What a column shows: its head, and the paths of the facts in a cell, with a slash between them."""

    head: str
    paths: tuple[str, ...]
    side: Side = "right"
    before: str = ""


_GENERATION = ("pcie.gen_now", "pcie.gen_max")
_IDLE_MARK = "*"

_LINK = (
    _Facts("Name", ("name",), "left"),
    _Facts("PCI address", ("pci_address",), "left"),
    _Facts("NUMA", ("numa_node",)),
    _Facts("PCIe gen\nnow/max", _GENERATION),
    _Facts("Lanes\nnow/max", ("pcie.width_now", "pcie.width_max"), before="x"),
)
_STATE = (
    _Facts("P-state", ("pstate",)),
    _Facts("Graphics MHz\nnow/max", ("clocks_mhz.graphics.now", "clocks_mhz.graphics.max")),
    _Facts("Memory MHz\nnow/max", ("clocks_mhz.memory.now", "clocks_mhz.memory.max")),
    _Facts("Power W\nnow/limit", ("power_w.draw", "power_w.limit")),
    _Facts("Temp\nC", ("temperature_c.gpu",)),
    _Facts("Fan\n%", ("fan_percent",)),
    _Facts("Load\n%", ("utilization_percent.gpu",)),
    _Facts("Memory MiB\nused/total", ("memory_mib.used", "memory_mib.total")),
)


def gpu_tables(machine: Machine, width: int) -> list[Line]:
    """Give the tables of the GPUs, and the lines that belong under them; empty if the matrix tells as much.

    `?` is a fact that was asked for and not given (the reason stands in `Machine.missing`), `-` one that
    the source does not tell. A column of which the source tells nothing is left out.
    """
    row_heads = Column("GPU", tuple(str(gpu.index) for gpu in machine.gpus), "right")
    told = [
        [_column(machine, facts) for facts in group if _is_told(machine, facts)] for group in (_LINK, _STATE)
    ]
    if [facts.head for group in told for facts in group] in ([], ["NUMA"]):
        return []  # the matrix has the NUMA nodes as well
    lines: list[Line] = []
    for block in blocks(told, width - row_heads.width):
        lines += [line()] if lines else []
        lines += aligned(row_heads, block)
    notes = labelled(gpu_notes(machine), width)
    if warning := order_warning(machine):
        notes += paragraph(warning, width, SEVERITY_STYLES["warning"])
    return [*lines, line(), *notes] if lines and notes else lines


def gpu_columns(machine: Machine) -> list[Column]:
    """Give all columns that have something to tell, the index first, for one wide table."""
    heads = Column("GPU", tuple(str(gpu.index) for gpu in machine.gpus), "right")
    return [heads, *(_column(machine, facts) for facts in (*_LINK, *_STATE) if _is_told(machine, facts))]


def _column(machine: Machine, facts: _Facts) -> Column:
    cells = tuple(_cell(machine, gpu, facts) for gpu in machine.gpus)
    if facts.paths == _GENERATION:
        cells = _with_idle_marks(machine, cells)
    return Column(facts.head, cells, facts.side, _NAME_WIDTH if facts.paths == ("name",) else None)


def _is_told(machine: Machine, facts: _Facts) -> bool:
    """Whether any GPU has a fact of the column, or was asked for it by a driver that works."""
    asked = machine.driver.status in ("ok", "not_read")
    return any(
        _fact(gpu, path) is not None
        or (asked and reason_for(machine.missing, f"gpus[{gpu.index}].{path}") is not None)
        for gpu in machine.gpus
        for path in facts.paths
    )


def _cell(machine: Machine, gpu: Gpu, facts: _Facts) -> str:
    values = [_fact(gpu, path) for path in facts.paths]
    if gpu.lost and facts.paths == ("pstate",):
        return LOST
    if all(value is None for value in values):
        return _absent(machine, gpu, facts.paths[0])
    return "/".join(
        _absent(machine, gpu, path) if value is None else facts.before + _shown(value)
        for path, value in zip(facts.paths, values, strict=True)
    )


def _absent(machine: Machine, gpu: Gpu, path: str) -> str:
    return NOT_ASKED if reason_for(machine.missing, f"gpus[{gpu.index}].{path}") is None else UNKNOWN


def _fact(gpu: Gpu, path: str) -> Any:
    value: Any = gpu
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _shown(value: Any) -> str:
    return f"{value:.0f}" if isinstance(value, float) else plain(str(value))


def _with_idle_marks(machine: Machine, cells: tuple[str, ...]) -> tuple[str, ...]:
    """Mark a generation below the most that an idle GPU shows: it is no fault that anybody saw."""
    idle = [link_is_slow_while_idle(gpu) for gpu in machine.gpus]
    if not any(idle):
        return cells
    return tuple(cell + (_IDLE_MARK if slow else " ") for cell, slow in zip(cells, idle, strict=True))


def gpu_notes(machine: Machine) -> Iterator[tuple[str, str]]:
    """Say what the columns hide: the other numbers of the GPUs, idle links, slow slots and bridges."""
    yield from index_rows(machine)
    idle = [gpu.index for gpu in machine.gpus if link_is_slow_while_idle(gpu)]
    if idle:
        words = f"cannot tell (idle): GPU {index_ranges(idle)}; an idle GPU slows its link down"
        yield f"PCIe gen {_IDLE_MARK}", words
    slots: dict[tuple[int, int], list[int]] = {}
    bridges: list[str] = []
    for gpu in machine.gpus:
        card, slot = gpu.pcie.gen_max_device, gpu.pcie.gen_max_host
        if card is not None and slot is not None and card != slot:
            slots.setdefault((card, slot), []).append(gpu.index)
        if gpu.pcie.limiting_hop is not None and not machine.pci:  # the tree shows it in its place
            bridges.append(f"{plain(gpu.pcie.limiting_hop)} above GPU {gpu.index}")
    for (card, slot), gpus in slots.items():
        yield "PCIe generation", f"card {card}, slot {slot}: GPU {index_ranges(gpus)}"
    if bridges:
        yield "Slower than the card", ", ".join(bridges)
