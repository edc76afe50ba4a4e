"""The text of the CUDA samples' `p2pBandwidthLatencyTest`, whole or any part of it: text in, Machine out.

`p2p_tables` knows the path of each matrix's numbers.
"""

import re
from dataclasses import replace

from gputopo.captures.bandwidth import p2p_tables, runs
from gputopo.captures.bandwidth.matrix_rows import (
    MAX_US,
    Program,
    Read,
    devices,
    is_empty,
    plain,
    positive,
    row,
)
from gputopo.captures.bandwidth.p2p_tables import Found, Table, Version
from gputopo.captures.matching import Device
from gputopo.values.bandwidth import Kind

_FAILED = re.compile(r"^(?:Cuda failure|CUDA error at) \S*p2pBandwidthLatencyTest\S* .*$")
_DEVICE = re.compile(
    r"Device: (\d{1,4}), (.{1,120}?)(?:, pciBusID: ([0-9a-fA-F]{1,4}), pciDeviceID: ([0-9a-fA-F]{1,4})"
    r"(?:, pciDomainID: ?([0-9a-fA-F]{1,8}))?)?,?$",
    re.ASCII,
)
_ACCESS = re.compile(r"Device=(\d{1,4}) (CAN|CANNOT) Access Peer Device=(\d{1,4})$", re.ASCII)
_HEADING = re.compile(
    r"(?:P2P Connectivity Matrix"
    r"|(?P<ways>Uni|Bi)directional P2P.{0,40}?(?:Bandwidth|Matrix)|P2P ?=.{0,40}?Latency).{0,60}$",
    re.IGNORECASE,
)
# The headings up to CUDA 9; people who write their own leave out or add other words.
_OLDER = re.compile(
    r"Unidirectional P2P=Enabled Bandwidth Matrix \(GB/s\)$|P2P=Enabled Latency Matrix \(us\)$"
)
_CORNERS = ("D\\D", "GPU", "CPU")
_START = re.compile(r"\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]")
_CLIQUES = re.compile(r"^P2P Cliques:$")
_CLIQUE = re.compile(r"^\[\d{1,4}(?: \d{1,4})*\]$")
_PROSE = re.compile(
    r"\*\*\*NOTE: In case a device|falls back to normal"
    r"|So you can see lesser Bandwidth|NOTE: The CUDA Samples are not meant"
)
_MARKS = re.compile(
    r"p2pBandwidthLatencyTest|P2P Connectivity Matrix|P2P=(?:En|Dis)abled|^[^\w\n]{0,20}D\\D\s+0\b", re.M
)


def recognise(text: str) -> bool:
    """Return whether the text has a line that only this program prints."""
    return (
        _MARKS.search(text) is not None or re.search(r"CAN(?:NOT)? Access Peer Device=\d", text) is not None
    )


def read(text: str, *, origin: str) -> Read:
    """Read devices, access and all matrices, with the numbers of the lines that were understood.

    Raises InputError where one device is listed twice with different values, or runs list different GPUs.
    """
    return runs.read(text, _scan, p2p_tables.SOURCE, origin=origin)


def _scan(text: str, above: Found | None) -> Found:
    """Return the content of one run; `above`: the one above it."""
    found = Found()
    version = Version()
    heading: Table | None = None
    table: Table | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = plain(raw)
        if opened := _heading(line, version):
            heading, table = opened, None
            heading.line = number
        elif opened := _opened(line, heading, version):
            table = opened
            table.line = table.line or number
            found.tables.append(table)
            found.cpu_latencies |= line.startswith("CPU")
            heading = heading if line.startswith("GPU") else None  # the CPU's side follows the GPU's
        elif table is None and heading is not None and (implied := _implied(line, heading)):
            table, heading = implied, None
            found.tables.append(table)
            if not _add_row(table, line, found):
                continue
        elif table is not None and _add_row(table, line, found):
            pass
        elif _START.search(line):
            version, table, heading = Version(started=True), None, None
        elif _CLIQUES.match(line):
            version.cliques = True
        elif version.cliques and _CLIQUE.match(line):
            pass
        elif failed := _FAILED.match(line):
            found.error, table, heading = failed[0][:160], None, None
        elif not (_add_device(found, line, number) or _PROSE.search(line)):
            if line and not line.strip("."):  # something was left out
                table = heading = None
            elif line and row(line) is None and table is not None:
                table.interrupted = True
            continue
        found.understood.add(number)
    if above is not None:
        found.complete_from(above)
    return found


def _heading(line: str, version: Version) -> Table | None:
    """Return the table that a heading announces; its wording shows the version."""
    match = _HEADING.search(line)
    if match is None or row(line) is not None:
        return None
    low = match[0].lower()
    if "connectivity" in low:
        return Table(None, version, connectivity=True)
    version.newer |= re.search(r"\(P2P (?:Writes|Reads)\)", line) is not None
    version.older |= _OLDER.search(line) is not None
    enabled = re.search(r"p2p\W{0,3}disabled", low) is None  # "(ACS disabled)" may stand behind it
    reads = re.search(r"\breads?\b", low) is not None
    state = f"P2P={'Enabled' if enabled else 'Disabled'}{' (P2P Reads)' if reads else ''}"
    if match["ways"] is None:
        return Table("latency", version, enabled, reads, f"Latency {state}")
    if match["ways"].lower() == "bi":
        return Table("bidirectional", version, enabled, reads, f"Bidirectional {state}")
    return Table("p2p_direct", version, enabled, reads, f"Unidirectional {state}")


def _opened(line: str, heading: Table | None, version: Version) -> Table | None:
    """Return the table that a header line begins, of the kind that the heading above it names."""
    corner, *words = line.split() or [""]
    columns = devices(words)
    if corner not in _CORNERS or columns is None:
        return None
    version.newer |= corner != "D\\D"
    if heading is None:
        kind: Kind | None = "latency" if corner == "GPU" else None if corner == "CPU" else "p2p_direct"
        return Table(kind, version, label="no heading", columns=columns)
    return _table(heading, None if corner == "CPU" else heading.kind, columns)


def _implied(line: str, heading: Table) -> Table | None:
    """Return the table of a row that follows its heading at once: the line of device numbers was lost."""
    first = row(line)
    if first is None or first[0] != 0:
        return None
    return _table(heading, heading.kind, tuple(range(len(first[1]))))


def _table(heading: Table, kind: Kind | None, columns: tuple[int, ...]) -> Table:
    return replace(heading, kind=kind, columns=columns, cells={}, rows=set())


def _add_row(table: Table, line: str, found: Found) -> bool:
    """Add a row's cells; False where it is no row, not of this table, or holds what is no reading."""
    cells = row(line)
    if cells is None:
        return False
    index, words = cells
    if index not in table.columns or index in table.rows or len(words) != len(table.columns):
        return False
    if table.interrupted and not _follows(table, index, words):
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
        value = positive(word, MAX_US) if table.kind in ("latency", None) else positive(word)
        if value is not None:
            table.cells[index, column] = value
        elif not is_empty(word):
            whole = False
    return whole


def _follows(table: Table, index: int, words: list[str]) -> bool:
    """Return whether a row below other lines can be of a matrix: a later one, and all cells of its form."""
    later = index > max(table.rows, default=-1)
    if table.connectivity:
        return later and set(words) <= {"0", "1"}
    return later and all("." in word or is_empty(word) for word in words)


def _add_device(found: Found, line: str, number: int) -> bool:
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
        found.conflict = f"device {match[1]} twice with different values (line {number})"
    found.listed.append((number, ("device", match[1])))
    return True


PROGRAM = Program(recognise, read)
