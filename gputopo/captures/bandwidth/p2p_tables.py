"""The output of `p2pBandwidthLatencyTest` as a machine: which path each cell of its matrices is of.

The row of a cell is the source and its column the destination; of the "P2P Reads" matrices it is the other
way round, since there the row's GPU fetches. So it is in all matrices of the versions up to CUDA 9 (they call
`cudaMemcpyPeerAsync(buffers[row], row, buffers[column], column)`), which do not print "(P2P Writes)". With
P2P=Enabled a pair without access falls back to copies through the host, so it is staged like those of
P2P=Disabled. The diagonal is a copy within one GPU, every byte read and written, and its `group` names the
matrix; up to CUDA 7 its bytes were counted once. Of latencies the GPU's are taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gputopo.captures import matching
from gputopo.captures.bandwidth import peer_links
from gputopo.captures.bandwidth.matrix_rows import Read
from gputopo.captures.bandwidth.runs import Mark
from gputopo.captures.matching import Device
from gputopo.values.bandwidth import Bandwidth, Kind, NotMeasured, Path, Sample
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine

SOURCE = "p2pBandwidthLatencyTest"
_HINT = "copy the whole output of p2pBandwidthLatencyTest again"

# Two directions of a pair together: more than one PCIe 5.0 x16 link carries one way (32 GT/s x 16 lanes,
# 128b/130b encoded).
_MAX_ONE_DIRECTION_GB_PER_S = 64.0


_DOUBLED_NOTE = (
    f"{SOURCE} up to CUDA 7 (it lists P2P cliques) counts the bytes of a copy within one GPU once; here they "
    "count as read and written"
)
_UNKNOWN_VERSION_NOTE = (
    f"{SOURCE}: the text does not show which version printed it; its rows are taken as sources, as since "
    '"(P2P Writes)"; up to CUDA 9 the columns were'
)


@dataclass(slots=True)
class Version:
    """The version that printed a run, as far as the wording shows it.

    `started`: its first line is there; `newer`: with "(P2P Writes)", "(P2P Reads)" or latencies of GPU and
    CPU; `older`: the headings of CUDA 9 and before; `cliques`: of CUDA 7 and before, P2P cliques instead of
    the connectivity matrix.
    """

    newer: bool = False
    older: bool = False
    cliques: bool = False
    started: bool = False

    @property
    def row_sends(self) -> bool | None:
        """Whether the row's GPU is the source of a copy; None: unknown."""
        if self.newer:
            return True
        return False if self.older or self.cliques else None


@dataclass(slots=True)
class Table:
    """One matrix, its heading in `line`. `enabled` None: no heading. `reads`: the row's GPU fetches."""

    kind: Kind | None  # None: connectivity, or the CPU's side of a latency matrix
    version: Version
    enabled: bool | None = None
    reads: bool = False
    label: str = ""
    connectivity: bool = False
    columns: tuple[int, ...] = ()
    cells: dict[tuple[int, int], float] = field(default_factory=dict)
    rows: set[int] = field(default_factory=set)
    line: int = 0
    interrupted: bool = False  # by a line that is none of its rows


@dataclass(slots=True)
class Found:
    """The content of one output. CUDA's numbers of the GPUs throughout."""

    devices: dict[int, Device] = field(default_factory=dict)
    access: dict[tuple[int, int], set[bool]] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    cpu_latencies: bool = False
    error: str | None = None  # with which the program ended
    listed: list[Mark] = field(default_factory=list)  # each device in a list
    conflict: str | None = None  # of two lists of devices
    understood: set[int] = field(default_factory=set)

    @property
    def complete(self) -> bool:
        """Whether the program came to its end, and the last matrix of the text to its last row."""
        last = self.tables[-1] if self.tables else None
        return self.error is None and (last is None or len(last.rows) == len(last.columns))

    def measured(self) -> list[Mark]:
        """Return the matrices and the devices in lists, each with its line."""
        tables = [
            (table.line, (table.kind, table.label, table.connectivity))
            for table in self.tables
            if table.enabled is not None or table.connectivity
        ]
        return [*tables, *self.listed]

    def read(self, *, origin: str) -> Read:
        """Return the machine. Raises InputError where one device is listed twice with different values."""
        if self.conflict:
            raise InputError(f"{origin} lists {self.conflict}", _HINT)
        return Read(machine(self), frozenset(self.understood))

    def complete_from(self, above: "Found") -> None:
        """Take the GPUs and the version of the run above, where this one shows none."""
        if not self.devices:
            self.devices, self.access = dict(above.devices), self.access or dict(above.access)
        for table in self.tables[:1]:
            if not table.version.started and above.tables:
                table.version.newer |= above.tables[0].version.newer
                table.version.older |= above.tables[0].version.older


def machine(found: Found) -> Machine:
    """Return the machine, its GPUs in PCI order where their addresses are known."""
    seen = {index for table in found.tables for index in (*table.columns, *table.rows)}
    seen |= {index for pair in found.access for index in pair}
    listed = {index: found.devices.get(index, Device()) for index in sorted(seen | set(found.devices))}
    gpus, index_of = matching.gpus_in_pci_order(listed)
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
            complete=found.complete,
            notes=tuple(dict.fromkeys(notes)),
        ),
        missing=missing,
        contradictions=contradictions,
    )


def _not_measured(found: Found) -> Iterator[NotMeasured]:
    if found.error:
        what = "what follows its last matrix" if found.tables else "the whole run"
        yield NotMeasured(what=f"{SOURCE}: {what}", reason=f"{SOURCE} reported: {found.error}")


def _samples(
    table: Table, index_of: dict[int, int], access: dict[tuple[int, int], set[bool]], notes: list[str]
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
    table: Table,
    cell: tuple[int, int],
    value: float,
    access: dict[tuple[int, int], set[bool]],
    notes: list[str],
) -> Sample:
    """Make one cell, row and column, a sample."""
    a, b = cell if kind == "bidirectional" or _row_sends(table, cell, notes) else reversed(cell)
    path = None if a == b else _path(table, cell, access, notes)
    if a == b and kind != "latency" and table.version.cliques:
        notes.append(_DOUBLED_NOTE)
        value *= 2
    own: Kind = "d2d_local" if kind != "latency" else kind
    staged: Kind = "p2p_staged" if path == "staged" and kind == "p2p_direct" else kind
    return Sample(
        kind=own if a == b else staged,
        source=matching.gpu_place(a),
        destination=matching.gpu_place(b),
        method="driver",
        path=path if kind in ("bidirectional", "latency") else None,
        group=table.label if a == b else None,
        median_us=value if kind == "latency" else None,
        median_gb_per_s=None if kind == "latency" else value,
    )


def _row_sends(table: Table, cell: tuple[int, int], notes: list[str]) -> bool:
    """Return whether the row's GPU is the source of the copies of a cell."""
    if table.reads:
        return False
    known = table.version.row_sends
    if known is None and cell[0] != cell[1]:
        notes.append(_UNKNOWN_VERSION_NOTE)
    return known is not False


def _path(
    table: Table, pair: tuple[int, int], access: dict[tuple[int, int], set[bool]], notes: list[str]
) -> Path:
    if table.enabled is False:
        return "staged"
    can = access.get(pair)
    if can is None:
        notes.append(
            f"{SOURCE}: the text does not show which GPUs can access one another; with P2P=Enabled all pairs "
            "are taken as direct"
        )
        return "direct"
    return "staged" if False in can else "direct"


def _kind_without_heading(table: Table, notes: list[str]) -> Kind:
    """Return the kind of a matrix without a heading: above any link's rate it is both directions together."""
    if table.kind == "latency":
        return "latency"
    between = [value for (a, b), value in table.cells.items() if a != b]
    both = bool(between) and min(between) > _MAX_ONE_DIRECTION_GB_PER_S
    meant = "both directions together" if both else "one direction"
    notes.append(
        f"{SOURCE}: a matrix has lost its heading; it is taken as P2P=Enabled, {meant}, "
        f"since its pairs are {'above' if both else 'not above'} {_MAX_ONE_DIRECTION_GB_PER_S:g} GB/s"
    )
    return "bidirectional" if both else "p2p_direct"
