"""A Machine as `nvidia-smi topo -m` of each era and `nvidia-smi topo -p2p` print it.

Only the names in the legends are as the drivers print them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gputopo.values.machine import Gpu, Hop, Link, Machine


@dataclass(frozen=True, slots=True)
class Era:
    """The form of the matrix of some drivers. `tail`: blank cells at the end of the NICs' rows."""

    far: str  # between CPU sockets
    node: bool  # NODE and PHB differ
    nic_numbers: bool  # NIC0 with a legend of names, else only the names
    titles: tuple[str, ...]
    tail: int = 0
    legend_indent: str = "  "


ERAS = {
    "2014": Era("SOC", node=False, nic_numbers=False, titles=("CPU Affinity",), legend_indent=""),
    "2017": Era("SYS", node=True, nic_numbers=False, titles=("CPU Affinity",)),
    "2020": Era("SYS", node=True, nic_numbers=False, titles=("CPU Affinity", "NUMA Affinity"), tail=2),
    "2022": Era("SYS", node=True, nic_numbers=True, titles=("CPU Affinity", "NUMA Affinity")),
    "2023": Era(
        "SYS", node=True, nic_numbers=True, titles=("CPU Affinity", "NUMA Affinity", "GPU NUMA ID"), tail=4
    ),
}
_STATUS = {
    "OK": "OK",
    "CHIPSET_NOT_SUPPORTED": "CNS",
    "GPU_NOT_SUPPORTED": "GNS",
    "TOPOLOGY_NOT_SUPPORTED": "TNS",
    "NOT_SUPPORTED": "NS",
    "DISABLED_BY_REGKEY": "DR",
    "UNKNOWN": "U",
}


def matrix(machine: Machine, era: str, *, nvlinks: bool = True) -> str:
    """Return the text of `topo -m`, or, if not `nvlinks`, of `topo -mp`."""
    style = ERAS[era]
    nics = [
        f"NIC{nic.index}" if style.nic_numbers else nic.name or f"mlx5_{nic.index}" for nic in machine.nics
    ]
    labels = [f"GPU{gpu.index}" for gpu in machine.gpus] + nics
    places = [f"gpu:{gpu.index}" for gpu in machine.gpus] + [f"nic:{nic.index}" for nic in machine.nics]
    lines = ["\t" + "\t".join([*labels, *style.titles])]
    for label, place in zip(labels, places, strict=True):
        cells = [_cell(machine, place, other, style, nvlinks) for other in places]
        gpu = next((gpu for gpu in machine.gpus if place == f"gpu:{gpu.index}"), None)
        ends = [""] * style.tail if gpu is None else _affinity(machine, gpu, style.titles)
        lines.append("\t".join([label, *cells, *ends]))
    lines += ["", "Legend:", "", *_legend(style, nvlinks)]
    if style.nic_numbers and machine.nics:
        lines += ["", "NIC Legend:", "", *(f"  NIC{nic.index}: {nic.name}" for nic in machine.nics)]
    return "\n".join([*lines, ""])


def _cell(machine: Machine, place: str, other: str, era: Era, nvlinks: bool) -> str:
    if place == other:
        return " X "
    ends = sorted((place, other))
    hop: Hop | None
    if ends[1].startswith("gpu:"):
        link = machine.link(int(place[4:]), int(other[4:]))
        assert link is not None
        if nvlinks and link.nvlinks:
            return f"NV{link.nvlinks}"
        hop = link.hop
    else:
        nic = next(nic for nic in machine.nics if ends[1] == f"nic:{nic.index}")
        hop = nic.hops[ends[0]]
    assert hop is not None
    if hop is Hop.SYS:
        return era.far
    return "PHB" if hop is Hop.NODE and not era.node else hop.value


def _affinity(machine: Machine, gpu: Gpu, titles: Sequence[str]) -> list[str]:
    cells = {
        "CPU Affinity": gpu.cpu_affinity or "",
        "NUMA Affinity": "" if gpu.numa_node is None else str(gpu.numa_node),
        "GPU NUMA ID": "\tN/A",  # a blank cell precedes it
    }
    return [cells[title] for title in titles]


def _legend(era: Era, nvlinks: bool) -> list[str]:
    names = [
        "X",
        era.far,
        *(["NODE"] if era.node else []),
        "PHB",
        "PXB",
        "PIX",
        *(["NV#"] if nvlinks else []),
    ]
    return [f"{era.legend_indent}{name:4} = explained" for name in names]


def peers(machine: Machine, direction: str, *, command: bool = True) -> str:
    """Return the text of `topo -p2p r` or `w`. `command`: with the command above it."""
    labels = [f"GPU{gpu.index}" for gpu in machine.gpus]
    lines = [f"$ nvidia-smi topo -p2p {direction}"] if command else []
    lines.append(" \t" + "".join(f"{label}\t" for label in labels))
    for gpu, label in zip(machine.gpus, labels, strict=True):
        cells = (
            _status(machine.link(gpu.index, other.index), direction) if gpu != other else "X"
            for other in machine.gpus
        )
        lines.append(f" {label}\t" + "".join(f"{cell}\t" for cell in cells))
    lines += [
        "",
        "Legend:",
        "",
        "  X    = explained",
        *(f"  {name:4} = explained" for name in _STATUS.values()),
    ]
    return "\n".join([*lines, ""])


def _status(link: Link | None, direction: str) -> str:
    assert link is not None
    return _STATUS[(link.p2p_read if direction == "r" else link.p2p_write) or "UNKNOWN"]
