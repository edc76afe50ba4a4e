"""The matrix of `nvidia-smi topo -m`, of any driver: text in, Machine out.

A PCIe class is a link's hop without NVLinks; `NV4` is four NVLinks and an unknown hop. `SOC` of old drivers
is SYS, `PSB` of dcgmi is INTERNAL. A cell that cannot be read becomes an Unread line, and a reason in
`missing` if nothing else in the text shows the fact. Lines outside the matrix and its legend are Unread if
they have a device or a hop. A matrix that contradicts itself is refused.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from gputopo.captures import limits
from gputopo.captures.ledger import Claims, Format
from gputopo.captures.smi import topo_table
from gputopo.captures.smi.topo_lines import CELL, GPU, Column, cells_below
from gputopo.captures.smi.topo_table import Reading, TopoMatrix, TopoRow
from gputopo.topology import looks_cut
from gputopo.values.errors import InputError
from gputopo.values.facts import EVERY, at_gpu, at_link, at_nic, at_numa_node, within
from gputopo.values.index_ranges import index_ranges, parse_cpus
from gputopo.values.machine import Gap, Gpu, Hop, Host, Link, Machine, Nic, NumaNode, Unread

SOURCE = "nvidia-smi topo"

_HINT = "copy the whole output of `nvidia-smi topo -m` again, header and all rows"
_OTHER_NAMES = {"SOC": Hop.SYS, "PSB": Hop.INTERNAL}
_NO_NVLINKS = "`topo -mp` shows only PCIe paths"
_PERHAPS_NVLINKS = (
    "neither a command nor a legend distinguishes `topo -m` from `topo -mp`, which shows only PCIe paths"
)
_NOT_REPORTED = ("name", "pci_address", "memory_mib", "clocks_mhz", "pcie", "power_w", "temperature_c")

_TITLES: dict[Column, str] = {"cpu": "CPU Affinity", "numa": "NUMA Affinity", "gpu_numa": "GPU NUMA ID"}
_MAX_NODES = 1024  # Linux: CONFIG_NODES_SHIFT is at most 10


@dataclass(slots=True)
class Affinities:
    """The affinities by GPU index, the NUMA nodes derived from them, and what could not be read."""

    cpus: dict[int, str | None] = field(default_factory=dict)
    numa: dict[int, int | None] = field(default_factory=dict)
    nodes: tuple[NumaNode, ...] | None = None
    missing: dict[str, str] = field(default_factory=dict)
    unread: list[tuple[int, str]] = field(default_factory=list)


def parse_affinities(rows: Mapping[int, TopoRow], columns: Sequence[Column]) -> Affinities:
    """Read the affinity words of the GPUs' rows. Raises nothing: any other word is listed as unread."""
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


def _is_cut(row: TopoRow, lists: Collection[str]) -> bool:
    """Return whether a CPU list at the very end of the text is the beginning of another GPU's CPU list."""
    cpus = row.affinity.get("cpu", "")
    at_end = row.may_be_cut and cpus and [*row.affinity][-1] == "cpu" and not row.rest
    return bool(at_end) and any(other != cpus and other.startswith(cpus) for other in lists)


def _cpu_list(found: Affinities, index: int, row: TopoRow, columns: Sequence[Column]) -> str | None:
    text = row.affinity.get("cpu")
    if text is not None and parse_cpus(text) is not None:
        return text
    fact = at_gpu(index if text or "cpu" in columns else EVERY, "cpu_affinity")
    found.missing[fact] = _why(found, row, "cpu", columns)
    return None


def _numa_node(found: Affinities, index: int, row: TopoRow, columns: Sequence[Column]) -> int | None:
    text = row.affinity.get("numa", "")
    node = _number(text)
    several = parse_cpus(text)
    if node is None and several and _number(row.affinity.get("gpu_numa", "")) is not None:
        node = min(several)  # on Grace, the other nodes are memory of GPUs
    if node is not None:
        return node
    why = f"its NUMA affinity is several nodes: {text}" if several else _why(found, row, "numa", columns)
    found.missing[at_gpu(index if text or "numa" in columns else EVERY, "numa_node")] = why
    return None


def _why(found: Affinities, row: TopoRow, column: Column, columns: Sequence[Column]) -> str:
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
    """Build the NUMA nodes that the GPUs list.

    A node's CPUs are known only if the lists of its GPUs are equal or disjoint, and no other node has the
    same CPUs.
    """
    lists: dict[int, list[frozenset[int]]] = {}
    for index, node in found.numa.items():
        cpus = parse_cpus(found.cpus[index] or "")
        if node is not None:
            lists.setdefault(node, []).extend([cpus] if cpus else [])
    if not lists and not own_memory:
        found.missing["host.numa_nodes"] = "no GPU lists a single NUMA node"
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
    """Return the reason why the CPUs of a node are not known, or None if they are known."""
    known = lists.get(node, [])
    if node not in lists:
        return f"it is the memory of GPU {own_memory[node]}, and no GPU lists CPUs of it"
    if not known:
        return "none of its GPUs has a readable CPU affinity"
    if any(map(looks_cut, known)):
        return "its GPUs list a few scattered CPUs, probably those of a job or container"
    if any(a != b and a & b for a in known for b in known):
        return "its GPUs have different CPU lists that overlap"
    others = frozenset().union(
        *(cpus for other, cpus_of in lists.items() if other != node for cpus in cpus_of)
    )
    if others & frozenset().union(*known):
        return "GPUs of another node list the same CPUs"
    return None


def detect(text: str) -> bool:
    """Return whether the text has such a matrix, or a part that can only come from one."""
    return re.search(r"GPU\d", text) is not None and bool(_candidates(topo_table.parse(text)))


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line is the command, or a header with a row of such cells below it."""
    return topo_table.COMMAND.search(lines[0]) is not None or cells_below(lines) == "hops"


def claims(text: str) -> Claims:
    """Return the lines of matrices and their legends."""
    reading = topo_table.parse(text)
    return Claims(reading.read, reading.legend)


def parse(text: str, *, origin: str) -> Machine:
    """Read the only matrix of a text; `origin` is the file name in the error.

    If a GPU has no row, the other GPUs' cells are used. Raises InputError if there is no matrix or more than
    one, or if the matrix contradicts itself: a GPU without a column, an X that is not on the diagonal, too
    few or too many cells, two cells for one pair that differ.
    """
    reading = topo_table.parse(text)
    found = _candidates(reading)
    if reading.renamed is not None and len(found) > 1:
        line, label, name, second = reading.renamed
        raise InputError(
            f"{origin}: two machines: {label} is {name}, and {second} in line {line}",
            "give one file for each machine",
        )
    matrix = _the_matrix(found, origin)
    return _Builder(matrix, _gpu_rows(matrix, origin), reading).machine()


def _candidates(reading: Reading) -> list[TopoMatrix]:
    with_rows = [m for m in reading.matrices if any(GPU.fullmatch(row.label) for row in m.rows)]
    return with_rows or [m for m in reading.matrices if m.affinity or m.rows]


def _the_matrix(found: Sequence[TopoMatrix], origin: str) -> TopoMatrix:
    if not found:
        raise InputError(f"{origin}: there is no `nvidia-smi topo -m` matrix in it", _HINT)
    first = found[0]
    for other in found[1:]:
        if [(row.label, row.cells) for row in other.rows] != [(row.label, row.cells) for row in first.rows]:
            line = f"near line {other.rows[0].line}" if other.rows else "without rows"
            raise InputError(
                f"{origin}: two different matrices, the second {line}",
                "give a file for each",
            )
    return first


def _gpu_rows(matrix: TopoMatrix, origin: str) -> dict[int, TopoRow]:
    """Return the GPUs' rows by index. Raises InputError for a matrix that contradicts itself."""
    labels = [label for label in matrix.columns if GPU.fullmatch(label)]
    limits.require_gpus(labels, origin)
    rows = {row.label: row for row in matrix.rows}
    shown = [label for label in labels if label in rows]
    if len(shown) < len(labels):  # the text ends early, perhaps within a cell
        shown = [label for label in shown if not rows[label].may_be_cut]
    gpus = {int(label[3:]): rows[label] for label in sorted(shown, key=lambda label: int(label[3:]))}
    if why := next(_faults(matrix, labels, gpus), None):
        raise InputError(f"{origin}: {why}", _HINT)
    return gpus


def _faults(matrix: TopoMatrix, labels: Sequence[str], gpus: Mapping[int, TopoRow]) -> Iterator[str]:
    """Yield what is impossible in the part between GPUs: its names, its width, its diagonal, its symmetry."""
    first: dict[str, int] = {}
    for row in matrix.rows:
        if first.setdefault(row.label, row.line) != row.line:
            yield f"{row.label} has two rows, line {first[row.label]} and line {row.line}"
        if GPU.fullmatch(row.label) and row.label not in labels:
            yield f"line {row.line} is a row of {row.label}, which is not in the header"
    for label in labels:
        if re.fullmatch(r"GPU0\d+", label):
            yield f"{label} is not a GPU number"
        if labels.count(label) > 1:
            yield f"the header lists {label} twice"
    if not gpus:
        yield f"no row for {', '.join(labels)}, which the header lists"
    at = {int(label[3:]): matrix.columns.index(label) for label in labels}
    for row in gpus.values():
        if row.more_cells:
            source = "the header" if matrix.has_header else "there are rows without a header"
            yield f"the row of {row.label} (line {row.line}) has more cells than {source}"
        if len(row.cells) <= max(at.values()):
            yield f"the row of {row.label} (line {row.line}) has only {len(row.cells)} cells"
    for (a, row), (b, column) in product(gpus.items(), at.items()):
        cell = row.cells[column]
        if (cell == "X") != (a == b):
            wanted = "expected X" if a == b else "which belongs on the diagonal"
            yield f"cell GPU{a}-GPU{b} (line {row.line}) is {cell}, {wanted}"
        back = gpus[b].cells[at[a]] if b in gpus else cell
        if CELL.fullmatch(cell) and CELL.fullmatch(back) and _meaning(cell) != _meaning(back):
            yield (
                f"not symmetric: GPU{a}-GPU{b} is {cell} (line {row.line}), "
                f"GPU{b}-GPU{a} is {back} (line {gpus[b].line})"
            )


def _meaning(cell: str) -> Hop | int | None:
    """Return the hop of a cell, or the number of its NVLinks; None for X and for words that are not cells."""
    if CELL.fullmatch(cell) is None or cell == "X":
        return None
    if cell.startswith("NV"):
        return int(cell[2:])
    return _OTHER_NAMES.get(cell) or Hop(cell)


class _Builder:
    """Builds a machine from a checked matrix; collects what is missing and what was not read."""

    def __init__(self, matrix: TopoMatrix, gpus: dict[int, TopoRow], reading: Reading) -> None:
        self.matrix = matrix
        self.gpus = gpus
        self.reading = reading
        self.missing: dict[str, str] = {}
        self.unread: dict[tuple[int, str], Unread] = {}
        self.nics = _nic_indices(matrix)

    def machine(self) -> Machine:
        """Return the machine that the matrix shows."""
        indices = sorted(int(label[3:]) for label in self.matrix.columns if GPU.fullmatch(label))
        links = tuple(self._links(indices))
        nics = tuple(self._nic(label, index) for label, index in self.nics.items())
        affinities = parse_affinities(self.gpus, self.matrix.affinity)
        self._note_rest(affinities)
        for fact in _NOT_REPORTED:
            self.missing[at_gpu(EVERY, fact)] = "not reported by nvidia-smi topo -m"
        return Machine(
            source=SOURCE,
            host=Host(numa_nodes=affinities.nodes),
            gpus=tuple(
                Gpu(
                    index=index,
                    numa_node=affinities.numa.get(index),
                    cpu_affinity=affinities.cpus.get(index),
                )
                for index in indices
            ),
            gaps=tuple(
                Gap(source=SOURCE, text=f"no row for GPU {index}, which the header lists")
                for index in indices
                if index not in self.gpus
            ),
            links=links,
            nics=nics,
            missing={**self.missing, **affinities.missing},
            unread=tuple(self.unread[key] for key in sorted(self.unread)),
        )

    def _links(self, indices: Sequence[int]) -> Iterator[Link]:
        pairs = [*combinations(indices, 2)]
        nvlinked = False
        for a, b in pairs:
            ways = [(i, j) for i, j in ((a, b), (b, a)) if i in self.gpus]
            cells = [self._cell(self.gpus[i], f"GPU{j}") for i, j in ways]
            meaning = next((cell for cell in cells if cell is not None), None)
            if meaning is None:
                self.missing[at_link(a, b, "hop")] = "neither of its two cells could be read"
            elif isinstance(meaning, Hop):
                yield Link(a=a, b=b, hop=meaning, nvlinks=0 if self.matrix.pcie_only is False else None)
            else:
                nvlinked = True
                yield Link(a=a, b=b, nvlinks=meaning)
        if self.matrix.pcie_only is not False and pairs:
            reason = _NO_NVLINKS if self.matrix.pcie_only else _PERHAPS_NVLINKS
            self.missing[at_link(EVERY, fact="nvlinks")] = reason
        if nvlinked:
            reason = "if the matrix shows NVLinks, it does not show the PCIe path"
            self.missing[at_link(EVERY, fact="hop")] = reason

    def _cell(self, row: TopoRow, column: str) -> Hop | int | None:
        """Return the value of a cell; an unknown cell is listed as not read."""
        text = row.cells[self.matrix.columns.index(column)]
        meaning = _meaning(text)
        if meaning is None or (isinstance(meaning, int) and not column.startswith("GPU")):
            like = next((f" (looks like a cut {h.value})" for h in Hop if h.value.startswith(text)), "")
            self._note(row.line, f"{row.label}-{column}: {text}{like}")
            return None
        return meaning

    def _note(self, line: int, text: str) -> None:
        self.unread[line, text] = Unread(source=SOURCE, line=line, text=text)

    def _note_rest(self, affinities: Affinities) -> None:
        for line, text in (*self.reading.remarks, *affinities.unread):
            self._note(line, text)
        for row in self.matrix.rows:
            if rest := [word for word in row.rest if word != "N/A"]:
                self._note(row.line, f"{row.label}: {' '.join(rest)}")

    def _nic(self, label: str, index: int) -> Nic:
        name = self.reading.nic_names.get(label) or (None if label.startswith("NIC") else label)
        if name is None:
            self.missing[at_nic(index, "name")] = "the text has no NIC legend for it"
        hops: dict[str, Hop] = {}
        rows = {row.label for row in self.matrix.rows}
        for key, other in self._others(label):
            by_row = {by: hop for by, hop in self._nic_hops(label, other) if hop is not None}
            if len(set(by_row.values())) == 1:
                hops[key] = next(iter(by_row.values()))
            elif by_row:
                said = ", ".join(f"the row of {by} shows {hop.value}" for by, hop in by_row.items())
                self.missing[at_nic(index, within("hops", key))] = said
            elif rows.isdisjoint((label, other)):
                self.missing[at_nic(index, within("hops", "nics"))] = "the text has no rows of them"
            else:
                self.missing[at_nic(index, within("hops", key))] = "the text has no readable cell for it"
        return Nic(index=index, name=name, hops=hops)

    def _others(self, label: str) -> Iterator[tuple[str, str]]:
        yield from ((f"gpu:{index}", f"GPU{index}") for index in self.gpus)
        yield from ((f"nic:{index}", other) for other, index in self.nics.items() if other != label)

    def _nic_hops(self, nic: str, other: str) -> Iterator[tuple[str, Hop | None]]:
        """Return the cells of a NIC and another device in both rows, if the cells belong to known columns."""
        rows = {row.label: row for row in self.matrix.rows}
        for label, column in ((nic, other), (other, nic)):
            row = rows.get(label)
            if row is None or column not in self.matrix.columns:
                continue
            if not _placed(row, self.matrix, self.gpus):
                self._note(row.line, row.text)
            elif self.matrix.columns.index(column) < len(row.cells):
                meaning = self._cell(row, column)
                yield label, meaning if isinstance(meaning, Hop) else None


def _nic_indices(matrix: TopoMatrix) -> dict[str, int]:
    """Number the NICs by their names (NIC3), else by their order (mlx5_2 may come before mlx5_1)."""
    labels = dict.fromkeys((*matrix.columns, *(row.label for row in matrix.rows)))
    nics = [label for label in labels if not GPU.fullmatch(label)]
    if all(re.fullmatch("NIC[0-9]{1,4}", label) for label in nics):
        return {label: int(label[3:]) for label in sorted(nics, key=lambda label: int(label[3:]))}
    return {label: position for position, label in enumerate(nics)}


def _placed(row: TopoRow, matrix: TopoMatrix, gpus: dict[int, TopoRow]) -> bool:
    """Return whether each cell of a row surely belongs to its column.

    A row is as long as the header, or has only the GPUs' cells (its NIC columns were cut), and its X is in
    the column of its own name. In any other row an unknown cell is missing.
    """
    if row.more_cells or len(row.cells) not in (len(matrix.columns), len(gpus)):
        return False
    column = matrix.columns.index(row.label) if row.label in matrix.columns else None
    expected = [column] if column is not None and column < len(row.cells) else []
    return [i for i, cell in enumerate(row.cells) if cell == "X"] == expected


FORMAT = Format(
    "`nvidia-smi topo -m` (or `-mp`) text",
    "paths between devices, NVLinks, CPU and NUMA affinity, NICs",
    detect,
    parse,
    begins=begins,
    claims=claims,
)
