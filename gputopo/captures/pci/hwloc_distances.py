"""The matrices of hwloc's XML: latencies between NUMA nodes, NVLink bandwidth between GPUs."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gputopo.values.machine import Gpu

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_MAX_ENDS = 512
# MB/s of one NVLink in one direction, by the cards that differ from 25 000 (NVLink 2 to 4).
# NVIDIA P100 whitepaper: 20 GB/s (NVLink 1); NVIDIA Blackwell architecture brief: 50 GB/s (NVLink 5).
_LINK_MB_PER_S = (("P100", 20_000), ("B100", 50_000), ("B200", 50_000), ("B300", 50_000))
_USUAL_MB_PER_S = 25_000

Counts = Callable[[str, str], int | None]


class _Matrix(NamedTuple):
    name: str
    kind: str
    ends: tuple[str, ...]
    values: tuple[int, ...]

    def at(self, a: int, b: int) -> int:
        return self.values[a * len(self.ends) + b]


def numa(root: "Element", nodes: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return each NUMA node's distances to nodes 0, 1, ..., 10 for itself as the kernel has them."""
    for matrix in _matrices(root):
        ends = [int(end) for end in matrix.ends if end.isascii() and end.isdigit() and len(end) < 6]
        if matrix.kind == "NUMANode" and "Latency" in matrix.name and sorted(ends) == list(nodes):
            places = [ends.index(node) for node in nodes]
            return {node: tuple(matrix.at(ends.index(node), p) for p in places) for node in nodes}
    return _numa_of_version_1(root, nodes)


def nvlinks(
    root: "Element",
    gpu_of: Mapping[str, str],
    ids: Mapping[str, str],
    names: Mapping[str, str | None],
) -> Counts:
    """Return a function that counts the NVLinks of two GPUs by address; None where they are no whole number.

    `gpu_of`: PCI addresses by hwloc's number of the NVML device; `ids`: the kind of every numbered object;
    `names`: the cards by address. Bandwidth to NVSwitches counts for every pair, as much as the lesser has.
    """
    direct: dict[frozenset[str], int] = {}
    switched: dict[str, int] = {}
    seen: set[str] = set()
    for matrix in _matrices(root):
        if matrix.name != "NVLinkBandwidth":
            continue
        ends = [end.rpartition(":")[2] for end in matrix.ends]
        for row, gpu in ((row, gpu_of[end]) for row, end in enumerate(ends) if end in gpu_of):
            seen.add(gpu)
            for column, end in enumerate(ends):
                value = matrix.at(row, column)
                if end in gpu_of and gpu_of[end] != gpu:
                    pair = frozenset((gpu, gpu_of[end]))
                    direct[pair] = max(direct.get(pair, 0), value)
                elif "nvswitch" in ids.get(end, "").lower():
                    switched[gpu] = switched.get(gpu, 0) + value

    def count(a: str, b: str) -> int | None:
        if a not in seen or b not in seen:
            return None
        total = direct.get(frozenset((a, b)), 0) + min(switched.get(a, 0), switched.get(b, 0))
        one = _link_mb_per_s(names.get(a))
        return total // one if total % one == 0 else None

    return count


def with_affinity(gpu: Gpu, cpus: str | None) -> Gpu:
    """Return the GPU with the CPUs of its NUMA node."""
    return msgspec.structs.replace(gpu, cpu_affinity=cpus)


def _link_mb_per_s(name: str | None) -> int:
    return next((speed for word, speed in _LINK_MB_PER_S if word in (name or "")), _USUAL_MB_PER_S)


def _matrices(root: "Element") -> list[_Matrix]:
    """Return the matrices of hwloc 2 and 3 that are whole."""
    found: list[_Matrix] = []
    for element in root:
        if element.tag not in ("distances2", "distances2hetero"):
            continue
        ends = tuple(word for part in element.findall("indexes") for word in (part.text or "").split())
        words = [word for part in element.findall("u64values") for word in (part.text or "").split()]
        whole = len(ends) <= _MAX_ENDS and len(words) == len(ends) ** 2
        if whole and all(re.fullmatch(r"[0-9]{1,19}", word) for word in words):
            values = tuple(int(word) for word in words)
            found.append(_Matrix(element.get("name") or "", element.get("type") or "", ends, values))
    return found


def _numa_of_version_1(root: "Element", nodes: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Read hwloc 1's `<distances>`: values relative to a base, in the order of the nodes."""
    for element in root.iter("distances"):
        base = _decimal(element.get("latency_base"))
        values = [_decimal(latency.get("value")) for latency in element.findall("latency")]
        size = len(nodes)
        if base is None or None in values or len(values) != size * size:
            continue
        matrix = [round(value * base) for value in values if value is not None]
        return {node: tuple(matrix[i * size : (i + 1) * size]) for i, node in enumerate(nodes)}
    return {}


def _decimal(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text, re.ASCII) else None
