"""The first line of a bandwidth report never reassures wrongly: machines with rates that were published."""

from collections.abc import Callable, Mapping
from itertools import permutations

from msgspec.structs import replace

from gputopo.captures import load, read_text
from gputopo.copies import with_expectations
from gputopo.findings import find_bandwidth
from gputopo.report import bandwidth_document, document_markdown, document_text
from gputopo.values.bandwidth import CopyRate, Expectation
from gputopo.values.ends import End
from gputopo.values.finding import Finding
from gputopo.values.machine import Machine
from tests import there
from tests.findings.measured.machines import as_read, timed
from tests.kit.dialects import nvbandwidth
from tests.report.shown import assert_golden

Rates = Callable[[int, int], float]
R4090, R3090, A6000 = "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3090", "NVIDIA RTX A6000"
A100, H100 = "NVIDIA A100 80GB PCIe", "NVIDIA H100 80GB HBM3"
STAGED, DIRECT = "Unidirectional P2P=Disabled Bandwidth", "Unidirectional P2P=Enabled Bandwidth (P2P Writes)"
BOTH_STAGED, BOTH = "Bidirectional P2P=Disabled Bandwidth", "Bidirectional P2P=Enabled Bandwidth"


def between(
    model: str, count: int, tables: Mapping[str, Rates], local: float | None = None, *, peers: bool = True
) -> Machine:
    """Return what is read of p2pBandwidthLatencyTest: tables of GB/s from the row's GPU to the column's."""
    gpus = range(count)
    lines = [f"Device: {gpu}, {model}, pciBusID: {gpu + 1:x}, pciDeviceID: 0, pciDomainID:0" for gpu in gpus]
    can = "CAN" if peers else "CANNOT"
    lines += [f"Device={a} {can} Access Peer Device={b}" for a, b in permutations(gpus, 2)]
    for title, rates in tables.items():
        lines += [f"{title} Matrix (GB/s)", "   D\\D" + "".join(f"{gpu:7d}" for gpu in gpus)]
        rows = [
            [
                f"{local:7.2f}" if a == b and local else "  -  " if a == b else f"{rates(a, b):7.2f}"
                for b in gpus
            ]
            for a in gpus
        ]
        lines += [f"{gpu:6d} " + " ".join(row) for gpu, row in zip(gpus, rows, strict=True)]
    text = "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n" + "\n".join(lines)
    return read_text(f"{text}\n", origin="p2p.txt")


def with_host(model: str, to_gpu: float, from_gpu: float) -> Machine:
    """Return what is read of nvbandwidth's copies between the host and a GPU."""
    ways = {"host_to_device_memcpy_ce": alike(to_gpu), "device_to_host_memcpy_ce": alike(from_gpu)}
    return of_nvbandwidth(model, 1, ways)


def of_nvbandwidth(model: str, count: int, tests: Mapping[str, Rates]) -> Machine:
    """Return what is read of nvbandwidth: tests of pairs, and of GPUs with the host."""
    cases = {case.name: case for case in nvbandwidth.CASES}
    text = "nvbandwidth Version: v0.4\n\n" + "".join(f"Device {gpu}: {model}\n" for gpu in range(count))
    for name, rates in tests.items():
        rows = range(count) if cases[name].is_of_pairs else (-1,)
        table = [[None if a == b else rates(a, b) for b in range(count)] for a in rows]
        text += "\n" + nvbandwidth.table(name, cases[name].heading, table)
    return read_text(text, origin="nvbandwidth.txt")


def judged(machine: Machine) -> tuple[Machine, tuple[Finding, ...]]:
    machine = as_read(machine)
    machine = replace(machine, bandwidth=with_expectations(there(machine.bandwidth), machine))
    return machine, find_bandwidth(machine)


def screen(machine: Machine) -> str:
    machine, findings = judged(machine)
    return document_text(bandwidth_document(machine, there(machine.bandwidth), findings), 200)


def first_line(machine: Machine) -> str:
    return screen(machine).splitlines()[0]


def alike(rate: float) -> Rates:
    return lambda _a, _b: rate


def split(size: int, within: float, across: float) -> Rates:
    return lambda a, b: within if a // size == b // size else across


def of_gpu(gpu: int, slow: float, others: float) -> Rates:
    return lambda a, b: slow if gpu in (a, b) else others


LOW = {
    "two RTX 4090 in slots of four lanes": between(
        R4090, 2, {STAGED: alike(6.34), DIRECT: alike(6.6), BOTH: alike(12.88)}, 930.0
    ),
    "two RTX 4090, one direction": between(
        R4090, 2, {DIRECT: lambda a, b: 26.9 if a < b else 11.5, BOTH: alike(53.0)}
    ),
    "two RTX 4090, both directions at once": between(R4090, 2, {DIRECT: alike(26.5), BOTH: alike(20.0)}),
    "eight RTX 3090 both directions only": between(R3090, 8, {BOTH: alike(6.1)}),
    "eight RTX 3090 through the host": between(
        R3090, 8, {STAGED: split(4, 6.12, 8.56), BOTH_STAGED: split(4, 6.1, 8.6)}, peers=False
    ),
    "two RTX 4090 through one channel of memory": between(
        R4090, 2, {STAGED: alike(12.0), DIRECT: alike(25.1)}
    ),
    "one of four RTX A6000 with every peer": between(A6000, 4, {DIRECT: of_gpu(3, 5.2, 26.3)}, 640.0),
    "four RTX A6000": between(A6000, 4, {DIRECT: alike(5.2)}, 640.0),
    "memory": between(A6000, 2, {DIRECT: alike(26.3)}, 128.0),
    "NVLink": of_nvbandwidth(H100, 4, {"device_to_device_memcpy_write_ce": alike(250.0)}),
    "a far NUMA node": with_host("Tesla P100-PCIE-16GB", 3.78, 2.54),
    "half of the lanes": with_host(R4090, 13.1, 13.4),
    "one direction while the other is used": of_nvbandwidth(
        "NVIDIA A100-SXM4-80GB",
        8,
        {
            "host_to_device_memcpy_ce": alike(25.3),
            "device_to_host_memcpy_ce": alike(26.2),
            "host_to_device_bidirectional_memcpy_ce": alike(11.1),
            "device_to_host_bidirectional_memcpy_ce": alike(24.9),
        },
    ),
}
SOUND = {
    "two RTX 5090 through the host": between(
        "NVIDIA GeForce RTX 5090", 2, {STAGED: alike(38.2), BOTH_STAGED: alike(43.0)}, peers=False
    ),
    "eight TITAN RTX through the host": between(
        "TITAN RTX", 8, {STAGED: split(2, 9.9, 11.4), BOTH_STAGED: split(2, 9.9, 11.4)}, peers=False
    ),
    "four A100 with IOMMU off": between(
        A100, 4, {STAGED: alike(20.1), DIRECT: alike(23.5), BOTH_STAGED: alike(16.0), BOTH: alike(38.0)}
    ),
    "an A100 with both directions at once": of_nvbandwidth(
        "NVIDIA A100-SXM4-80GB",
        8,
        {"host_to_device_memcpy_ce": alike(26.0), "host_to_device_bidirectional_memcpy_ce": alike(18.4)},
    ),
}
READS, WRITES = "device_to_device_memcpy_read_ce", "device_to_device_memcpy_write_ce"
TOMORROW = "NVIDIA Tomorrow"  # without a reference, peers are compared
WITHOUT_REFERENCE = {
    "reads over NVLink": of_nvbandwidth(H100, 8, {READS: lambda a, b: 370.0 + (a + 2 * b) % 4}),
    "two groups": of_nvbandwidth(TOMORROW, 6, {READS: split(3, 26.3, 22.0)}),
    "one slow GPU": of_nvbandwidth(TOMORROW, 8, {READS: of_gpu(5, 335.0, 371.0)}),
    "a GPU that is slow as a source": of_nvbandwidth(
        TOMORROW, 4, {READS: lambda a, b: 20.0 if a == 2 else 26.0}
    ),
    "one slow pair": of_nvbandwidth(TOMORROW, 4, {READS: lambda a, b: 20.0 if {a, b} == {0, 3} else 26.0}),
    "one slow GPU with a reference": of_nvbandwidth(H100, 8, {WRITES: of_gpu(5, 335.0, 371.0)}),
    "copies from the host": of_nvbandwidth(
        TOMORROW, 4, {"host_to_device_memcpy_ce": lambda _a, b: 55.0 + b / 10}
    ),
    "one pair": between(TOMORROW, 2, {DIRECT: alike(22.0)}),
    "a machine of narrow links": load(["7gforce"]),
}


def test_first_lines_and_findings_are_as_they_were() -> None:
    lines = list[str]()
    for name, machine in {**LOW, **SOUND, **WITHOUT_REFERENCE}.items():
        first, findings = first_line(machine), judged(machine)[1]
        assert (name in SOUND) <= (first.endswith("rates as expected.") and not findings), name
        assert (name in LOW) <= (not first.startswith(("All", "As expected")) and bool(findings)), name
        found = [f"  {one.severity} {one.id}: {one.says} -> {one.remedy}" for one in findings]
        lines += [f"{name}: {first}", *found]
    assert_golden("first lines of bandwidths", "\n".join([*lines, ""]))


def test_the_whole_report_in_markdown_begins_with_the_first_line_too() -> None:
    found, findings = judged(LOW["NVLink"])
    whole = bandwidth_document(found, there(found.bandwidth), findings, whole=True)
    assert first_line(LOW["NVLink"]) in document_markdown(whole).replace("\\", "")


def test_an_upper_bound_of_collective_operations_is_no_expectation() -> None:
    limit = replace(
        timed(3.0, kind="allreduce", ranks=2),
        expectation=Expectation("derived: at most the slowest PCIe link", 12.3, 1.8),
    )
    machine = between("NVIDIA Tomorrow", 2, {DIRECT: alike(22.0)})
    machine = replace(machine, bandwidth=replace(there(machine.bandwidth), samples=(limit,)))
    assert "as expected" not in first_line(machine).lower()


def test_a_saved_expectation_without_a_limit_reassures_of_nothing_far_below_it() -> None:
    machine = between("NVIDIA Tomorrow", 2, {DIRECT: alike(22.0)})
    for share, says in ((0.69, "0 of 1 rate as expected, 1 lower."), (0.71, "As expected.")):
        saved = CopyRate(
            kind="h2d",
            source=End("host"),
            destination=End("gpu:0"),
            median_gb_per_s=share * 20.0,
            expectation=Expectation(gb_per_s=20.0),
        )
        found = replace(machine, bandwidth=replace(there(machine.bandwidth), samples=(saved,)))
        text = document_text(bandwidth_document(found, there(found.bandwidth), ()), 80)
        assert text.splitlines()[0] == says
