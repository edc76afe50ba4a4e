"""A Machine as the CUDA samples' `p2pBandwidthLatencyTest` of each era prints it.

Up to CUDA 9, a cell is a copy from the column's GPU into the row's GPU
(`cudaMemcpyPeerAsync(buffers[i], i, buffers[j], j)`). Later versions copy out of the row's GPU and print
"(P2P Writes)". A copy within one GPU counts its bytes as read and written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gputopo.values.bandwidth import Copied, CopiedKind, CopyLatency, CopyRate, Path
from gputopo.values.ends import End
from gputopo.values.machine import Gpu, Machine
from tests.kit.dialects import measured

SOURCE = "p2pBandwidthLatencyTest"

Rows = Sequence[Sequence[float | None]]  # None: no number


@dataclass(frozen=True, slots=True)
class Era:
    """The output and measurement of the program in some CUDA versions."""

    writes: bool  # copies out of the row's GPU, has "(P2P Writes)" and latencies of the CPU


ERAS = {
    "CUDA 9": Era(writes=False),
    "CUDA 12": Era(writes=True),
}


@dataclass(frozen=True, slots=True)
class _Table:
    heading: str
    what: str  # Unidirectional, Bidirectional, Latency
    enabled: bool
    row_sends: bool = True


def _tables(era: Era) -> list[_Table]:
    writes = " (P2P Writes)" if era.writes else ""
    one, both = (
        "Unidirectional P2P={} Bandwidth{} Matrix (GB/s)",
        "Bidirectional P2P={} Bandwidth Matrix (GB/s)",
    )
    late = "P2P={} Latency{} Matrix (us)"
    return [
        _Table(one.format("Disabled", ""), "Unidirectional", False, era.writes),
        _Table(one.format("Enabled", writes), "Unidirectional", True, era.writes),
        _Table(both.format("Disabled"), "Bidirectional", False),
        _Table(both.format("Enabled"), "Bidirectional", True),
        _Table(late.format("Disabled", ""), "Latency", False, era.writes),
        _Table(late.format("Enabled", writes), "Latency", True, era.writes),
    ]


def _blank(machine: Machine, table: _Table, row: Gpu, column: Gpu) -> Copied:
    """Return the sample that a cell would have, without its number."""
    source, destination = (row, column) if table.row_sends else (column, row)
    direct = table.enabled and measured.has_access(machine, row, column)
    path: Path | None = "direct" if direct else "staged"
    group = None
    kind: CopiedKind = "latency" if table.what == "Latency" else "bidirectional"
    if table.what == "Unidirectional":
        kind, path = ("p2p_direct" if direct else "p2p_staged"), None
    if row.index == column.index:
        kind, path = (kind if kind == "latency" else "d2d_local"), None
        group = f"{table.what} P2P={'Enabled' if table.enabled else 'Disabled'}"
    ends = End(f"gpu:{source.index}"), End(f"gpu:{destination.index}")
    if kind == "latency":
        return CopyLatency(
            source=ends[0], destination=ends[1], method="driver", path=path, group=group, median_us=0.0
        )
    return CopyRate(
        kind=kind,
        source=ends[0],
        destination=ends[1],
        method="driver",
        path=path,
        group=group,
    )


def _cells(machine: Machine, era: Era) -> Iterator[tuple[_Table, Gpu, Gpu, Copied]]:
    gpus = measured.by_cuda_number(machine)
    for table in _tables(era):
        for row in gpus:
            for column in gpus:
                yield table, row, column, _blank(machine, table, row, column)


def measure(machine: Machine, era: Era, numbers: measured.Numbers) -> Machine:
    """Return the machine with the samples that the program of an era takes."""
    samples = [measured.with_number(blank, numbers()) for _, _, _, blank in _cells(machine, era)]
    return measured.with_samples(machine, samples, SOURCE)


def text(machine: Machine, era: Era) -> str:
    """Return the whole output for the samples of a machine."""
    gpus = measured.by_cuda_number(machine)
    access = [[measured.has_access(machine, a, b) for b in gpus] for a in gpus]
    parts = [head([g.name or "" for g in gpus], access, era, [g.pci_address or "" for g in gpus])]
    pool = measured.Pool(machine)
    values = [pool.take(blank) for _, _, _, blank in _cells(machine, era)]
    for place, table in enumerate(_tables(era)):
        first = place * len(gpus) ** 2
        rows = [values[first + i * len(gpus) :][: len(gpus)] for i in range(len(gpus))]
        latency = era.writes and table.what == "Latency"
        parts.append(matrix(table.heading, rows, "GPU" if latency else "D\\D"))
        if latency:
            parts.append("\n" + matrix("", [[1.5 + value for value in row] for row in rows], "CPU"))
    note = "NOTE: The CUDA Samples are not meant for performance measurements. "
    return "".join([*parts, "\n", note, "Results may vary when GPU Boost is enabled.\n"])


def head(
    names: Sequence[str],
    access: Sequence[Sequence[bool]],
    era: Era = ERAS["CUDA 12"],
    addresses: Sequence[str] = (),
) -> str:
    """Return the part above the matrices: devices, peer access, the connectivity matrix."""
    count = range(len(names))
    lines = ["[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]"]
    for i, name in enumerate(names):
        domain, bus, rest = (addresses[i] if addresses else f"0000:{i + 5:02x}:00.0").split(":")
        place = f"pciBusID: {int(bus, 16):x}, pciDeviceID: {int(rest[:2], 16):x}"
        lines.append(f"Device: {i}, {name}, {place}, pciDomainID:{int(domain, 16):x}")
    lines += [
        f"Device={a} {'CAN' if access[a][b] else 'CANNOT'} Access Peer Device={b}"
        for a in count
        for b in count
        if a != b
    ]
    lines += ["", "***NOTE: In case a device doesn't have P2P access to other one, it falls back to normal "]
    lines[-1] += "memcopy procedure."
    unstable = " and unstable Latency (us)" if era.writes else ""
    lines += [f"So you can see lesser Bandwidth (GB/s){unstable} in those cases.", ""]
    lines += ["P2P Connectivity Matrix", "     D\\D" + "".join(f"{i:6d}" for i in count)]
    lines += [f"{a:6d}\t" + "".join(f"{int(a == b or access[a][b]):6d}" for b in count) for a in count]
    return "\n".join(lines) + "\n"


def matrix(heading: str, rows: Rows, corner: str = "D\\D", empty: str = "—") -> str:
    """Return one matrix; people write `empty` for a number that they omit."""
    lines = [f"   {corner}" + "".join(f"{index:6d} " for index in range(len(rows)))]
    lines += [
        f"{index:6d} " + "".join(f"{empty:>6s} " if cell is None else f"{cell:6.2f} " for cell in row)
        for index, row in enumerate(rows)
    ]
    return "\n".join([*([heading] if heading else []), *lines]) + "\n"
