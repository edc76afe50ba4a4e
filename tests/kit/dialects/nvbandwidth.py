"""A Machine as nvbandwidth 0.8 and 0.10 print it, as text and as JSON.

Tests and directions are from its sources (testcases_ce.cpp, testcases_sm.cpp). The arrow in a heading is not
the direction of the copy (in a read test, the row reads from the column), so all arrows are alike.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from gputopo.values.bandwidth import (
    Bandwidth,
    Copied,
    CopiedKind,
    CopyLatency,
    CopyRate,
    Method,
    NotMeasured,
    Path,
    Samples,
)
from gputopo.values.ends import End
from gputopo.values.machine import Driver, Gpu, Machine
from tests.kit.dialects import measured

SOURCE = "nvbandwidth"

Version = tuple[int, int]
Form = Literal["text", "json"]
Rows = Sequence[Sequence[float | None]]  # None: N/A

VERSIONS: tuple[Version, ...] = ((0, 8), (0, 10))


@dataclass(frozen=True, slots=True)
class Case:
    """A testcase. `source`, `destination`: host, row, column, or gpus (all others at once).

    `group`: of simultaneous copies, with the words `case` (its name), `row` and `column`; None if a copy runs
    by itself.
    """

    name: str
    kind: CopiedKind
    source: str
    destination: str
    method: Method
    heading: str
    group: str | None = None

    @property
    def is_of_pairs(self) -> bool:
        """Return whether it has a row for each GPU."""
        return "row" in (self.source, self.destination)

    @property
    def needs_peers(self) -> bool:
        """Return whether it is waived if no GPU can access another."""
        return self.is_of_pairs or "gpus" in (self.source, self.destination)


def _both(
    name: str, kind: CopiedKind, source: str, destination: str, kernel: Method, group: str | None = None
) -> list[Case]:
    """Return a test with copy engines, and the same test with kernels."""
    of_host = "host" in (source, destination)
    heading = f"memcpy {{}} {'CPU' if of_host else 'GPU'}(row) -> GPU(column) bandwidth (GB/s)"
    engine: Method = "copy_engine_read" if "_read" in name else "copy_engine"
    return [
        Case(f"{name}_ce", kind, source, destination, engine, heading.format("CE"), group),
        Case(f"{name}_sm", kind, source, destination, kernel, heading.format("SM"), group),
    ]


_ALL = [
    *_both("host_to_device_memcpy", "h2d", "host", "column", "kernel_read"),
    *_both("device_to_host_memcpy", "d2h", "column", "host", "kernel_write"),
    *_both("host_to_device_bidirectional_memcpy", "h2d", "host", "column", "kernel_read", "case column"),
    *_both("device_to_host_bidirectional_memcpy", "d2h", "column", "host", "kernel_write", "case column"),
    *_both("device_to_device_memcpy_read", "p2p_direct", "column", "row", "kernel_read"),
    *_both("device_to_device_memcpy_write", "p2p_direct", "row", "column", "kernel_write"),
    *_both("device_to_device_bidirectional_memcpy_read", "p2p_direct", "column", "row", "kernel_read",
           "case row column"),
    *_both("device_to_device_bidirectional_memcpy_write", "p2p_direct", "row", "column", "kernel_write",
           "case row column"),
    *_both("all_to_host_memcpy", "d2h", "column", "host", "kernel_write", "case"),
    *_both("all_to_host_bidirectional_memcpy", "d2h", "column", "host", "kernel_write", "case"),
    *_both("host_to_all_memcpy", "h2d", "host", "column", "kernel_read", "case"),
    *_both("host_to_all_bidirectional_memcpy", "h2d", "host", "column", "kernel_read", "case"),
    *_both("all_to_one_write", "p2p_direct", "gpus", "column", "kernel_write", "case column"),
    *_both("all_to_one_read", "p2p_direct", "column", "gpus", "kernel_read", "case column"),
    *_both("one_to_all_write", "p2p_direct", "column", "gpus", "kernel_write", "case column"),
    *_both("one_to_all_read", "p2p_direct", "gpus", "column", "kernel_read", "case column"),
]  # fmt: skip
_SM_LAST = [
    Case("host_device_latency_sm", "latency", "host", "column", "kernel_read",
         "memory latency SM CPU(row) <-> GPU(column) (ns)"),
    Case("device_to_device_latency_sm", "latency", "column", "row", "kernel_read",
         "Device to Device Latency SM GPU(row) <-> GPU(column) (ns)"),
    Case("device_local_copy", "d2d_local", "column", "column", "copy_engine",
         "memcpy local GPU(column) bandwidth (GB/s)"),
]  # fmt: skip
CASES = [
    *(case for case in _ALL if case.name.endswith("_ce")),
    *(case for case in _ALL if case.name.endswith("_sm")),
    *_SM_LAST,
]


@dataclass(frozen=True, slots=True)
class _Table:
    """One matrix of a testcase. `part`: for bidirectional tests between GPUs."""

    case: Case
    part: str = ""  # Read1, Read2, Write1, Write2, Total

    @property
    def key(self) -> str:
        """The name on the SUM line."""
        return f"{self.case.name}_{self.part.lower()}" if self.part else self.case.name

    @property
    def heading(self) -> str:
        """The line above the matrix."""
        words = self.case.heading
        return words.replace(" bandwidth", f" {self.part} bandwidth") if self.part else words


def _tables(case: Case) -> list[_Table]:
    if "device_to_device_bidirectional" not in case.name:
        return [_Table(case)]
    word = "Read" if "_read_" in case.name else "Write"
    return [_Table(case, f"{word}1"), _Table(case, f"{word}2"), _Table(case, "Total")]


def _blank(table: _Table, row: Gpu, column: Gpu) -> Copied:
    """Return the sample that a cell would have, without its number."""
    case = table.case
    names = {"row": f"gpu:{row.index}", "column": f"gpu:{column.index}"}
    source, destination = case.source, case.destination
    if table.part == "Total":
        return CopyRate(
            kind="bidirectional",
            source=End(names["row"]),
            destination=End(names["column"]),
            method=case.method,
            path="direct",
        )
    if table.part:
        source, destination = ("column", "row") if table.part.endswith("1") else ("row", "column")
    words = {"case": case.name, **names}
    ends = End(names.get(source, source)), End(names.get(destination, destination))
    pinned = True if "host" in (source, destination) else None
    if case.kind == "latency":
        path: Path | None = "direct" if case.is_of_pairs else None
        return CopyLatency(
            source=ends[0], destination=ends[1], pinned=pinned, method=case.method, path=path, median_us=0.0
        )
    return CopyRate(
        kind=case.kind,
        source=ends[0],
        destination=ends[1],
        pinned=pinned,
        method=case.method,
        group=" ".join(words[word] for word in case.group.split()) if case.group else None,
        with_reverse="bidirectional" in case.name,
    )


def _cells(machine: Machine, table: _Table) -> Iterator[list[Copied | None]]:
    """Return the samples of the cells, by row; None: N/A."""
    gpus = measured.by_cuda_number(machine)
    for row in gpus if table.case.is_of_pairs else gpus[:1]:
        yield [
            _blank(table, row, column) if _is_measured(machine, table.case, row, column) else None
            for column in gpus
        ]


def _is_measured(machine: Machine, case: Case, row: Gpu, column: Gpu) -> bool:
    if case.is_of_pairs:
        return row.index != column.index and measured.has_access(machine, row, column)
    if case.needs_peers:
        return any(g.index != column.index and measured.has_access(machine, column, g) for g in machine.gpus)
    return True


def _factor(case: Case) -> float:
    """Return the factor for a printed number: nanoseconds, and bytes that are counted once."""
    return 0.001 if case.kind == "latency" else 2.0 if case.kind == "d2d_local" else 1.0


def _exact(value: float) -> float:
    return float(f"{value:.12g}")


def waives(machine: Machine, case: Case) -> bool:
    """Return whether a test is skipped because no GPU can access another."""
    return case.needs_peers and not any(link.p2p_read == "OK" for link in machine.links)


def measure(machine: Machine, chosen: Iterable[Case], numbers: measured.Numbers) -> Machine:
    """Return the machine with the samples of these tests."""
    samples = [
        measured.with_number(blank, _exact(numbers() * _factor(case)))
        for case in chosen
        if not waives(machine, case)
        for table in _tables(case)
        for row in _cells(machine, table)
        for blank in row
        if blank is not None
    ]
    driver = Driver(version="570.86.16", cuda_version="12.8")
    return msgspec.structs.replace(measured.with_samples(machine, samples, SOURCE), driver=driver)


def printed(machine: Machine, version: Version, form: Form, chosen: Sequence[Case]) -> Machine:
    """Return what a version prints of a machine. Without addresses, GPUs are in CUDA's order."""
    waived = [case for case in chosen if waives(machine, case)]
    run = [case for case in chosen if case not in waived]
    lists = version < (0, 10) or form == "json"
    named = form == "json"
    refused = lists and named and any(c.is_of_pairs and c.kind != "latency" for c in waived)
    gpus = machine.gpus
    if not lists:
        assert all(gpu.cuda_index is None for gpu in gpus)
        gpus = tuple(Gpu(index=gpu.index) for gpu in gpus)
    assert machine.bandwidth is not None
    return Machine(
        source=SOURCE,
        driver=machine.driver,
        gpus=gpus if lists or run else (),
        links=machine.links if refused or any(case.is_of_pairs for case in run) else (),
        bandwidth=Bandwidth(
            source=SOURCE,
            samples=Samples(machine.bandwidth.samples),
            not_measured=(
                *(_waived(case, named) for case in waived),
                *(one for case in run for one in _absent(machine, case)),
            ),
            driver_version=machine.driver.version,
            cuda_version=machine.driver.cuda_version,
        ),
    )


def _waived(case: Case, named: bool) -> NotMeasured:
    if named:
        return NotMeasured(what=f"{SOURCE} {case.name}", reason="waived: no two GPUs can access each other")
    return NotMeasured(
        what="a test that nvbandwidth's text does not name", reason="waived: no reason reported"
    )


def _absent(machine: Machine, case: Case) -> Iterator[NotMeasured]:
    """Return what the N/A cells of a test are read as, except the cells of a GPU with itself."""
    rows = list(_cells(machine, _tables(case)[-1]))
    absent = sum(cell is None for row in rows for cell in row)
    if absent := absent - (len(rows) if case.is_of_pairs else 0):
        why = "no peer access between these GPUs" if case.is_of_pairs else "the tool gives N/A"
        yield NotMeasured(what=f"{SOURCE} {case.name}: {absent} of its numbers", reason=why)


def text(machine: Machine, version: Version, chosen: Iterable[Case]) -> str:
    """Return the whole output for the samples of a machine."""
    number = ".".join(map(str, version)) + (".0" if version >= (0, 10) else "")
    lines = [f"nvbandwidth Version: v{number}", f"Built from Git version: v{number}", ""]
    lines += [*_versions(machine, version), ""]
    if version < (0, 10):
        gpus = measured.by_cuda_number(machine)
        lines += ["some-host", *(f"Device {i}: {_device(gpu)}" for i, gpu in enumerate(gpus)), ""]
    pool = measured.Pool(machine)
    for case in chosen:
        if waives(machine, case):
            lines.append("Waived: ")
            continue
        lines.append(f"Running {case.name}.")
        for table in _tables(case):
            lines += matrix(table.heading, _numbers(machine, pool, table), table.key).splitlines()
            if version >= (0, 10) and case.kind != "latency" and table.part in ("", "Total"):
                lines.append(f"COEFFICIENT_OF_VARIATION {table.key} 0.01")
            lines.append("")
    lines += ["NOTE: The reported results may not reflect the full capabilities of the platform."]
    lines += ["Performance can vary with software drivers, hardware clocks, and system topology.", ""]
    return "\n".join([*lines, ""])


def _versions(machine: Machine, version: Version) -> list[str]:
    major, _, minor = (machine.driver.cuda_version or "").partition(".")
    cuda = f"{int(major) * 1000 + int(minor) * 10}"
    if version >= (0, 10):
        cuda = f"{machine.driver.cuda_version} ({cuda})"
    return [
        f"CUDA Runtime Version: {cuda}",
        f"CUDA Driver Version{' (API)' if version >= (0, 10) else ''}: {cuda}",
        f"Driver Version: {machine.driver.version}",
    ]


def _device(gpu: Gpu) -> str:
    return f"{gpu.name} (0000{(gpu.pci_address or '').removesuffix('.0')})"


def _numbers(machine: Machine, pool: measured.Pool, table: _Table) -> list[list[float | None]]:
    factor = _factor(table.case)
    return [
        [None if blank is None else _exact(pool.take(blank) / factor) for blank in row]
        for row in _cells(machine, table)
    ]


def table(name: str, heading: str, rows: Rows, *, empty: str = "N/A", key: str = "") -> str:
    """Return one testcase of the text. `key`: the name on its SUM line, if it differs."""
    return f"Running {name}.\n{matrix(heading, rows, key or name, empty=empty)}"


def matrix(heading: str, rows: Rows, key: str, *, empty: str = "N/A") -> str:
    """Return one matrix of the text with its SUM line."""
    lines = [heading, "  " + "".join(f"{index:10d}" for index in range(len(rows[0])))]
    lines += [
        f"{index:2d}" + "".join(f"{empty:>10s}" if cell is None else f"{cell:10.2f}" for cell in row)
        for index, row in enumerate(rows)
    ]
    total = sum(cell or 0.0 for row in rows for cell in row)
    return "\n".join([*lines, "", f"SUM {key} {total:.2f}", ""]) + "\n"


def json_text(machine: Machine, version: Version, chosen: Iterable[Case]) -> str:
    """Return the output of -j for the samples of a machine."""
    pool = measured.Pool(machine)
    found = []
    for case in chosen:
        if waives(machine, case):
            found.append({"name": case.name, "status": "Waived"})
            continue
        tables = _tables(case)
        parts = [_numbers(machine, pool, table) for table in tables]
        rows = [["N/A" if cell is None else cell for cell in row] for part in parts for row in part]
        total = sum(cell or 0.0 for row in parts[-1] for cell in row)
        found.append(json_case(case.name, rows, sum=total, bandwidth_description=tables[-1].heading))
    devices = [f"{i}: {_device(gpu)}: (some-host)" for i, gpu in enumerate(measured.by_cuda_number(machine))]
    runtime, _, driver = _versions(machine, (0, 8))
    head: dict[str, Any] = {"CUDA Runtime Version": int(runtime.rpartition(" ")[2])}
    head |= {"Driver Version": driver.rpartition(" ")[2]}
    head |= {"GPU Device list": devices}
    number = "v" + ".".join(map(str, version))
    return json_document(head | {"git_version": number, "testcases": found, "version": number})


def json_document(content: Mapping[str, Any]) -> str:
    """Return the JSON, indented with tabs."""
    return json.dumps({SOURCE: content}, indent="\t", separators=(",", " : "))


def json_of_cases(found: list[dict[str, Any]], devices: Sequence[str] = (), **more: Any) -> str:
    """Return the JSON of some testcases."""
    head = {"CUDA Runtime Version": 12080, "Driver Version": "570.86.16", "version": "v0.8"}
    return json_document(head | {"GPU Device list": list(devices), "testcases": found} | more)


def json_case(name: str, rows: Sequence[Sequence[float | str]], **more: Any) -> dict[str, Any]:
    """Return one passed testcase of the JSON."""
    printed = [[cell if isinstance(cell, str) else f"{cell:g}" for cell in row] for row in rows]
    return {"name": name, "status": "Passed", "bandwidth_matrix": printed, "sum": 1.0} | more
