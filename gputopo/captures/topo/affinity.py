"""The affinity columns of `nvidia-smi topo -m`: which CPUs and which NUMA node are near to a GPU."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gputopo.captures.topo.lines import Column
from gputopo.captures.topo.table import Row
from gputopo.topology.doubts import looks_cut
from gputopo.values.index_ranges import index_ranges, parse_cpus
from gputopo.values.machine import NumaNode
from gputopo.values.subject import EVERY, at_gpu, at_numa_node

_TITLES: dict[Column, str] = {"cpu": "CPU Affinity", "numa": "NUMA Affinity", "gpu_numa": "GPU NUMA ID"}
_MAX_NODES = 1024  # Linux: CONFIG_NODES_SHIFT is at most 10


@dataclass(slots=True)
class Affinities:
    """What the columns show, by GPU index, the NUMA nodes that follow, and what could not be read."""

    cpus: dict[int, str | None] = field(default_factory=dict)
    numa: dict[int, int | None] = field(default_factory=dict)
    nodes: tuple[NumaNode, ...] | None = None
    missing: dict[str, str] = field(default_factory=dict)
    unread: list[tuple[int, str]] = field(default_factory=list)


def read_affinities(rows: Mapping[int, Row], columns: Sequence[Column]) -> Affinities:
    """Read the affinity words of the GPUs' rows. Raises nothing: what is no affinity is noted as unread."""
    found = Affinities()
    own_memory: dict[int, int] = {}
    lists = {row.affinity.get("cpu", "") for row in rows.values()}
    for index, row in rows.items():
        if _is_cut(row, lists):
            found.cpus[index] = None
            found.missing[at_gpu(index, "cpu_affinity")] = "the text ends in the middle of it"
            found.unread.append((row.line, f"{row.label} {_TITLES['cpu']}: {row.affinity['cpu']} (cut)"))
        else:
            found.cpus[index] = _cpu_list(found, index, row, columns)
        found.numa[index] = _numa_node(found, index, row, columns)
        node = _number(row.affinity.get("gpu_numa", ""))
        if node is not None:
            own_memory[node] = index
        elif row.affinity.get("gpu_numa", "N/A") != "N/A":
            found.unread.append((row.line, f"{row.label} {_TITLES['gpu_numa']}: {row.affinity['gpu_numa']}"))
    found.nodes = _nodes(found, own_memory)
    return found


def _is_cut(row: Row, lists: Collection[str]) -> bool:
    """Return whether a CPU list at the very end of the text is the beginning of another GPU's."""
    own = row.affinity.get("cpu", "")
    at_end = row.may_be_cut and own and [*row.affinity][-1] == "cpu" and not row.rest
    return bool(at_end) and any(other != own and other.startswith(own) for other in lists)


def _cpu_list(found: Affinities, index: int, row: Row, columns: Sequence[Column]) -> str | None:
    text = row.affinity.get("cpu")
    if text is not None and parse_cpus(text) is not None:
        return text
    found.missing[_fact(index, "cpu_affinity", text, "cpu" in columns)] = _why(found, row, "cpu", columns)
    return None


def _numa_node(found: Affinities, index: int, row: Row, columns: Sequence[Column]) -> int | None:
    text = row.affinity.get("numa", "")
    node = _number(text)
    if node is not None:
        return node
    several = parse_cpus(text)
    found.missing[_fact(index, "numa_node", text, "numa" in columns)] = (
        f"its NUMA affinity is several nodes: {text}" if several else _why(found, row, "numa", columns)
    )
    return None


def _fact(index: int, name: str, text: str | None, has_column: bool) -> str:
    return at_gpu(index if text or has_column else EVERY, name)


def _why(found: Affinities, row: Row, column: Column, columns: Sequence[Column]) -> str:
    text = row.affinity.get(column)
    if text == "N/A":
        return "N/A"
    if text is not None:
        found.unread.append((row.line, f"{row.label} {_TITLES[column]}: {text}"))
        return f"could not be read: {text}"
    if column in columns:
        return f"the {_TITLES[column]} column is empty"
    return f"the text has no {_TITLES[column]} column"


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,4}", text) and int(text) < _MAX_NODES else None


def _nodes(found: Affinities, own_memory: Mapping[int, int]) -> tuple[NumaNode, ...] | None:
    """Build the NUMA nodes that the GPUs name.

    A node's CPUs are known only where its GPUs agree, or add up, and no other node has the same ones.
    """
    lists: dict[int, list[frozenset[int]]] = {}
    for index, node in found.numa.items():
        cpus = parse_cpus(found.cpus[index] or "")
        if node is not None:
            lists.setdefault(node, []).extend([cpus] if cpus else [])
    if not lists and not own_memory:
        found.missing["host.numa_nodes"] = "no GPU names a single NUMA node"
        return None
    nodes: list[NumaNode] = []
    for node in sorted({*lists, *own_memory}):
        reason = _doubt(node, lists, own_memory)
        if reason is None:
            nodes.append(NumaNode(index=node, cpus=index_ranges(frozenset().union(*lists[node]))))
        else:
            found.missing[at_numa_node(node, "cpus")] = reason
            nodes.append(NumaNode(index=node))
    return tuple(nodes)


def _doubt(node: int, lists: Mapping[int, list[frozenset[int]]], own_memory: Mapping[int, int]) -> str | None:
    """Return the reason why the CPUs of a node are not known, or None where they are."""
    known = lists.get(node, [])
    if node not in lists:
        return f"it is the memory of GPU {own_memory[node]}, with which no GPU's CPUs are named"
    if not known:
        return "none of its GPUs has a readable CPU affinity"
    if any(map(looks_cut, known)):
        return "its GPUs name a few scattered CPUs: what a job or container may use"
    if any(a != b and a & b for a in known for b in known):
        return "its GPUs name CPU lists that overlap and differ"
    others = frozenset().union(
        *(cpus for other, cpus_of in lists.items() if other != node for cpus in cpus_of)
    )
    if others & frozenset().union(*known):
        return "GPUs of another node name the same CPUs"
    return None
