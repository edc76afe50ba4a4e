"""The testcases of nvbandwidth 0.2 to 0.10: what each number of their matrices is.

Which GPU sends is taken from what each test is described to do (`nvbandwidth -l`), not from the arrows of the
headings, which name the side that asks first: in a read test the row's GPU fetches from the column's, in a
write test it sends to it. The bidirectional tests time one direction while the other runs too, so those
numbers are one-way ones `with_reverse`; since 0.6 both are given between GPUs, and their total is
`bidirectional`; up to 0.5 those of kernels between GPUs have only the total. `all_to_host` and `host_to_all`
run on all GPUs at once. `device_local_copy` counts the bytes copied once; ours, counting them read and
written, is twice that. Host memory is page-locked in all tests. Those of several nodes, of TMA copies and of
local kernels (0.10) are not read, and reported so.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from gputopo.captures import matching
from gputopo.captures.bandwidth import texts
from gputopo.captures.bandwidth.texts import MAX_US, is_empty, is_zero, positive
from gputopo.captures.matching import ALL_GPUS, HOST, ListedGpu
from gputopo.values.bandwidth import Bandwidth, Failure, Kind, Method, NotMeasured, Sample
from gputopo.values.machine import Driver, Machine

SOURCE = "nvbandwidth"

Part = Literal["1", "2", "total"]

_NS_PER_US = 1000.0
_LOCAL_NOTE = (
    f"{SOURCE}'s device_local_copy counts the bytes copied once; here they count as read and written"
)
_ARROW_NOTE = (
    f"{SOURCE}'s tests between GPUs: in a read test the column's GPU is the source and the row's fetches, "
    "in a write test the row's GPU is the source"
)
_PEER_LATENCY_NOTE = (
    f"{SOURCE} before 0.8 gives the latency to the host as device_to_device_latency_sm (its changelog)"
)
_NO_PEER = "no peer access between these GPUs"
_CUDA_ERROR = re.compile(r"\b(CUDA_ERROR_[A-Z_]{3,60}|cudaError[A-Za-z]{3,60})\b")
# Its messages before it exits (its error_handling.h) or aborts at once. After other errors it goes on.
_ENDS = re.compile(
    r"\[(?:CUDA_ERROR_|cudaError)|NVML_ERROR|ASSERT in expression|Invalid value when checking the pattern"
)
_WRONG_DATA = re.compile(
    r"invalid value when checking the pattern|(?:memcmp.{0,20}|pattern )mismatch|mismatched elements",
    re.IGNORECASE,
)
PAIRS = re.compile(r"device_to_device(_bidirectional)?_memcpy_(read|write)_(ce|sm)")
_HOST = re.compile(r"(host_to_device|device_to_host|host_to_all|all_to_host)(_bidirectional)?_memcpy_(ce|sm)")
_FAN = re.compile(r"(all_to_one|one_to_all)_(read|write)_(ce|sm)")


@dataclass(frozen=True, slots=True)
class NvbandwidthMatrix:
    """One printed matrix: the cells' words by row, then by column."""

    test: str
    columns: tuple[int, ...]
    rows: Mapping[int, Sequence[str]]
    part: Part | None = None  # of a bidirectional test between GPUs since 0.6


@dataclass(slots=True)
class NvbandwidthReport:
    """The content of one output, to be made into a machine. CUDA's numbers of the GPUs throughout."""

    devices: dict[int, ListedGpu] = field(default_factory=dict)
    driver: str | None = None
    cuda: str | None = None
    version: str | None = None
    bytes: int | None = None
    samples: list[Sample] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    not_measured: list[NotMeasured] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    peers: dict[tuple[int, int], bool] = field(default_factory=dict)  # low number first
    columns: set[int] = field(default_factory=set)
    hosts: set[str] = field(default_factory=set)  # of the processes of the multinode build
    complete: bool = True


def add(report: NvbandwidthReport, matrix: NvbandwidthMatrix) -> list[tuple[int, str]]:
    """Add a matrix; return row and word of the cells that are no reading: all of a test that is not known."""
    if not is_known(matrix.test):
        nodes = matrix.test.startswith("multinode_")
        reason = _of_processes(report.hosts) if nodes else "this test is not one that gputopo reads"
        report.not_measured.append(NotMeasured(what=f"{SOURCE} {matrix.test}", reason=reason))
        return [(row, " ".join(words)) for row, words in matrix.rows.items()]
    strange: list[tuple[int, str]] = []
    absent = 0
    limit = MAX_US * _NS_PER_US if "latency" in matrix.test else 1e5
    between = matrix.test.startswith("device_to_device")
    report.columns.update(matrix.columns, matrix.rows if between else ())
    for row, words in matrix.rows.items():
        for column, word in zip(matrix.columns, words, strict=True):
            value = positive(word, limit)
            if value is not None and not (between and row == column):
                report.samples.append(_sample(report, matrix, row, column, value))
            elif is_empty(word) or is_zero(word):
                absent += not (between and row == column)
            else:
                strange.append((row, word))
            if between and row != column and (value is not None or is_empty(word) or is_zero(word)):
                report.peers.setdefault((min(row, column), max(row, column)), value is not None)
    if absent and matrix.part in (None, "total"):
        what = f"{SOURCE} {matrix.test}: {absent} of its numbers"
        report.not_measured.append(
            NotMeasured(what=what, reason=_NO_PEER if between else "the tool gives N/A")
        )
    return strange


def _of_processes(hosts: set[str]) -> str:
    """Return why a test across hosts is not measured: its GPUs are of no single machine."""
    if len(hosts) > 1:
        return f"its GPUs are on {len(hosts)} hosts"
    return (
        "its GPUs are on one host: run nvbandwidth without mpirun"
        if hosts
        else "its GPUs may be on several hosts"
    )


def waive(report: NvbandwidthReport, test: str | None, message: str = "") -> None:
    """Add a test that the tool left out."""
    message = message.strip(" .:")
    pairs = test is not None and is_between_gpus(test)
    reason = message or ("no two GPUs can access one another" if pairs else "no reason reported")
    what = f"{SOURCE} {test}" if test else f"a test that {SOURCE}'s text does not name"
    report.not_measured.append(NotMeasured(what=what, reason=f"waived: {reason}"))
    if test is not None and PAIRS.fullmatch(test):
        for pair in combinations(sorted(report.devices), 2):
            report.peers.setdefault(pair, False)


def fail(report: NvbandwidthReport, test: str | None, message: str) -> None:
    """Add a test that ended in an error: a failure where CUDA's error or wrong data is named."""
    message = message.strip()[:300]
    error = _CUDA_ERROR.search(message)
    reason = error[1] if error else "WRONG_DATA" if _WRONG_DATA.search(message) else None
    if test is None or not is_known(test) or reason is None:
        what = f"{SOURCE} {test}" if test else SOURCE
        report.not_measured.append(NotMeasured(what=what, reason=message or "failed without a message"))
        return
    kind, source, destination = ends(test)
    failure = Failure(
        kind=kind,
        source=source,
        destination=destination,
        reason=reason,
        says=f"{test}: {message}",
        method=method(test),
    )
    if failure not in report.failures:
        report.failures.append(failure)


def ends_the_run(message: str) -> bool:
    """Return whether nvbandwidth exits after this error, so that no other test follows."""
    return _ENDS.search(message) is not None


def cuda_version(number: str) -> str | None:
    """Write CUDA's version number as it is spoken of: 12080, 12.8 (12080) and 12.8 are 12.8."""
    if match := re.match(r"\d{1,2}\.\d{1,2}(?= \(|$)", number, re.ASCII):
        return match[0]
    if not (number.isascii() and number.isdecimal() and 4 <= len(number) <= 6):
        return None
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"


def machine(report: NvbandwidthReport) -> Machine:
    """Return the machine, its GPUs in PCI order where their addresses are known."""
    listed = {i: report.devices.get(i, ListedGpu()) for i in sorted(report.columns | set(report.devices))}
    gpus, index_of = matching.gpus_in_pci_order(listed)
    if any(index != number for number, index in index_of.items()):
        report.notes.append(
            f"{SOURCE} numbers the GPUs as CUDA does; here they are in PCI order, as NVML's are"
        )
    peers = {
        (index_of[a], index_of[b]): {can} for (a, b), can in report.peers.items() if {a, b} <= set(index_of)
    }
    bandwidth = Bandwidth(
        source=SOURCE,
        samples=tuple(report.samples),
        failures=tuple(report.failures),
        not_measured=tuple(report.not_measured),
        complete=report.complete,
        driver_version=report.driver,
        cuda_version=report.cuda,
        notes=tuple(dict.fromkeys(report.notes)),
    )
    return Machine(
        source=SOURCE,
        driver=Driver(version=report.driver, cuda_version=report.cuda),
        gpus=gpus,
        links=texts.peer_links(peers, SOURCE)[0],
        bandwidth=matching.renumbered_bandwidth(bandwidth, index_of),
    )


def _sample(
    report: NvbandwidthReport, matrix: NvbandwidthMatrix, row: int, column: int, value: float
) -> Sample:
    test, here, there = matrix.test, matching.gpu_place(row), matching.gpu_place(column)
    if "latency" in test:
        peer = test.startswith("device_to_device")
        if peer and _before_0_8(report.version):
            report.notes.append(_PEER_LATENCY_NOTE)
        return Sample(
            kind="latency",
            source=there if peer else HOST,
            destination=here if peer else there,
            pinned=None if peer else True,
            method="kernel_read",  # the destination follows pointers in the source's memory
            path="direct" if peer else None,
            median_us=float(f"{value / _NS_PER_US:.12g}"),
        )
    if test == "device_local_copy":
        report.notes.append(_LOCAL_NOTE)
        return Sample(
            kind="d2d_local",
            source=there,
            destination=there,
            bytes=report.bytes,
            method="copy_engine",
            median_gb_per_s=2 * value,
        )
    if pairs := PAIRS.fullmatch(test):
        report.notes.append(_ARROW_NOTE)
        return _pair_sample(report, matrix, pairs, row, column, value)
    kind, source, destination = ends(test)
    source, destination = (
        there if end == ALL_GPUS and kind != "p2p_direct" else end for end in (source, destination)
    )
    if kind == "p2p_direct":
        inward = goes_into_one(test)
        source, destination = (ALL_GPUS, there) if inward else (there, ALL_GPUS)
        group: str | None = f"{test} {there}"
    elif "all" in test:
        group = test
    else:
        group = f"{test} {there}" if "bidirectional" in test else None
    return Sample(
        kind=kind,
        source=source,
        destination=destination,
        bytes=report.bytes,
        pinned=None if kind == "p2p_direct" else True,
        method=method(test),
        group=group,
        with_reverse="bidirectional" in test,
        median_gb_per_s=value,
    )


def _pair_sample(
    report: NvbandwidthReport,
    matrix: NvbandwidthMatrix,
    pairs: re.Match[str],
    row: int,
    column: int,
    value: float,
) -> Sample:
    here, there = matching.gpu_place(row), matching.gpu_place(column)
    together = matrix.part is None and pairs[1] is not None and pairs[3] == "sm"  # up to 0.5
    if matrix.part == "total" or together:
        return Sample(
            kind="bidirectional",
            source=here,
            destination=there,
            bytes=report.bytes,
            path="direct",
            method=method(matrix.test),
            median_gb_per_s=value,
        )
    # The first of two directions starts at the column's GPU in both kinds of test, the second at the row's.
    from_column = pairs[2] == "read" if matrix.part is None else matrix.part == "1"
    source, destination = (there, here) if from_column else (here, there)
    return Sample(
        kind="p2p_direct",
        source=source,
        destination=destination,
        bytes=report.bytes,
        method=method(matrix.test),
        group=f"{matrix.test} {here} {there}" if pairs[1] else None,
        with_reverse=pairs[1] is not None,
        median_gb_per_s=value,
    )


def _before_0_8(version: str | None) -> bool:
    return version is not None and tuple(int(part) for part in version.split(".")) < (0, 8)


def is_known(test: str) -> bool:
    """Return whether this is one of the tests on one machine."""
    whole = ("host_device_latency_sm", "device_to_device_latency_sm", "device_local_copy")
    return test in whole or any(form.fullmatch(test) for form in (_HOST, PAIRS, _FAN))


def is_between_gpus(test: str) -> bool:
    """Return whether a test copies from GPU to GPU."""
    return "device_to_device" in test or is_of_one_with_all(test)


def is_of_one_with_all(test: str) -> bool:
    """Return whether a test copies between one GPU and all the others at once."""
    return _FAN.fullmatch(test) is not None


def goes_into_one(test: str) -> bool:
    """Return whether the bytes end in the one GPU: all_to_one by writing, one_to_all by reading."""
    return test.startswith(("all_to_one_write", "one_to_all_read"))


def ends(test: str) -> tuple[Kind, str, str]:
    """Return the kind of a test and the places between which it copies, all GPUs as one place."""
    if "latency" in test:
        return "latency", HOST if test.startswith("host") else ALL_GPUS, ALL_GPUS
    if test == "device_local_copy":
        return "d2d_local", ALL_GPUS, ALL_GPUS
    if test.startswith("host_to"):
        return "h2d", HOST, ALL_GPUS
    if test.startswith(("device_to_host", "all_to_host")):
        return "d2h", ALL_GPUS, HOST
    return "p2p_direct", ALL_GPUS, ALL_GPUS


def method(test: str) -> Method:
    """Return how a test moves its bytes. Its kernels run on the GPU where the other side is host memory."""
    if not test.endswith("_sm"):
        return "copy_engine"
    if "latency" in test or "_read_" in test or test.startswith("host_to"):
        return "kernel_read"
    return "kernel_write"
