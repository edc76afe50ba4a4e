"""`nvidia-smi topo -p2p r|w|rw|n|a|p`: text in, Machine out.

Only the command line above a table shows the table's capability. The cells of `r` are p2p_read, the cells of
`w` p2p_write. Without a command line they are used as both, and `missing` says that this is not certain. The
tables of NVLink, atomics and proprietary P2P have no place in a Machine: they are Unread.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from gputopo.captures.bandwidth.texts import peer_links
from gputopo.captures.ledger import Claims, Format, by_line
from gputopo.captures.smi.topo_lines import GPU, PEER_STATUS, Head, cells_below, header_words, label_of
from gputopo.values.errors import InputError
from gputopo.values.facts import EVERY, at_link
from gputopo.values.machine import Gpu, Machine, Unread

SOURCE = "nvidia-smi topo -p2p"

_HINT = "copy the whole output of `nvidia-smi topo -p2p r` again, header and all rows"
# The words of the legend, with NVML's names for them (nvmlGpuP2PStatus_t).
_STATUS = {
    "OK": "OK",
    "CNS": "CHIPSET_NOT_SUPPORTED",
    "GNS": "GPU_NOT_SUPPORTED",
    "TNS": "TOPOLOGY_NOT_SUPPORTED",
    "DR": "DISABLED_BY_REGKEY",
    "NS": "NOT_SUPPORTED",
    "U": "UNKNOWN",
}
_COMMAND = re.compile(r"\btopo\s+(?:-p2p|--p2p_status)[ =]*\"?([rwnap]{1,2})\b")
_PEER_LEGEND = re.compile(r"^[^\w\n]*(?:OK|CNS|GNS|TNS)\s*=\s", re.MULTILINE)
_LEGEND = re.compile(r"\W*(?:Legend:|(?:X|OK|CNS|GNS|TNS|NS|DR|U|NV#|CNS)\s*=\s)")
_CAPABILITY_UNKNOWN = "capability not shown in the text; taken as read and write"

Direction = Literal["p2p_read", "p2p_write"]
_DIRECTIONS: Mapping[str, Direction] = {"r": "p2p_read", "w": "p2p_write"}  # of `topo -p2p r`


@dataclass(slots=True)
class _Table:
    columns: tuple[str, ...]
    capability: str | None  # r, w, rw, n, a, p; None: not known
    line: int
    rows: dict[str, tuple[int, list[str]]]


def detect(text: str) -> bool:
    """Return whether the text has a row of such cells, or a single GPU's row with their legend."""
    if re.search(r"GPU\d", text) is None:
        return False
    tables = _tables(text)
    cells = {cell for table in tables for _, row in table.rows.values() for cell in row}
    said = _PEER_LEGEND.search(text) is not None or any(table.capability for table in tables)
    return bool(cells & PEER_STATUS) or (said and bool(tables))


def begins(lines: Sequence[str]) -> bool:
    """Return whether a line is the command, or a header with a row of such cells below it."""
    return _COMMAND.search(lines[0]) is not None or cells_below(lines) == "statuses"


def claims(text: str) -> Claims:
    """Return the lines of the tables and their legends."""
    tables = _tables(text)
    lines = {line for table in tables for line in (table.line, *(line for line, _ in table.rows.values()))}
    legend = by_line(text, _COMMAND.search, _LEGEND.match)
    return Claims(legend.read | lines, legend.known - lines)


def parse(text: str, *, origin: str) -> Machine:
    """Read the matrices of a text: one, or one for reads and one for writes.

    Raises InputError if rows and columns do not match.
    """
    tables = [table for table in _tables(text) if table.rows]
    if not tables:
        raise InputError(f"{origin}: there is no `nvidia-smi topo -p2p` matrix in it", _HINT)
    columns = tables[0].columns
    statuses: dict[tuple[str, int, int], set[str]] = {}
    unread: list[Unread] = []
    missing: dict[str, str] = {}
    for table in tables:
        _check(table, columns, origin)
        letters = table.capability or "rw"  # both, unless the text shows the capability
        directions = [direction for letter, direction in _DIRECTIONS.items() if letter in letters]
        for label, (line, cells) in table.rows.items():
            if not directions:
                said = f"{label}: {' '.join(cells)} (topo -p2p {table.capability})"
                unread.append(Unread(source=SOURCE, line=line, text=said))
            for direction, (column, cell) in product(directions, zip(columns, cells, strict=True)):
                if cell != "X":
                    key = direction, int(label[3:]), int(column[3:])
                    statuses.setdefault(key, set()).add(_STATUS[cell])
        if table.capability is None and len(columns) > 1:
            missing |= {at_link(EVERY, fact=fact): _CAPABILITY_UNKNOWN for fact in ("p2p_read", "p2p_write")}
    gpus = tuple(Gpu(index=index) for index in sorted(int(label[3:]) for label in columns))
    links, unclear, contradictions = peer_links(statuses, SOURCE)
    return Machine(
        source=SOURCE,
        gpus=gpus,
        links=links,
        missing=missing | unclear,
        contradictions=contradictions,
        unread=tuple(unread),
    )


def _tables(text: str) -> list[_Table]:
    tables: list[_Table] = []
    capability: str | None = None
    for number, shown in enumerate(text.splitlines(), 1):
        if "GPU" not in shown and "topo" not in shown:
            continue
        line = shown.replace("|", " ")
        if command := _COMMAND.search(line):
            capability = command[1]
        head: Head | None = header_words(line)
        if head is not None:
            tables.append(_Table(head[0], capability, number, {}))
            capability = None
            continue
        words = line.split()
        label = label_of(words[0]) if words else ""
        if tables and GPU.fullmatch(label):
            row = (number, words[1:])
            # A second row with the same name is stored under another name, so that the check finds it.
            tables[-1].rows[label if label not in tables[-1].rows else f"{label} (again)"] = row
    return tables


def _check(table: _Table, columns: tuple[str, ...], origin: str) -> None:
    """Raise InputError if rows and columns do not match, or X is not on the diagonal."""
    are_gpus = table.columns == columns and all(map(GPU.fullmatch, columns))
    if not are_gpus or sorted(table.rows) != sorted(columns):
        raise InputError(f"{origin}: rows and header (line {table.line}) list different GPUs", _HINT)
    for label, (line, cells) in table.rows.items():
        on_diagonal = [column == label for column in columns]
        if [cell == "X" for cell in cells] != on_diagonal or not {*cells} <= {"X", *_STATUS}:
            shown = " ".join(cells)[:60]
            raise InputError(f"{origin}: the row of {label} (line {line}) cannot be {shown}", _HINT)


FORMAT = Format(
    "`nvidia-smi topo -p2p` text",
    "peer access and why it is refused",
    detect,
    parse,
    begins=begins,
    claims=claims,
)
