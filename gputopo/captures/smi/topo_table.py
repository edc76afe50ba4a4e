"""A pasted `nvidia-smi topo -m` as a table of words: its matrices, and what was not understood."""

import functools
import re
from collections import Counter
from dataclasses import dataclass, field, replace

from gputopo.captures.smi.topo_lines import (
    CELL,
    GPU,
    PEER_STATUS,
    Column,
    Head,
    Line,
    best_header,
    header_words,
    label_of,
    may_be_cell,
    read_lines,
    row_start,
    starts_row,
    words_of,
)
from gputopo.values.index_ranges import parse_cpus

_GLUED = re.compile(r"([A-Z]{2,8})(\d.*)", re.ASCII)
_LEGEND = re.compile(r"\bLegend:|(?<!\w)(?:X|SYS|SOC|NODE|PHB|PXB|PIX|PSB|INTERNAL|NV#)\s*=\s")
_EXPLAINED = re.compile(r"(NODE|NV#)\s*=\s")
_NIC_LEGEND = re.compile(r"(?:^|\s)(NIC\d+)\s*:\s*(\S{0,60}[\d_]\S{0,60})$", re.ASCII)
_PEER_LEGEND = re.compile(r"^[^\w\n]*(?:OK|CNS|GNS|TNS)\s*=\s", re.MULTILINE)
COMMAND = re.compile(r"\btopo\s+(?:(-mp|--matrix_pci)|-m|--matrix)\b")


@dataclass(frozen=True, slots=True)
class TopoRow:
    """One device's row. `cells` are the words under the devices, in the order of the columns.

    `more_cells` is true if there are cells after the last column. `rest` are words that belong to no column.
    """

    label: str
    line: int
    text: str
    cells: tuple[str, ...]
    glued: bool = False
    more_cells: bool = False
    affinity: dict[Column, str] = field(default_factory=dict)
    rest: tuple[str, ...] = ()
    may_be_cut: bool = False  # the text ends with the row, without a line end


@dataclass(frozen=True, slots=True)
class TopoMatrix:
    """One matrix. `columns` are the devices of the header, or of the rows if there is no header.

    `pcie_only`: the matrix is from `topo -mp`, which shows the PCIe hop of every pair and no NVLinks. The
    command above it shows that, or a legend below it that has NODE but no NV#. None: unknown, because there
    are no NVLinks, no command and no legend.
    """

    columns: tuple[str, ...]
    rows: tuple[TopoRow, ...]
    affinity: tuple[Column, ...]
    pcie_only: bool | None = False


@dataclass(frozen=True, slots=True)
class Reading:
    """The content of one text: its matrices, the names of the NIC legend, and lines that look like data.

    `read`, `legend`: the numbers of the lines that are part of a matrix, or explain it.
    """

    matrices: tuple[TopoMatrix, ...]
    nic_names: dict[str, str]
    remarks: tuple[tuple[int, str], ...]
    renamed: tuple[int, str, str, str] | None = None  # a NIC with two names: line, label, both names
    read: frozenset[int] = frozenset()
    legend: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Block:
    head: Head | None
    asked_pcie: bool | None = None  # None: no command above it
    rows: list[Line] = field(default_factory=list)
    legend: set[str] = field(default_factory=set)
    has_legend: bool = False


@functools.lru_cache(maxsize=1)  # a text is first detected and then parsed
def parse(text: str) -> Reading:
    """Find the matrices of a text. Raises nothing; a text without a matrix has an empty list of them."""
    blocks: list[_Block] = []
    names: dict[str, str] = {}
    renamed: tuple[int, str, str, str] | None = None
    remarks: list[tuple[int, str]] = []
    lines = read_lines(text)
    asked_pcie: bool | None = None
    understood: set[int] = set()
    explained: set[int] = set()
    for line in lines:
        shown = line.text.strip()
        if command := COMMAND.search(shown):
            asked_pcie = command[1] is not None
            understood.add(line.number)
            continue
        if not shown or _LEGEND.search(shown):
            explained.update((line.number, *line.more))
            if blocks and shown:
                blocks[-1].has_legend = True
                blocks[-1].legend |= set(_EXPLAINED.findall(shown))
            continue
        if legend := _NIC_LEGEND.search(shown):
            understood.add(line.number)
            if names.setdefault(legend[1], legend[2]) != legend[2]:
                renamed = renamed or (line.number, legend[1], names[legend[1]], legend[2])
        elif head := header_words(best_header(line)):
            blocks.append(_Block(head, asked_pcie))
            understood.update((line.number, *line.more))
        elif starts_row(line.text, blocks[-1].head if blocks else None):
            if not blocks:
                blocks.append(_Block(None, asked_pcie))
            blocks[-1].rows.append(line)
            understood.update((line.number, *line.more))
        elif _looks_like_data(shown):
            remarks.append((line.number, shown))
    has_peer_legend = _PEER_LEGEND.search(text) is not None
    last = None if not lines or text.endswith("\n") else lines[-1].number
    matrices = (_matrix(block, last) for block in blocks)
    return Reading(
        # A `topo -p2p` table looks the same but has cells such as OK and CNS.
        tuple(
            matrix
            for matrix in matrices
            for cells in [{cell for row in matrix.rows for cell in row.cells}]
            if not cells & PEER_STATUS and not (has_peer_legend and cells <= {"X"} and not matrix.affinity)
        ),
        names,
        tuple(remarks),
        renamed,
        frozenset(understood),
        frozenset(explained),
    )


def _matrix(block: _Block, last: int | None) -> TopoMatrix:
    if block.head is not None:
        columns, affinity = block.head
    else:
        starts = [(words, row_start(words, ())) for words in (words_of(line.text) for line in block.rows)]
        columns = tuple(label_of(words[start][0]) for words, start in starts if start is not None)
        affinity = ()
    rows = (_best_row(line, columns, affinity) for line in block.rows)
    complete = tuple(replace(row, may_be_cut=row.line == last) for row in rows if row is not None)
    has_nvlinks = any(cell.startswith("NV") for row in complete for cell in row.cells)
    is_pcie_only: bool | None = None
    if not has_nvlinks and (block.asked_pcie or block.legend == {"NODE"}):
        is_pcie_only = True
    elif has_nvlinks or block.has_legend or block.asked_pcie is False:
        is_pcie_only = False
    return TopoMatrix(columns, complete, affinity, is_pcie_only)


def _best_row(line: Line, columns: tuple[str, ...], affinity: tuple[Column, ...]) -> TopoRow | None:
    """Choose how a wrapped row's parts join: the way that leaves the fewest unknown words."""

    def strange(row: TopoRow) -> int:
        unknown = sum(1 for cell in row.cells if not CELL.fullmatch(cell))
        wrong = sum(1 for value in row.affinity.values() if value != "N/A" and parse_cpus(value) is None)
        wanted = len(affinity) if GPU.fullmatch(row.label) else 0
        short = abs(len(columns) - len(row.cells)) + abs(wanted - len(row.affinity))
        return unknown + wrong + short + len(row.rest) + 2 * row.more_cells + 2 * row.glued

    rows = [_row(line.number, text, columns, affinity) for text in line.variants()]
    return min((row for row in rows if row is not None), key=strange, default=None)


def _row(number: int, text: str, columns: tuple[str, ...], affinity: tuple[Column, ...]) -> TopoRow | None:
    words = words_of(text)
    start = row_start(words, columns)
    if start is None:
        return None
    cells: list[str] = []
    after = start + 1
    tail: list[str] = []
    glued = False
    while after < len(words) and len(cells) < len(columns) and may_be_cell(words[after][0]):
        word = words[after][0]
        after += 1
        stuck = _GLUED.fullmatch(word)
        if stuck and stuck[1] != "NV" and parse_cpus(stuck[2]) is not None and not CELL.fullmatch(word):
            # A cut cell and the next column form one word. Letters end where digits start; both are the
            # text's.
            cells.append(stuck[1])
            tail.append(stuck[2])
            glued = True
            break
        cells.append(word)
    end = words[after - 1].end()
    more = not tail and after < len(words) and CELL.fullmatch(words[after][0]) is not None
    tail += [word[0] for word in words[after:]]
    # nvidia-smi puts an extra tab after the NUMA affinity, whose title is wider than a tab stop.
    by_tab = enumerate(part.strip() for part in text[end:].split("\t")[1:])
    placed = {affinity[min(at, len(affinity) - 1)]: part for at, part in by_tab if part and affinity}
    assigned = _assigned(tail, affinity, placed)
    return TopoRow(
        label=label_of(words[start][0]),
        line=number,
        text=text.strip(),
        cells=tuple(cells),
        glued=glued,
        more_cells=more,
        affinity=assigned,
        rest=tuple((Counter(tail) - Counter(assigned.values())).elements()),
    )


def _assigned(tail: list[str], affinity: tuple[Column, ...], placed: dict[Column, str]) -> dict[Column, str]:
    """Return the word of each affinity column. If words are missing, use tabs, else what they can be."""
    if len(tail) >= len(affinity) > 0:
        return dict(zip(affinity, tail, strict=False))
    if not affinity:
        # There is no title, but nvidia-smi's first column after the devices has always been the CPU affinity.
        return {"cpu": tail[0]} if tail and re.search(r"\d[,-]\d", tail[0]) else {}
    if placed and sorted(placed.values()) == sorted(tail):
        return placed
    sure: dict[Column, str] = {}
    left = list(tail)
    if left and left[-1] == "N/A" and "gpu_numa" in affinity:
        sure["gpu_numa"] = left.pop()
    if len(left) == 1 and "cpu" in affinity and re.search(r"\d[,-]\d", left[0]):
        sure["cpu"] = left[0]
    return sure


def _looks_like_data(shown: str) -> bool:
    words = [label_of(word) for word in shown.split()]
    return any(
        GPU.fullmatch(w) or re.fullmatch(r"NIC\d+", w) or (w != "X" and CELL.fullmatch(w)) for w in words
    )
