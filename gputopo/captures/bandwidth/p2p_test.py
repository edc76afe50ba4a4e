"""The text of the CUDA samples' `p2pBandwidthLatencyTest`, whole or any part of it: text in, Machine out.

The row of a cell is the source and its column the destination. In the "P2P Reads" matrices it is reversed,
because the row's GPU fetches. It is also reversed in all matrices of the versions up to CUDA 9 (they call
`cudaMemcpyPeerAsync(buffers[row], row, buffers[column], column)`), which do not print "(P2P Writes)". With
P2P=Enabled a pair without access copies through the host instead, so it is staged like the pairs of
P2P=Disabled. The diagonal is a copy within one GPU, with every byte read and written, and its `group` is the
name of the matrix. Of the latencies, the GPU's are used.
"""

import re
from dataclasses import dataclass, field, replace

from gputopo.captures import matching
from gputopo.captures.bandwidth import runs, texts
from gputopo.captures.bandwidth.runs import Mark
from gputopo.captures.bandwidth.texts import (
    MAX_US,
    Program,
    ProgramRead,
    Results,
    devices,
    is_empty,
    plain,
    positive,
    row,
)
from gputopo.captures.matching import ListedGpu
from gputopo.values.bandwidth import Copied, CopiedKind, CopyLatency, CopyRate, CopyRateKind, Path
from gputopo.values.ends import End
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine

SOURCE = "p2pBandwidthLatencyTest"
_HINT = "copy the whole output of p2pBandwidthLatencyTest again"

# For both directions of a pair together: more than one PCIe 5.0 x16 link carries in one direction (32 GT/s x
# 16 lanes, 128b/130b encoded).
_MAX_ONE_DIRECTION_GB_PER_S = 64.0


_CPU_LATENCIES_NOTE = (
    f"{SOURCE}'s CPU latencies (the host's cost of a launch) are ignored; the GPU latencies are used"
)
_ACCESS_NOTE = (
    f"{SOURCE}: the text does not show which GPUs can access each other; with P2P=Enabled all "
    "pairs are taken as direct"
)
_UNKNOWN_VERSION_NOTE = (
    f"{SOURCE}: the text does not show which version printed it; its rows are taken as sources, as since "
    '"(P2P Writes)"; up to CUDA 9 the columns were'
)


@dataclass(slots=True)
class Version:
    """The version that printed a run, as far as its texts show it."""

    newer: bool = False  # has "(P2P Writes)", "(P2P Reads)" or latencies of GPU and CPU
    older: bool = False  # has the headings of CUDA 9 and earlier
    started: bool = False  # has its first line

    @property
    def row_sends(self) -> bool | None:
        """Whether the row's GPU is the source of a copy; None if unknown."""
        if self.newer:
            return True
        return False if self.older else None


@dataclass(slots=True)
class P2pMatrix:
    """One matrix; its heading is in `line`. `enabled`: None without one. `reads`: the row's GPU fetches."""

    kind: CopiedKind | None  # None: connectivity, or the CPU's part of a latency matrix
    version: Version
    enabled: bool | None = None
    reads: bool = False
    label: str = ""
    connectivity: bool = False
    columns: tuple[int, ...] = ()
    cells: dict[tuple[int, int], float] = field(default_factory=dict)
    rows: set[int] = field(default_factory=set)
    line: int = 0


@dataclass(slots=True)
class P2pOutput:
    """The content of one output. GPUs have CUDA's numbers."""

    devices: dict[int, ListedGpu] = field(default_factory=dict)
    access: dict[tuple[int, int], set[bool]] = field(default_factory=dict)
    tables: list[P2pMatrix] = field(default_factory=list)
    cpu_latencies: bool = False
    error: str | None = None  # that ended the program
    listed: list[Mark] = field(default_factory=list)  # each device in a list
    conflict: str | None = None  # between two lists of devices
    understood: set[int] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        """Whether the program did not fail and the last matrix has all its rows."""
        last = self.tables[-1] if self.tables else None
        return self.error is None and (last is None or len(last.rows) == len(last.columns))

    def measured(self) -> list[Mark]:
        """Return the matrices and listed devices, each with its line."""
        tables = [
            (table.line, (table.kind, table.label, table.connectivity))
            for table in self.tables
            if table.enabled is not None or table.connectivity
        ]
        return [*tables, *self.listed]

    def read(self, *, origin: str) -> ProgramRead:
        """Return the machine. Raises InputError if a device is listed twice with different values."""
        if self.conflict:
            raise InputError(f"{origin} lists {self.conflict}", _HINT)
        return ProgramRead(machine(self), frozenset(self.understood))

    def complete_from(self, above: "P2pOutput") -> None:
        """Add the GPUs and the version of the run above, if this run shows none."""
        if not self.devices:
            self.devices, self.access = dict(above.devices), self.access or dict(above.access)
        for table in self.tables[:1]:
            if not table.version.started and above.tables:
                table.version.newer |= above.tables[0].version.newer
                table.version.older |= above.tables[0].version.older


def machine(output: P2pOutput) -> Machine:
    """Return the machine, with its GPUs in PCI order if their addresses are known."""
    seen = {index for table in output.tables for index in (*table.columns, *table.rows)}
    seen |= {index for pair in output.access for index in pair}
    listed = {index: output.devices.get(index, ListedGpu()) for index in sorted(seen | set(output.devices))}
    gpus, index_of = matching.gpus_in_pci_order(listed)
    access = {(index_of[a], index_of[b]): said for (a, b), said in output.access.items()}
    results = Results(SOURCE, complete=output.complete)
    for table in output.tables:
        if table.kind is None:
            continue
        kind = _kind_without_heading(table, results.notes) if table.enabled is None else table.kind
        for (row_gpu, column_gpu), value in table.cells.items():
            cell = index_of[row_gpu], index_of[column_gpu]
            results.samples.append(_sample(kind, table, cell, value, access, results.notes))
    if output.cpu_latencies:
        results.notes[_CPU_LATENCIES_NOTE] = None
    results.notes |= texts.cuda_order_note(SOURCE, index_of)
    if output.error:
        what = "what follows its last matrix" if output.tables else "the whole run"
        results.skip(f"{SOURCE}: {what}", f"{SOURCE} reported: {output.error}")
    links, missing, contradictions = texts.access_links(access, SOURCE)
    return Machine(
        source=SOURCE,
        gpus=gpus,
        links=links,
        bandwidth=results.bandwidth(),
        missing=missing,
        contradictions=contradictions,
    )


def _sample(
    kind: CopiedKind,
    table: P2pMatrix,
    cell: tuple[int, int],
    value: float,
    access: dict[tuple[int, int], set[bool]],
    notes: dict[str, None],
) -> Copied:
    """Return a cell (row, column) as a sample."""
    a, b = cell
    if kind != "bidirectional":
        row_sends = False if table.reads else table.version.row_sends
        if row_sends is None and a != b:
            notes[_UNKNOWN_VERSION_NOTE] = None
        if row_sends is False:
            a, b = b, a
    path: Path | None = None
    if a != b:
        can = access.get(cell)
        path = "staged" if table.enabled is False or False in (can or ()) else "direct"
        if can is None and table.enabled is not False:
            notes[_ACCESS_NOTE] = None
    source, destination = End.of_gpus(a), End.of_gpus(b)
    group = table.label if a == b else None
    if kind == "latency":
        return CopyLatency(
            source=source, destination=destination, method="driver", path=path, group=group, median_us=value
        )
    staged: CopyRateKind = "p2p_staged" if path == "staged" and kind == "p2p_direct" else kind
    return CopyRate(
        kind="d2d_local" if a == b else staged,
        source=source,
        destination=destination,
        method="copy_engine_read" if table.reads and kind == "p2p_direct" else "driver",
        path=path if kind == "bidirectional" else None,
        group=group,
        median_gb_per_s=value,
    )


def _kind_without_heading(table: P2pMatrix, notes: dict[str, None]) -> CopiedKind:
    """Return the kind of a matrix without a heading: both directions if faster than any link in one."""
    if table.kind == "latency":
        return "latency"
    between = [value for (a, b), value in table.cells.items() if a != b]
    both = bool(between) and min(between) > _MAX_ONE_DIRECTION_GB_PER_S
    meant = "both directions together" if both else "one direction"
    note = (
        f"{SOURCE}: a matrix has lost its heading; it is taken as P2P=Enabled, {meant}, "
        f"since its pairs are {'above' if both else 'not above'} {_MAX_ONE_DIRECTION_GB_PER_S:g} GB/s"
    )
    notes[note] = None
    return "bidirectional" if both else "p2p_direct"


_FAILED = re.compile(r"^(?:Cuda failure|CUDA error at) \S*p2pBandwidthLatencyTest\S* .*$")
_DEVICE = re.compile(
    r"Device: (\d{1,4}), (.{1,120}?)(?:, pciBusID: ([0-9a-fA-F]{1,4}), pciDeviceID: ([0-9a-fA-F]{1,4})"
    r"(?:, pciDomainID: ?([0-9a-fA-F]{1,8}))?)?(?:, p[a-zA-Z]{0,11}(?:: ?[0-9a-fA-F]{0,8})?){0,3},?$",
    re.ASCII,
)
_ACCESS = re.compile(r"Device=(\d{1,4}) (CAN|CANNOT) Access Peer Device=(\d{1,4})$", re.ASCII)
_HEADING = re.compile(
    r"(?:P2P Connectivity Matrix"
    r"|(?P<ways>Uni|Bi)directional P2P.{0,40}?(?:Bandwidth|Matrix)|P2P ?=.{0,40}?Latency).{0,60}$",
    re.IGNORECASE,
)
# The headings up to CUDA 9; people who write their own headings omit or add words.
_OLDER = re.compile(
    r"Unidirectional P2P=Enabled Bandwidth Matrix \(GB/s\)$|P2P=Enabled Latency Matrix \(us\)$"
)
_CORNERS = ("D\\D", "GPU", "CPU")
_START = re.compile(r"\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]")
_PROSE = re.compile(
    r"\*\*\*NOTE: In case a device|falls back to normal"
    r"|So you can see lesser Bandwidth|NOTE: The CUDA Samples are not meant"
)
_MARKS = re.compile(
    r"p2pBandwidthLatencyTest|P2P Connectivity Matrix|P2P=(?:En|Dis)abled|^[^\w\n]{0,20}D\\D\s+0\b", re.M
)


def detect(text: str) -> bool:
    """Return whether the text has a line that only this program prints."""
    return (
        _MARKS.search(text) is not None or re.search(r"CAN(?:NOT)? Access Peer Device=\d", text) is not None
    )


def read(text: str, *, origin: str) -> ProgramRead:
    """Read devices, access and all matrices, with the numbers of the lines that were understood.

    Raises InputError if a device is listed twice with different values, or if runs list different GPUs.
    """
    return runs.read(text, _scan, SOURCE, origin=origin)


def _scan(text: str, above: P2pOutput | None) -> P2pOutput:
    """Return the content of one run; `above`: the run above it."""
    output = P2pOutput()
    version = Version()
    heading: P2pMatrix | None = None
    table: P2pMatrix | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = plain(raw)
        if opened := _heading(line, version):
            heading, table = opened, None
            heading.line = number
        elif opened := _opened(line, heading, version):
            table = opened
            table.line = table.line or number
            output.tables.append(table)
            output.cpu_latencies |= line.startswith("CPU")
            heading = heading if line.startswith("GPU") else None  # the CPU's part follows the GPU's
        elif table is not None and _add_row(table, line, output):
            pass
        elif _START.search(line):
            version, table, heading = Version(started=True), None, None
        elif failed := _FAILED.match(line):
            output.error, table, heading = failed[0][:160], None, None
        elif not (_add_device(output, line, number) or _PROSE.search(line)):
            if line and not line.strip("."):  # lines were omitted here
                table = heading = None
            continue
        output.understood.add(number)
    if above is not None:
        output.complete_from(above)
    return output


def _heading(line: str, version: Version) -> P2pMatrix | None:
    """Return the table that a heading announces; the heading also shows the version."""
    match = _HEADING.search(line)
    if match is None or row(line) is not None:
        return None
    low = match[0].lower()
    if "connectivity" in low:
        return P2pMatrix(None, version, connectivity=True)
    version.newer |= re.search(r"\(P2P (?:Writes|Reads)\)", line) is not None
    version.older |= _OLDER.search(line) is not None
    enabled = re.search(r"p2p\W{0,3}disabled", low) is None  # "(ACS disabled)" may follow
    reads = re.search(r"\breads?\b", low) is not None
    state = f"P2P={'Enabled' if enabled else 'Disabled'}{' (P2P Reads)' if reads else ''}"
    if match["ways"] is None:
        return P2pMatrix("latency", version, enabled, reads, f"Latency {state}")
    if match["ways"].lower() == "bi":
        return P2pMatrix("bidirectional", version, enabled, reads, f"Bidirectional {state}")
    return P2pMatrix("p2p_direct", version, enabled, reads, f"Unidirectional {state}")


def _opened(line: str, heading: P2pMatrix | None, version: Version) -> P2pMatrix | None:
    """Return the table that a header line starts, of the kind in the heading above it."""
    corner, *words = line.split() or [""]
    columns = devices(words)
    if corner not in _CORNERS or columns is None:
        return None
    version.newer |= corner != "D\\D"
    if heading is None:
        kind: CopiedKind | None = "latency" if corner == "GPU" else None if corner == "CPU" else "p2p_direct"
        return P2pMatrix(kind, version, label="no heading", columns=columns)
    kind = None if corner == "CPU" else heading.kind
    return replace(heading, kind=kind, columns=columns, cells={}, rows=set())


def _add_row(table: P2pMatrix, line: str, output: P2pOutput) -> bool:
    """Add a row's cells. Returns False if it is not a row of this table, or a cell is not a number."""
    cells = row(line)
    if cells is None:
        return False
    index, words = cells
    if index not in table.columns or index in table.rows or len(words) != len(table.columns):
        return False
    if table.connectivity:
        if not set(words) <= {"0", "1"}:
            return False
        for column, word in zip(table.columns, words, strict=True):
            if column != index:
                output.access.setdefault((index, column), set()).add(word == "1")
        table.rows.add(index)
        return True
    if set(words) <= {"0", "1"}:  # a misplaced row of the connectivity matrix: speeds have decimals
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


def _add_device(output: P2pOutput, line: str, number: int) -> bool:
    if match := _ACCESS.search(line):
        if match[1] != match[3]:
            output.access.setdefault((int(match[1]), int(match[3])), set()).add(match[2] == "CAN")
        return True
    match = _DEVICE.search(line)
    if match is None:
        return False
    address = f"{match[5] or 0}:{match[3]}:{match[4]}.0" if match[3] else None
    device = ListedGpu(match[2].strip(), address)
    if output.devices.setdefault(int(match[1]), device) != device:
        output.conflict = f"device {match[1]} twice with different values (line {number})"
    output.listed.append((number, ("device", match[1])))
    return True


PROGRAM = Program(detect, read)
