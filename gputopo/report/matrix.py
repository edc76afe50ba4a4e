"""The topology matrix in the shape of `nvidia-smi topo -m`, folded into blocks where the screen is narrow."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from rich.console import RenderableType
from rich.text import Text

from gputopo.machine import Hop, Link, Machine, Nic
from gputopo.report.layout import GAP, NOT_ASKED, QUIET, UNKNOWN, plain
from gputopo.topology import links_by_pair

_LEGEND = {
    "NV#": "joined by # NVLinks",
    "INT": "two GPUs of one board (nvidia-smi writes PIX)",
    "PIX": "at most one PCIe bridge between them",
    "PXB": "several PCIe bridges, no host bridge",
    "PHB": "through a PCIe host bridge (the CPU)",
    "NODE": "between host bridges of one NUMA node",
    "SYS": "between NUMA nodes (QPI, UPI, Infinity Fabric)",
    UNKNOWN: "not known",
}


@dataclass(frozen=True)
class _Column:
    head: str
    cells: tuple[str, ...]

    @property
    def width(self) -> int:
        return max(map(len, (self.head, *self.cells)))


def matrix_view(machine: Machine, width: int) -> list[RenderableType]:
    """Give the matrix in lines of at most `width` columns, then what its classes mean. Empty without GPUs."""
    if not machine.gpus:
        return []
    names = [f"GPU{gpu.index}" for gpu in machine.gpus] + [f"NIC{nic.index}" for nic in machine.nics]
    links = links_by_pair(machine)
    keys = [f"gpu:{gpu.index}" for gpu in machine.gpus] + [f"nic:{nic.index}" for nic in machine.nics]
    cells = [[_class(machine, links, row, column) for row in keys] for column in keys]
    devices = [_Column(name, tuple(column)) for name, column in zip(names, cells, strict=True)]
    gpus = len(machine.gpus)
    groups = [devices[:gpus], devices[gpus:], _affinities(machine)]
    row_heads = _Column("", tuple(names))
    lines: list[RenderableType] = []
    for block in _blocks(groups, width - row_heads.width):
        lines += [Text()] if lines else []
        lines += _lines(row_heads, block)
    return [*lines, Text(), *_legend(set(chain.from_iterable(cells))), *_nic_names(machine.nics)]


def _class(machine: Machine, links: dict[tuple[int, int], Link], a: str, b: str) -> str:
    if a == b:
        return "X"
    (kind_a, index_a), (kind_b, index_b) = _split(a), _split(b)
    if kind_a == kind_b == "gpu":
        link = links.get((min(index_a, index_b), max(index_a, index_b)))
        if link is not None and link.nvlinks:
            return f"NV{link.nvlinks}"
        return _short(None if link is None else link.hop)
    nics = {f"nic:{nic.index}": nic for nic in machine.nics}
    there = nics[a].hops.get(b) if a in nics else None
    back = nics[b].hops.get(a) if b in nics else None
    return _short(there or back)


def _split(key: str) -> tuple[str, int]:
    kind, _, index = key.partition(":")
    return kind, int(index)


def _short(hop: Hop | None) -> str:
    if hop is None:
        return UNKNOWN
    return "INT" if hop is Hop.INTERNAL else hop.value


def _affinities(machine: Machine) -> list[_Column]:
    cpus = [gpu.cpu_affinity for gpu in machine.gpus]
    nodes = [gpu.numa_node for gpu in machine.gpus] + [nic.numa_node for nic in machine.nics]
    blank = [""] * len(machine.nics)
    found = []
    if any(cpus):
        found.append(_Column("CPUs", (*(plain(cpu) if cpu else NOT_ASKED for cpu in cpus), *blank)))
    if any(node is not None for node in nodes):
        found.append(_Column("NUMA", tuple(NOT_ASKED if node is None else str(node) for node in nodes)))
    return found


def _blocks(groups: Sequence[list[_Column]], width: int) -> list[list[_Column]]:
    """Share columns out to blocks of at most `width`; a group is split only if it is too wide for one."""
    blocks: list[list[_Column]] = [[]]
    for group in groups:
        if _room(blocks[-1] + group) <= width:
            blocks[-1] += group
            continue
        for part in _even_parts(group, width):
            if blocks[-1] and _room(blocks[-1] + part) > width:
                blocks.append([])
            blocks[-1] += part
    return blocks


def _even_parts(group: list[_Column], width: int) -> list[list[_Column]]:
    """Cut a group into as few parts as will do, all about as long. A column that is too wide stands alone."""
    for count in range(1, len(group) + 1):
        size = -(-len(group) // count)
        parts = [group[start : start + size] for start in range(0, len(group), size)]
        if all(_room(part) <= width for part in parts):
            return parts
    return [[column] for column in group]


def _room(block: Sequence[_Column]) -> int:
    return sum(GAP + column.width for column in block)


def _lines(heads: _Column, block: Sequence[_Column]) -> list[Text]:
    """Give a block line by line. A row that says nothing (a NIC has no CPU affinity) is left out."""
    rows: list[tuple[str, list[str]]] = [("", [column.head for column in block])]
    rows += [(name, [column.cells[row] for column in block]) for row, name in enumerate(heads.cells)]
    lines: list[Text] = []
    for name, cells in rows:
        if any(cells):
            padded = [cell.ljust(column.width) for cell, column in zip(cells, block, strict=True)]
            line = (" " * GAP).join([name.ljust(heads.width), *padded]).rstrip()
            lines.append(Text(line, style="" if lines else QUIET, overflow="fold"))
    return lines


def _legend(classes: set[str]) -> list[Text]:
    shown = {"NV#" if name.startswith("NV") else name for name in classes}
    return [Text(f"{name:4}  {says}", style=QUIET) for name, says in _LEGEND.items() if name in shown]


def _nic_names(nics: Sequence[Nic]) -> list[Text]:
    return [Text(f"NIC{nic.index}  {plain(nic.name)}", style=QUIET) for nic in nics if nic.name]
