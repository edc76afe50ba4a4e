"""The matrix of `nvidia-smi topo -m`, of any driver: text in, Machine out.

A PCIe class is a link's hop without NVLinks; `NV4` is four NVLinks and an unknown hop. `SOC` of old drivers
is SYS, `PSB` of dcgmi is INTERNAL. A cell that cannot be read becomes an Unread line, and a reason in
`missing` if nothing else in the text shows the fact. Lines outside the matrix and its legend are Unread if
they have a device or a hop. A matrix that contradicts itself is refused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
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
    matrices = _candidates(reading)
    if reading.renamed is not None and len(matrices) > 1:
        line, label, name, second = reading.renamed
        raise InputError(
            f"{origin}: two machines: {label} is {name}, and {second} in line {line}",
            "give one file for each machine",
        )
    matrix = _the_matrix(matrices, origin)
    return _Builder(matrix, _gpu_rows(matrix, origin), reading).machine()


def _candidates(reading: Reading) -> list[TopoMatrix]:
    with_rows = [m for m in reading.matrices if any(GPU.fullmatch(row.label) for row in m.rows)]
    return with_rows or [m for m in reading.matrices if m.affinity or m.rows]


def _the_matrix(matrices: Sequence[TopoMatrix], origin: str) -> TopoMatrix:
    if not matrices:
        raise InputError(f"{origin}: there is no `nvidia-smi topo -m` matrix in it", _HINT)
    first = matrices[0]
    for other in matrices[1:]:
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
        if labels.count(label) > 1 or re.fullmatch(r"GPU0\d+", label):
            yield f"the header lists {label} twice, or with a leading zero"
    if not gpus:
        yield f"no row for {', '.join(labels)}, which the header lists"
    at = {int(label[3:]): matrix.columns.index(label) for label in labels}
    for row in gpus.values():
        if row.more_cells or len(row.cells) <= max(at.values()):
            width = "more" if row.more_cells else "fewer"
            yield f"the row of {row.label} (line {row.line}) has {width} cells than there are columns"
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
        self.rows = {row.label: row for row in matrix.rows}
        self.nics = _nic_indices(matrix)

    def machine(self) -> Machine:
        """Return the machine that the matrix shows."""
        indices = sorted(int(label[3:]) for label in self.matrix.columns if GPU.fullmatch(label))
        links = tuple(self._links(indices))
        nics = tuple(self._nic(label, index) for label, index in self.nics.items())
        for fact in _NOT_REPORTED:
            self.missing[at_gpu(EVERY, fact)] = "not reported by nvidia-smi topo -m"
        cpus: dict[int, str | None] = {}
        numa: dict[int, int | None] = {}
        for index, row in self.gpus.items():
            cpus[index] = self._cpus(index, row)
            numa[index] = self._numa_node(index, row)
        nodes = self._nodes(cpus, numa)
        for line, text in self.reading.remarks:
            self._note(line, text)
        for row in self.matrix.rows:
            if rest := [word for word in row.rest if word != "N/A"]:
                self._note(row.line, f"{row.label}: {' '.join(rest)}")
        return Machine(
            source=SOURCE,
            host=Host(numa_nodes=nodes),
            gpus=tuple(
                Gpu(index=index, numa_node=numa.get(index), cpu_affinity=cpus.get(index)) for index in indices
            ),
            gaps=tuple(
                Gap(source=SOURCE, text=f"no row for GPU {index}, which the header lists")
                for index in indices
                if index not in self.gpus
            ),
            links=links,
            nics=nics,
            missing=self.missing,
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

    def _nic(self, label: str, index: int) -> Nic:
        name = self.reading.nic_names.get(label) or (None if label.startswith("NIC") else label)
        if name is None:
            self.missing[at_nic(index, "name")] = "the text has no NIC legend for it"
        hops: dict[str, Hop] = {}
        others = {f"gpu:{gpu}": f"GPU{gpu}" for gpu in self.gpus}
        others |= {f"nic:{nic}": other for other, nic in self.nics.items() if other != label}
        for key, other in others.items():
            by_row = dict(self._nic_hops(label, other))
            if len(set(by_row.values())) == 1:
                hops[key] = next(iter(by_row.values()))
            elif by_row:
                said = ", ".join(f"the row of {by} shows {hop.value}" for by, hop in by_row.items())
                self.missing[at_nic(index, within("hops", key))] = said
            elif self.rows.keys().isdisjoint((label, other)):
                self.missing[at_nic(index, within("hops", "nics"))] = "the text has no rows of them"
            else:
                self.missing[at_nic(index, within("hops", key))] = "the text has no readable cell for it"
        return Nic(index=index, name=name, hops=hops)

    def _nic_hops(self, nic: str, other: str) -> Iterator[tuple[str, Hop]]:
        """Yield the hops between a NIC and another device by row, if the cells belong to known columns."""
        for label, column in ((nic, other), (other, nic)):
            row = self.rows.get(label)
            if row is None or column not in self.matrix.columns:
                continue
            if not self._is_placed(row):
                self._note(row.line, row.text)
            elif self.matrix.columns.index(column) < len(row.cells):
                meaning = self._cell(row, column)
                if isinstance(meaning, Hop):
                    yield label, meaning

    def _is_placed(self, row: TopoRow) -> bool:
        """Return whether each cell of a row surely belongs to its column.

        A row is as long as the header, or has only the GPUs' cells (its NIC columns were cut), and its X is
        in the column of its own name. In any other row an unknown cell is missing.
        """
        columns = self.matrix.columns
        if row.more_cells or len(row.cells) not in (len(columns), len(self.gpus)):
            return False
        in_row = zip(columns, row.cells, strict=False)
        return all((cell == "X") == (column == row.label) for column, cell in in_row)

    def _cpus(self, index: int, row: TopoRow) -> str | None:
        text = row.affinity.get("cpu", "")
        is_last = row.may_be_cut and [*row.affinity][-1:] == ["cpu"] and not row.rest
        lists = {other.affinity.get("cpu", "") for other in self.gpus.values()}
        if text and is_last and any(cpus != text and cpus.startswith(text) for cpus in lists):
            self.missing[at_gpu(index, "cpu_affinity")] = "the text ends in the middle of it"
            self._note(row.line, f"{row.label} {_TITLES['cpu']}: {text} (cut)")
        elif parse_cpus(text) is None:
            self._without_affinity(index, row, "cpu", "cpu_affinity")
        else:
            return text
        return None

    def _numa_node(self, index: int, row: TopoRow) -> int | None:
        text, own_memory = row.affinity.get("numa", ""), row.affinity.get("gpu_numa", "N/A")
        if own_memory != "N/A" and _number(own_memory) is None:
            self._note(row.line, f"{row.label} {_TITLES['gpu_numa']}: {own_memory}")
        node, several = _number(text), parse_cpus(text)
        if node is None and several and _number(own_memory) is not None:
            node = min(several)  # on Grace, the other nodes are memory of GPUs
        if node is None:
            why = f"its NUMA affinity is several nodes: {text}" if several else None
            self._without_affinity(index, row, "numa", "numa_node", why)
        return node

    def _without_affinity(
        self, index: int, row: TopoRow, column: Column, fact: str, why: str | None = None
    ) -> None:
        """Add the reason why an affinity is not known; a text that cannot be read is listed."""
        text = row.affinity.get(column)
        has_column = column in self.matrix.affinity
        if text is None:
            why = (
                f"the {_TITLES[column]} column is empty"
                if has_column
                else f"the text has no {_TITLES[column]} column"
            )
        elif why is None and text != "N/A":
            self._note(row.line, f"{row.label} {_TITLES[column]}: {text}")
            why = f"could not be read: {text}"
        self.missing[at_gpu(index if text or has_column else EVERY, fact)] = why or "N/A"

    def _nodes(
        self, cpus_of: Mapping[int, str | None], node_of: Mapping[int, int | None]
    ) -> tuple[NumaNode, ...] | None:
        """Build the NUMA nodes that the GPUs list.

        A node's CPUs are known only if the lists of its GPUs are equal or disjoint, and no other node has the
        same CPUs.
        """
        memory_of = {
            node: index
            for index, row in self.gpus.items()
            if (node := _number(row.affinity.get("gpu_numa", ""))) is not None
        }
        lists: dict[int, list[frozenset[int]]] = {}
        for index, listed in node_of.items():
            if listed is not None:
                cpus = parse_cpus(cpus_of[index] or "")
                lists.setdefault(listed, []).extend([cpus] if cpus else [])
        nodes: list[NumaNode] = []
        for node in sorted({*lists, *memory_of}):
            known = lists.get(node, [])
            others = frozenset[int]().union(*(c for n, each in lists.items() if n != node for c in each))
            whole = frozenset[int]().union(*known)
            reason = None
            if node not in lists:
                reason = f"it is the memory of GPU {memory_of[node]}, and no GPU lists CPUs of it"
            elif not known:
                reason = "none of its GPUs has a readable CPU affinity"
            elif any(map(looks_cut, known)):
                reason = "its GPUs list a few scattered CPUs, probably the CPUs of a job or container"
            elif any(a != b and a & b for a, b in combinations(known, 2)):
                reason = "its GPUs have different CPU lists that overlap"
            elif others & whole:
                reason = "GPUs of another node list the same CPUs"
            if reason is not None:
                self.missing[at_numa_node(node, "cpus")] = reason
            nodes.append(NumaNode(index=node, cpus=index_ranges(whole) if reason is None else None))
        if not nodes:
            self.missing["host.numa_nodes"] = "no GPU lists a single NUMA node"
        return tuple(nodes) or None


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,4}", text) and int(text) < _MAX_NODES else None


def _nic_indices(matrix: TopoMatrix) -> dict[str, int]:
    """Number the NICs by their names (NIC3), else by their order (mlx5_2 may come before mlx5_1)."""
    labels = dict.fromkeys((*matrix.columns, *(row.label for row in matrix.rows)))
    nics = [label for label in labels if not GPU.fullmatch(label)]
    if all(re.fullmatch("NIC[0-9]{1,4}", label) for label in nics):
        return {label: int(label[3:]) for label in sorted(nics, key=lambda label: int(label[3:]))}
    return {label: position for position, label in enumerate(nics)}


FORMAT = Format(
    "`nvidia-smi topo -m` (or `-mp`) text",
    "paths between devices, NVLinks, CPU and NUMA affinity, NICs",
    detect,
    parse,
    begins=begins,
    claims=claims,
)
