"""The topology matrix as in `nvidia-smi topo -m`, split into blocks on a narrow screen; peer access."""

import re
from collections.abc import Sequence
from itertools import combinations

from gputopo.report.layout import (
    NOT_ASKED,
    QUIET,
    UNKNOWN,
    Column,
    Line,
    aligned,
    blocks,
    line,
    plain,
)
from gputopo.topology import class_name, nearness
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import index_ranges, pairs_in_words
from gputopo.values.machine import Machine

_LEGEND = {
    "NV#": "connected by # NVLinks",
    "INT": "two GPUs of one board (nvidia-smi writes PIX)",
    "PIX": "at most one PCIe bridge between them",
    "PXB": "several PCIe bridges, no host bridge",
    "PHB": "through a PCIe host bridge (the CPU)",
    "NODE": "between host bridges of one NUMA node",
    "SYS": "between NUMA nodes (QPI, UPI, Infinity Fabric)",
    UNKNOWN: "unknown",
}

PAIRS_SHOWN = 12  # pairs in one state of peer access
_LONGEST = 130  # characters of a topology in words

_Device = tuple[str, int]  # ("gpu", 0), ("nic", 1)


def topology_in_words(machine: Machine) -> str:
    """Return the classes of the pairs of GPUs in words, the nearest first; empty for fewer than two GPUs.

    If the pairs of each class cannot be listed briefly, return their numbers: `16 pairs NV1, 12 pairs SYS`.
    """
    links = machine.links_by_pair
    pairs = list(combinations(sorted(gpu.index for gpu in machine.gpus), 2))
    if not pairs:
        return ""
    near = sorted(pairs, key=lambda pair: nearness(links.get(pair)))
    classes = grouped((class_name(links.get(pair)), pair) for pair in near)
    if len(classes) == 1:
        (name,) = classes
        return f"{name} between {pairs_in_words(pairs) if len(pairs) == 1 else 'all pairs of GPUs'}"
    rest = max(classes, key=lambda name: len(classes[name]))
    names, words = list(classes), []
    for place, (name, alike) in enumerate(classes.items()):
        if name != rest:
            nearer = [pair for other in names[:place] for pair in classes[other] if rest not in names[:place]]
            within = _within(alike, alike) or _within([*nearer, *alike], alike)
            words.append(f"{name} {within or pairs_in_words(alike)}")
    if any(word.endswith(" more") for word in words) or len("; ".join(words)) > _LONGEST:
        return ", ".join(f"{len(alike)} pairs {name}" for name, alike in classes.items())
    return f"{'; '.join(words)}; {rest} the other pairs"


def _within(pairs: Sequence[tuple[int, int]], wanted: Sequence[tuple[int, int]]) -> str:
    """Return `within GPUs 0-2, 3-6` if these are all pairs of some groups of GPUs, else an empty string.

    Only groups that contain one of the pairs `wanted` are listed.
    """
    groups: list[set[int]] = []
    for pair in pairs:
        joined = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if group not in joined] + [set(pair).union(*joined)]
    if sum(len(group) * (len(group) - 1) // 2 for group in groups) != len(pairs) or len(wanted) == 1:
        return ""
    named = sorted((group for group in groups if any(set(pair) <= group for pair in wanted)), key=min)
    return f"within GPUs {', '.join(map(index_ranges, named))}"


def is_summary(words: str) -> bool:
    """Return whether these words for a topology only count its pairs."""
    return re.match(r"\d+ pairs", words) is not None


def matrix_view(machine: Machine, width: int, *, short: bool = False) -> list[Line]:
    """Return the matrix in lines of at most `width` columns, then its legend; empty without GPUs.

    `short`: only the GPUs, without a legend.
    """
    gpus: list[_Device] = [("gpu", gpu.index) for gpu in machine.gpus]
    nics: list[_Device] = [] if short else [("nic", nic.index) for nic in machine.nics]
    if not gpus:
        return []
    everyone = gpus + nics
    known = _classes(machine)
    cells = [
        ["X" if a == b else known.get((a, b)) or known.get((b, a)) or UNKNOWN for a in everyone]
        for b in everyone
    ]
    devices = [Column(_name(device), tuple(column)) for device, column in zip(everyone, cells, strict=True)]
    row_heads = Column("", tuple(map(_name, everyone)))
    lines: list[Line] = []
    groups = [devices[: len(gpus)], devices[len(gpus) :], [] if short else _affinities(machine)]
    for block in blocks(groups, width - row_heads.width):
        lines += [line()] if lines else []
        lines += aligned(row_heads, block)
    if short:
        return lines
    used = {re.sub(r"NV\d+", "NV#", name) for row in cells for name in row}
    legend = [f"{name:4}  {meaning}" for name, meaning in _LEGEND.items() if name in used]
    names = [f"NIC{nic.index:<2} {plain(nic.name)}" for nic in machine.nics if nic.name]
    return [*lines, line(), *(line(words, QUIET) for words in (*legend, *names))]


def _classes(machine: Machine) -> dict[tuple[_Device, _Device], str]:
    """Return the classes of the known pairs. A pair may be there in one order or in both."""
    known = {
        (("gpu", a), ("gpu", b)): _short(class_name(link)) for (a, b), link in machine.links_by_pair.items()
    }
    for nic in machine.nics:
        for device, hop in nic.hops.items():
            kind, _, number = device.partition(":")
            if number.isdecimal():
                known[("nic", nic.index), (kind, int(number))] = _short(hop.value)
    return known


def _short(name: str) -> str:
    return {"INTERNAL": "INT", "unknown": UNKNOWN}.get(name, name)


def _name(device: _Device) -> str:
    return f"{device[0].upper()}{device[1]}"


def _affinities(machine: Machine) -> list[Column]:
    cpus = [plain(gpu.cpu_affinity or NOT_ASKED) for gpu in machine.gpus]
    blank = [""] * len(machine.nics)
    numa_nodes = [NOT_ASKED if gpu.numa_node is None else str(gpu.numa_node) for gpu in machine.gpus]
    of_nics = [NOT_ASKED if nic.numa_node is None else str(nic.numa_node) for nic in machine.nics]
    # nvidia-smi shows no NUMA node for NICs: leave the cells blank instead of a row of dashes.
    of_nics = of_nics if {*of_nics} - {NOT_ASKED} else blank
    columns = [Column("CPUs", (*cpus, *blank), max_width=40), Column("NUMA", (*numa_nodes, *of_nics))]
    return [column for column in columns if {*column.cells} - {NOT_ASKED, ""}]


def peer_rows(machine: Machine) -> list[tuple[str, str]]:
    """Return rows of (label, words): the states of reading and writing, the pairs, the reason."""
    links = machine.links_by_pair
    states = grouped(
        ((_peer_access(link.p2p_read, link.p2p_write), link.p2p_reason or ""), pair)
        for pair, link in links.items()
        if link.p2p_read is not None or link.p2p_write is not None
    )
    rows: list[tuple[str, str]] = []
    for (state, reason), pairs in states.items():
        shown = "all pairs" if len(pairs) == len(links) > 1 else pairs_in_words(pairs, max_named=PAIRS_SHOWN)
        words = f"{state}: {shown}{f' ({reason})' if reason else ''}"
        rows.append(("" if rows else "Peer access", plain(words)))
    return rows


def _peer_access(read: str | None, write: str | None) -> str:
    if read is None or write is None:
        return f"{read or write} ({'read' if read else 'write'})"
    return read if read == write else f"read {read}, write {write}"
