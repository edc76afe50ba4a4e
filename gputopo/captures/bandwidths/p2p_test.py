"""The text of the CUDA samples' `p2pBandwidthLatencyTest`, whole or any part of it: text in, Machine out.

The row of a cell is the source and its column the destination; of the "P2P Reads" matrices it is the other
way round, since there the row's GPU fetches. With P2P=Enabled a pair without access falls back to copies
through the host, so it is staged like those of P2P=Disabled. The diagonal is a copy within one GPU, every
byte read and written, and its `group` tells from which matrix it is. Of latencies the GPU's are taken.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gputopo.bandwidth import Bandwidth, Kind, NotMeasured, Path, Sample
from gputopo.captures import peer_links, places
from gputopo.captures.bandwidths.matrix_rows import MOST_US, devices, is_empty, plain, positive, row
from gputopo.captures.pasted_text import Read
from gputopo.captures.places import Device
from gputopo.errors import InputError
from gputopo.machine import Machine

SOURCE = "p2pBandwidthLatencyTest"

# Two directions of a pair together: more than one PCIe 5.0 x16 link carries one way (32 GT/s x 16 lanes,
# 128b/130b encoded).
_ONE_WAY_MOST_GB_PER_S = 64.0

_HINT = "copy the whole output of p2pBandwidthLatencyTest again"
_FAILED = re.compile(r"^(?:Cuda failure|CUDA error at) \S*p2pBandwidthLatencyTest\S* .*$")
_OTHERS = re.compile(r"\[CUDA Bandwidth Test\]|nvbandwidth Version:")
_DEVICE = re.compile(
    r"Device: (\d{1,4}), (.{1,120}?)(?:, pciBusID: ([0-9a-fA-F]{1,4}), pciDeviceID: ([0-9a-fA-F]{1,4})"
    r"(?:, pciDomainID: ?([0-9a-fA-F]{1,8}))?)?,?$",
    re.ASCII,
)
_ACCESS = re.compile(r"Device=(\d{1,4}) (CAN|CANNOT) Access Peer Device=(\d{1,4})$", re.ASCII)
_HEADING = re.compile(
    r"(?:P2P Connectivity Matrix"
    r"|(?P<ways>Uni|Bi)directional P2P.{0,40}?Bandwidth|P2P ?=.{0,40}?Latency).{0,60}$",
    re.IGNORECASE,
)
_CORNERS = ("D\\D", "GPU", "CPU")
_PROSE = re.compile(
    r"\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]|\*\*\*NOTE: In case a device|falls back to normal"
    r"|So you can see lesser Bandwidth|NOTE: The CUDA Samples are not meant"
)
_MARKS = re.compile(
    r"p2pBandwidthLatencyTest|P2P Connectivity Matrix|P2P=(?:En|Dis)abled|^[^\w\n]{0,20}D\\D\s+0\b", re.M
)


@dataclass(slots=True)
class _Table:
    """One matrix. `enabled` None: no heading told it. `reads`: the row's GPU fetches."""

    kind: Kind | None  # None: connectivity, or the CPU's side of a latency matrix
    enabled: bool | None = None
    reads: bool = False
    label: str = ""
    connectivity: bool = False
    columns: tuple[int, ...] = ()
    cells: dict[tuple[int, int], float] = field(default_factory=dict)
    rows: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Found:
    devices: dict[int, Device] = field(default_factory=dict)
    access: dict[tuple[int, int], set[bool]] = field(default_factory=dict)
    tables: list[_Table] = field(default_factory=list)
    cpu_latencies: bool = False
    error: str | None = None  # with which the program ended


def recognise(text: str) -> bool:
    """Tell whether the text has a line that only this program prints."""
    return (
        _MARKS.search(text) is not None or re.search(r"CAN(?:NOT)? Access Peer Device=\d", text) is not None
    )


def read(text: str, *, origin: str) -> Read:
    """Read devices, access and all matrices, and tell which lines were understood.

    Raises InputError where one device is told differently twice, and where all that it tells is an error.
    """
    found = _Found()
    understood: set[int] = set()
    heading: _Table | None = None
    table: _Table | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = plain(raw)
        if told := _heading(line):
            heading, table = told, None
        elif opened := _opened(line, heading):
            table = opened
            found.tables.append(table)
            found.cpu_latencies |= line.startswith("CPU")
            heading = heading if line.startswith("GPU") else None  # the CPU's side follows the GPU's
        elif table is None and heading is not None and (implied := _implied(line, heading)):
            table = implied
            found.tables.append(table)
            if not _add_row(table, line, found):
                continue
        elif table is not None and _add_row(table, line, found):
            pass
        elif failed := _FAILED.match(line):
            found.error, table, heading = failed[0][:160], None, None
        elif not (_add_device(found, line, number, origin) or _PROSE.search(line)):
            if line and row(line) is None:
                table, heading = None, heading if line.strip(".") else None  # "...": something was left out
            continue
        understood.add(number)
    if found.error and not (found.tables or found.access or _OTHERS.search(text)):
        raise InputError(
            f"{origin} is an error text of {SOURCE}: {found.error}",
            "make CUDA programs work first (gputopo inspect tells what is in the way), then capture again",
        )
    return Read(_machine(found), frozenset(understood))


def _heading(line: str) -> _Table | None:
    match = _HEADING.search(line)
    if match is None or row(line) is not None:
        return None
    low = match[0].lower()
    if "connectivity" in low:
        return _Table(None, connectivity=True)
    enabled = "disabled" not in low
    reads = re.search(r"\breads?\b", low) is not None
    state = f"P2P={'Enabled' if enabled else 'Disabled'}{' (P2P Reads)' if reads else ''}"
    if match["ways"] is None:
        return _Table("latency", enabled, reads, f"Latency {state}")
    if match["ways"].lower() == "bi":
        return _Table("bidirectional", enabled, reads, f"Bidirectional {state}")
    return _Table("p2p_direct", enabled, reads, f"Unidirectional {state}")


def _opened(line: str, heading: _Table | None) -> _Table | None:
    """Give the table that a header line begins, of the kind that the heading above it tells."""
    corner, *words = line.split() or [""]
    columns = devices(words)
    if corner not in _CORNERS or columns is None:
        return None
    if heading is None:
        return _Table(
            "latency" if corner == "GPU" else None if corner == "CPU" else "p2p_direct",
            None,
            False,
            "no heading",
            columns=columns,
        )
    kind = None if corner == "CPU" else heading.kind
    return _Table(kind, heading.enabled, heading.reads, heading.label, heading.connectivity, columns)


def _implied(line: str, heading: _Table) -> _Table | None:
    """Give the table of a row that follows its heading at once: the line of device numbers was lost."""
    first = row(line)
    if first is None or first[0] != 0:
        return None
    columns = tuple(range(len(first[1])))
    return _Table(heading.kind, heading.enabled, heading.reads, heading.label, heading.connectivity, columns)


def _add_row(table: _Table, line: str, found: _Found) -> bool:
    """Add a row's cells; False where it is no row, not of this table, or holds what is no reading."""
    told = row(line)
    if told is None:
        return False
    index, words = told
    if index not in table.columns or index in table.rows or len(words) != len(table.columns):
        return False
    if table.connectivity:
        if not set(words) <= {"0", "1"}:
            return False
        for column, word in zip(table.columns, words, strict=True):
            if column != index:
                found.access.setdefault((index, column), set()).add(word == "1")
        table.rows.add(index)
        return True
    if set(words) <= {"0", "1"}:  # a row of the connectivity matrix that has strayed: speeds have decimals
        return False
    whole = True
    table.rows.add(index)
    for column, word in zip(table.columns, words, strict=True):
        value = positive(word, MOST_US) if table.kind in ("latency", None) else positive(word)
        if value is not None:
            table.cells[index, column] = value
        elif not is_empty(word):
            whole = False
    return whole


def _add_device(found: _Found, line: str, number: int, origin: str) -> bool:
    if match := _ACCESS.search(line):
        if match[1] != match[3]:
            found.access.setdefault((int(match[1]), int(match[3])), set()).add(match[2] == "CAN")
        return True
    match = _DEVICE.search(line)
    if match is None:
        return False
    address = f"{match[5] or 0}:{match[3]}:{match[4]}.0" if match[3] else None
    device = Device(match[2].strip(), address)
    if found.devices.setdefault(int(match[1]), device) != device:
        raise InputError(f"{origin} tells device {match[1]} twice and differently (line {number})", _HINT)
    return True


def _machine(found: _Found) -> Machine:
    seen = {index for table in found.tables for index in (*table.columns, *table.rows)}
    seen |= {index for pair in found.access for index in pair}
    listed = {index: found.devices.get(index, Device()) for index in sorted(seen | set(found.devices))}
    gpus, index_of = places.gpus_in_pci_order(listed)
    access = {(index_of[a], index_of[b]): said for (a, b), said in found.access.items()}
    notes: list[str] = []
    samples = [s for table in found.tables for s in _samples(table, index_of, access, notes)]
    if found.cpu_latencies:
        notes.append(
            f"{SOURCE}'s CPU latencies (what a launch costs the host) are left out; the GPU's are here"
        )
    if any(index != number for number, index in index_of.items()):
        notes.append(f"{SOURCE} numbers the GPUs as CUDA does; here they are in PCI order, as NVML's are")
    links, missing, contradictions = peer_links.links(access, SOURCE)
    return Machine(
        source=SOURCE,
        gpus=gpus,
        links=links,
        bandwidth=Bandwidth(
            source=SOURCE,
            samples=tuple(samples),
            not_measured=tuple(_not_measured(found)),
            complete=found.error is None,
            notes=tuple(dict.fromkeys(notes)),
        ),
        missing=missing,
        contradictions=contradictions,
    )


def _not_measured(found: _Found) -> Iterator[NotMeasured]:
    if found.error:
        what = "what follows its last matrix" if found.tables else "the whole run"
        yield NotMeasured(what=f"{SOURCE}: {what}", reason=f"{SOURCE} says: {found.error}")


def _samples(
    table: _Table, index_of: dict[int, int], access: dict[tuple[int, int], set[bool]], notes: list[str]
) -> list[Sample]:
    if table.kind is None:
        return []
    kind = _kind_without_heading(table, notes) if table.enabled is None else table.kind
    return [
        _sample(kind, table, (index_of[here], index_of[there]), value, access, notes)
        for (here, there), value in table.cells.items()
    ]


def _sample(
    kind: Kind,
    table: _Table,
    cell: tuple[int, int],
    value: float,
    access: dict[tuple[int, int], set[bool]],
    notes: list[str],
) -> Sample:
    """Make one cell, row and column, a sample."""
    a, b = reversed(cell) if table.reads else cell
    path = None if a == b else _path(table, cell, access, notes)
    own: Kind = "d2d_local" if kind != "latency" else kind
    staged: Kind = "p2p_staged" if path == "staged" and kind == "p2p_direct" else kind
    return Sample(
        kind=own if a == b else staged,
        source=places.gpu(a),
        destination=places.gpu(b),
        method="driver",
        path=path if kind in ("bidirectional", "latency") else None,
        group=table.label if a == b else None,
        median_us=value if kind == "latency" else None,
        median_gb_per_s=None if kind == "latency" else value,
    )


def _path(
    table: _Table, pair: tuple[int, int], access: dict[tuple[int, int], set[bool]], notes: list[str]
) -> Path:
    if table.enabled is False:
        return "staged"
    can = access.get(pair)
    if can is None:
        notes.append(
            f"{SOURCE}: the text does not tell which GPUs can access one another; with P2P=Enabled all pairs "
            "are taken as direct"
        )
        return "direct"
    return "staged" if False in can else "direct"


def _kind_without_heading(table: _Table, notes: list[str]) -> Kind:
    """Say what a matrix without its heading holds: faster than any link one way, it is both ways together."""
    if table.kind == "latency":
        return "latency"
    between = [value for (a, b), value in table.cells.items() if a != b]
    both = bool(between) and min(between) > _ONE_WAY_MOST_GB_PER_S
    meant = "both directions together" if both else "one direction"
    notes.append(
        f"{SOURCE}: a matrix has lost its heading; it is taken as P2P=Enabled, {meant}, "
        f"since its pairs are {'above' if both else 'not above'} {_ONE_WAY_MOST_GB_PER_S:g} GB/s"
    )
    return "bidirectional" if both else "p2p_direct"
