"""CPUs and NUMA nodes (`lscpu`, `numactl -H`): text in, Machine out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gputopo.captures.ledger import Format, Lines, read_lines
from gputopo.values.errors import InputError
from gputopo.values.index_ranges import index_ranges, parse_ranges
from gputopo.values.machine import Host, Machine, NumaNode

_LSCPU = "lscpu"
_NUMACTL = "numactl"
_HINT = "copy the whole output of `lscpu` or `numactl -H` again"
_LONGEST = 4000  # flags of a CPU
_MAX_NODES = 1024  # Linux: CONFIG_NODES_SHIFT
_PAIR = re.compile(r"\s*(?P<name>[A-Z][\w ()./,+-]{0,60}?):(?:\s+(?P<value>\S.*?))?\s*")
_OF_LSCPU = re.compile(
    r"\s*(?:Architecture(?!: +\d+\.\d)|CPU op-mode\(s\)|CPU\(s\)|On-line CPU\(s\) list"
    r"|(?:Core|Thread)\(s\) per \w+|Socket\(s\)|NUMA node\(s\)|NUMA node\d+ CPU\(s\)|Model name):(?:\s|$)"
)
_NODE_CPUS = re.compile(r"NUMA node(\d{1,4}) CPU\(s\)")
_AVAILABLE = re.compile(r"available: \d{1,4} nodes? \([\d,-]+\)\s*")
_NODE = re.compile(r"node (\d{1,4}) (cpus|size|free):\s*(.*?)\s*")
_SIZE = re.compile(r"(\d{1,9}) MB")
_DISTANCES = re.compile(r"node distances:\s*")
_COLUMNS = re.compile(r"node\s+(\d{1,4}(?:\s+\d{1,4})*)\s*")
_DISTANCE = re.compile(r"\s*(\d{1,4}):((?:\s+\d{1,3})+)\s*")
# The probes' names, by lscpu's hypervisor vendor.
_VIRTUAL = {
    "kvm": "kvm",
    "microsoft": "hyper-v",
    "vmware": "vmware",
    "xen": "xen",
    "oracle": "virtualbox",
    "parallels": "parallels",
    "bhyve": "bhyve",
}


def detect(text: str) -> bool:
    """Return whether the text has a line that only these tools print."""
    if not any(word in text for word in ("(s)", "available: ", "node ", "Architecture:")):
        return False
    return any(begins([line]) for line in text.splitlines())


def begins(lines: Sequence[str]) -> bool:
    """Return whether only these tools print such a line."""
    first = lines[0]
    return bool(_OF_LSCPU.match(first) or _AVAILABLE.fullmatch(first) or _NODE.fullmatch(first))


def parse(text: str, *, origin: str) -> Machine:
    """Read the host. Raises InputError if no fact was read, or if two descriptions of a node differ."""
    reading = _Reading()
    lines = read_lines(text, reading.take, bare=str.rstrip, longest=_LONGEST)
    if len(reading.facts) + len(reading.nodes) == 0:
        raise InputError(f"{origin} has no CPU or NUMA node in it", _HINT)
    return reading.machine(lines)


@dataclass
class _Reading:
    """The content of the lines so far. `facts`: by lscpu's names; `nodes`: facts of each NUMA node."""

    facts: dict[str, str] = field(default_factory=dict)
    nodes: dict[int, dict[str, Any]] = field(default_factory=dict)
    sources: dict[str, None] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    column: int | None = None  # where lscpu's values start
    columns: list[int] | None = None  # nodes of the distances

    def take(self, number: int, line: str) -> bool:
        """Read a line. Returns False if it is not understood."""
        return self._take_numactl(line) or self._take_lscpu(line)

    def _take_numactl(self, line: str) -> bool:
        if _AVAILABLE.fullmatch(line) or _DISTANCES.fullmatch(line):
            self.sources[_NUMACTL] = None
        elif found := _NODE.fullmatch(line):
            self.sources[_NUMACTL] = None
            return self._node(int(found[1]), found[2], found[3])
        elif found := _COLUMNS.fullmatch(line):
            self.columns = [int(word) for word in found[1].split()]
        elif self.columns is not None and (found := _DISTANCE.fullmatch(line)):
            index, row = int(found[1]), tuple(int(word) for word in found[2].split())
            if self.columns != list(range(len(row))) or index >= len(row):
                return False
            self._set(index, "distances", row)
        else:
            return False
        return True

    def _node(self, index: int, fact: str, text: str) -> bool:
        if index >= _MAX_NODES:
            return False
        if fact == "cpus":
            words = text.split()
            if not all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
                return False
            self._set(index, "cpus", index_ranges(int(word) for word in words))
        elif fact == "size":
            size = _SIZE.fullmatch(text)
            if size is None:
                return False
            self._set(index, "memory_mib", int(size[1]))
        return True

    def _set(self, index: int, fact: str, value: Any) -> None:
        self.nodes.setdefault(index, {}).setdefault(fact, value)

    def _take_lscpu(self, line: str) -> bool:
        found = _PAIR.fullmatch(line)
        if found is None:
            return False
        name, value = found["name"].strip(), found["value"]
        known = _OF_LSCPU.match(line) is not None
        if known and value is not None and self.column is None:
            self.column = found.start("value")
        if not known and (self.column is None or (value is not None and found.start("value") != self.column)):
            return False
        self.sources[_LSCPU] = None
        if node := _NODE_CPUS.fullmatch(name):
            cpus = parse_ranges(value or "")
            if (value and cpus is None) or int(node[1]) >= _MAX_NODES:
                return False
            self._set(int(node[1]), "cpus", index_ranges(cpus or ()))
        elif value is not None:
            self.facts.setdefault(name, value)
        return True

    def machine(self, lines: Lines) -> Machine:
        """Return the host as a machine without GPUs."""
        source = " + ".join(self.sources)
        listed = self.facts.get("On-line CPU(s) list")
        online = parse_ranges(listed) if listed else None
        sockets, per_socket = self._count("Socket(s)"), self._count("Core(s) per socket")
        vendor = self.facts.get("Hypervisor vendor", "").lower()
        return Machine(
            source=source,
            host=Host(
                cpu_model=self.facts.get("Model name"),
                sockets=sockets,
                physical_cores=sockets * per_socket if sockets and per_socket else None,
                logical_cpus=len(online) if online is not None else self._count("CPU(s)"),
                numa_nodes=tuple(NumaNode(index=n, **facts) for n, facts in sorted(self.nodes.items()))
                or None,
                virtual_machine=_VIRTUAL.get(vendor),
            ),
            missing={"gpus": f"not reported by {source}"},
            unread=lines.unread(source),
        )

    def _count(self, name: str) -> int | None:
        text = self.facts.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 6 and int(text) else None


FORMAT = Format(
    "`lscpu` and `numactl -H` text",
    "CPU model, sockets, NUMA nodes with CPUs, memory and distances",
    detect,
    parse,
    begins=begins,
)
