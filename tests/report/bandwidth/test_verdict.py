"""The first line of a bandwidth report never reassures wrongly: machines with rates that were published."""

from collections.abc import Callable, Mapping
from itertools import permutations

import pytest
from msgspec.structs import replace

from gputopo.captures import load, read_text
from gputopo.copies import with_expectations
from gputopo.findings import fails, find_bandwidth
from gputopo.report import bandwidth_document, document_markdown, document_text
from gputopo.values.bandwidth import CopyRate, CopyRateKind, Expectation
from gputopo.values.ends import End
from gputopo.values.finding import Finding
from gputopo.values.machine import Machine
from tests import there
from tests.findings.measured.machines import as_read, timed
from tests.kit.dialects import nvbandwidth

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


def with_host(model: str, to_gpu: float, from_gpu: float, local: float) -> Machine:
    """Return what is read of bandwidthTest."""
    ways = {"Host to Device": to_gpu, "Device to Host": from_gpu, "Device to Device": local}
    text = f"[CUDA Bandwidth Test] - Starting...\nRunning on...\n\n Device 0: {model}\n Quick Mode\n\n"
    for way, rate in ways.items():
        text += f" {way} Bandwidth, 1 Device(s)\n PINNED Memory Transfers\n"
        text += f"   Transfer Size (Bytes)\tBandwidth(MB/s)\n   33554432\t\t\t{1000 * rate:.1f}\n\n"
    return read_text(f"{text}Result = PASS\n", origin="bandwidthTest.txt")


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


LOW: dict[str, tuple[Machine, str]] = {
    "two RTX 4090 in slots of four lanes": (
        between(R4090, 2, {STAGED: alike(6.34), DIRECT: alike(6.6), BOTH: alike(12.88)}, 930.0),
        "GPUs 0-1 at 6.60 of 26.8 GB/s: Gen4 x4",
    ),
    "two RTX 4090 below one lane": (between(R4090, 2, {DIRECT: alike(0.44)}), "at 0.44 of 26.8 GB/s"),
    "two RTX 4090, one direction": (
        between(R4090, 2, {DIRECT: lambda a, b: 26.9 if a < b else 11.5, BOTH: alike(53.0)}),
        "at 11.5 of 26.8 GB/s",
    ),
    "two RTX 4090, both directions at once": (
        between(R4090, 2, {DIRECT: alike(26.5), BOTH: alike(20.0)}),
        "at 20.0 of 48.2 GB/s",
    ),
    "eight RTX 3090 both directions only": (
        between(R3090, 8, {BOTH: alike(6.1)}),
        "56 pairs at 6.10 of 48.2",
    ),
    "eight RTX 3090 through the host": (
        between(R3090, 8, {STAGED: split(4, 6.12, 8.56), BOTH_STAGED: split(4, 6.1, 8.6)}, peers=False),
        "56 pairs at 6.12 of 21.4 GB/s",
    ),
    "four RTX 3090 through the host": (
        between(R3090, 4, {STAGED: alike(5.9), BOTH_STAGED: alike(8.75)}, peers=False),
        "12 pairs at 5.90 of 21.4 GB/s",
    ),
    "two RTX 4090 through one channel of memory": (
        between(R4090, 2, {STAGED: alike(12.0), DIRECT: alike(25.1)}),
        "at 12.0 of 21.4 GB/s",
    ),
    "one of four RTX A6000 with every peer": (
        between(A6000, 4, {DIRECT: of_gpu(3, 5.2, 26.3)}, 640.0),
        "GPU 3 at 5.20 of 26.8 GB/s",
    ),
    "four RTX A6000": (between(A6000, 4, {DIRECT: alike(5.2)}, 640.0), "12 pairs at 5.20 of 26.8 GB/s"),
    "memory": (between(A6000, 2, {DIRECT: alike(26.3)}, 128.0), "2 of 4 rates as expected, 2 lower"),
    "memory of one": (with_host(A6000, 26.1, 26.5, 128.0), "2 of 3 rates as expected, 1 lower"),
    "NVLink": (
        of_nvbandwidth(H100, 4, {"device_to_device_memcpy_write_ce": alike(250.0)}),
        "12 pairs at 250 of 396 GB/s",
    ),
    "NVLink, both directions at once": (
        between(H100, 4, {DIRECT: alike(371.0), BOTH: alike(500.0)}),
        "1 warning: 12 pairs at 500 of 783 GB/s",
    ),
    "a far NUMA node": (with_host("Tesla P100-PCIE-16GB", 3.78, 2.54, 444.0), "GPU 0 at 2.54 of 12.8 GB/s"),
    "a far NUMA node of a newer host": (with_host("NVIDIA H100 PCIe", 22.0, 14.0, 1700.0), "at 14.0 of 54.8"),
    "half of the lanes": (with_host(R4090, 13.1, 13.4, 918.0), "at 13.4 of 26.8 GB/s: Gen4 x8"),
    "one direction while the other is used": (
        of_nvbandwidth(
            "NVIDIA A100-SXM4-80GB",
            8,
            {
                "host_to_device_memcpy_ce": alike(25.3),
                "device_to_host_memcpy_ce": alike(26.2),
                "host_to_device_bidirectional_memcpy_ce": alike(11.1),
                "device_to_host_bidirectional_memcpy_ce": alike(24.9),
            },
        ),
        "GPUs 0-7 at 11.1 of 19.6 GB/s",
    ),
}


@pytest.mark.parametrize("case", LOW)
def test_a_low_rate_is_never_as_expected_and_the_first_line_has_it(case: str) -> None:
    machine, says = LOW[case]
    assert says in first_line(machine)
    assert not first_line(machine).startswith(("All", "As expected"))
    found, findings = judged(machine)
    assert findings
    whole = bandwidth_document(found, there(found.bandwidth), findings, whole=True)
    assert says in document_markdown(whole).replace("\\", "")


@pytest.mark.parametrize("case", LOW)
def test_each_low_rate_is_below_its_own_limit_in_the_document(case: str) -> None:
    machine, _ = judged(LOW[case][0])
    low = [
        one
        for one in there(machine.bandwidth).copies
        if one.expectation.gb_per_s and there(one.median_gb_per_s) < there(one.expectation.low_gb_per_s)
    ]
    assert low


@pytest.mark.parametrize(
    "case", ["two RTX 4090 in slots of four lanes", "two RTX 4090 below one lane", "four RTX A6000", "NVLink"]
)
def test_a_rate_that_no_usual_path_explains_fails_on_warnings(case: str) -> None:
    assert fails(judged(LOW[case][0])[1], "warning")


SOUND: dict[str, tuple[Machine, str]] = {
    "two RTX 5090 through the host": (
        between("NVIDIA GeForce RTX 5090", 2, {STAGED: alike(38.2), BOTH_STAGED: alike(43.0)}, peers=False),
        "All 4 rates as expected.",
    ),
    "eight TITAN RTX through the host": (
        between("TITAN RTX", 8, {STAGED: split(2, 9.9, 11.4), BOTH_STAGED: split(2, 9.9, 11.4)}, peers=False),
        "All 112 rates as expected.",
    ),
    "four A100 with IOMMU off": (
        between(
            A100, 4, {STAGED: alike(20.1), DIRECT: alike(23.5), BOTH_STAGED: alike(16.0), BOTH: alike(38.0)}
        ),
        "All 48 rates as expected.",
    ),
    "memory of a P100": (
        with_host("Tesla P100-PCIE-16GB", 12.15, 12.89, 444.0),
        "All 3 rates as expected.",
    ),
    "lanes that servers give a model": (
        with_host("Tesla M60", 6.07, 6.54, 133.0),
        "All 3 rates as expected.",
    ),
    "an A100 with both directions at once": (
        of_nvbandwidth(
            "NVIDIA A100-SXM4-80GB",
            8,
            {
                "host_to_device_memcpy_ce": alike(26.0),
                "host_to_device_bidirectional_memcpy_ce": alike(18.4),
            },
        ),
        "All 16 rates as expected.",
    ),
}


@pytest.mark.parametrize("case", SOUND)
def test_sound_rates_are_as_expected(case: str) -> None:
    machine, says = SOUND[case]
    assert first_line(machine) == says
    assert not judged(machine)[1]


READS = "device_to_device_memcpy_read_ce"
ACROSS, NO_READS = "for example across CPU sockets or switches", "no reference for direct reads"


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (
            of_nvbandwidth(H100, 8, {READS: lambda a, b: 370.0 + (a + 2 * b) % 4}),
            "All 56 pairs alike: 370 to 373 GB/s (no reference for NVLink reads).",
        ),
        (
            of_nvbandwidth("NVIDIA Tomorrow", 6, {READS: split(3, 26.3, 22.0)}),
            f"26.3 GB/s within GPUs 0-2 and 3-5, 22.0 between them, {ACROSS} ({NO_READS}).",
        ),
        (
            of_nvbandwidth("NVIDIA Tomorrow", 8, {READS: of_gpu(5, 335.0, 371.0)}),
            "GPU 5 is slow with every peer: 335 GB/s, other pairs 371 (no reference for NVLink reads).",
        ),
        (
            of_nvbandwidth(H100, 8, {"device_to_device_memcpy_write_ce": of_gpu(5, 335.0, 371.0)}),
            "All 56 rates as expected; GPU 5 is slow with every peer: 335 GB/s, other pairs 371.",
        ),
        (
            of_nvbandwidth("NVIDIA Tomorrow", 4, {"host_to_device_memcpy_ce": lambda _a, b: 55.0 + b / 10}),
            "All 4 GPUs alike: 55.0 to 55.3 GB/s (no reference for copies from the host).",
        ),
        (
            between("NVIDIA Tomorrow", 4, {BOTH: lambda a, b: 40.0 + 10 * ((a + b) % 3)}),
            "12 pairs differ: 40.0 to 60.0 GB/s (no reference for direct copies both ways).",
        ),
        (
            between("NVIDIA Tomorrow", 2, {DIRECT: alike(22.0)}),
            "Not judged: no reference for these rates.",
        ),
    ],
)
def test_without_a_reference_peers_are_compared_and_the_first_line_states_so(
    machine: Machine, says: str
) -> None:
    assert first_line(machine) == says


def test_a_machine_of_narrow_links_is_as_expected_and_the_links_stand_next_to_it() -> None:
    assert first_line(load(["7gforce"])) == ("All 223 rates as expected; GPUs 0-5 have x1 links (0.8 GB/s).")


def test_a_rate_stands_next_to_the_expectation_of_its_own_direction() -> None:
    found, _ = judged(with_host(R4090, 13.2, 12.9, 918.0))
    (to_gpu, from_gpu, _) = there(found.bandwidth).copies
    assert (
        f"{there(from_gpu.median_gb_per_s):.1f} of {there(from_gpu.expectation.gb_per_s):.1f}"
        == "12.9 of 26.8"
    )
    assert to_gpu.expectation.gb_per_s != from_gpu.expectation.gb_per_s
    assert "12.9 of 26.8" in first_line(found)


def test_an_upper_bound_of_collective_operations_is_no_expectation() -> None:
    limit = replace(
        timed(3.0, kind="allreduce", ranks=2),
        expectation=Expectation("derived: at most the slowest PCIe link", 12.3, 1.8),
    )
    machine = between("NVIDIA Tomorrow", 2, {DIRECT: alike(22.0)})
    machine = replace(machine, bandwidth=replace(there(machine.bandwidth), samples=(limit,)))
    assert "as expected" not in first_line(machine).lower()


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        ("two RTX 4090 in slots of four lanes", "as fast as Gen4 x4"),
        ("eight RTX 3090 through the host", "host memory may be on another NUMA node"),
        ("two RTX 4090, both directions at once", "possible causes: ACS, an IOMMU that translates"),
        ("a far NUMA node", "host memory may be on another NUMA node"),
        ("NVLink", "possible causes: NVLinks that are down"),
    ],
)
def test_a_low_rate_has_its_physical_reading(case: str, cause: str) -> None:
    assert any(cause in one.says for one in judged(LOW[case][0])[1])


def test_what_a_far_node_needs_is_not_more_lanes() -> None:
    (found,) = judged(LOW["a far NUMA node"][0])[1]
    assert "numactl --cpunodebind=0 --membind=0" in (found.remedy or "")


def test_rates_while_the_other_direction_is_used_are_on_the_first_screen() -> None:
    text = screen(LOW["one direction while the other is used"][0])
    assert "11.1/24.9" in text


@pytest.mark.parametrize("kind", ["p2p_direct", "p2p_staged", "bidirectional", "d2d_local", "h2d"])
def test_a_saved_expectation_without_a_limit_reassures_of_nothing_far_below_it(kind: CopyRateKind) -> None:
    ends = ("host", "gpu:0") if kind == "h2d" else ("gpu:0", "gpu:0" if kind == "d2d_local" else "gpu:1")
    machine = between("NVIDIA Tomorrow", 2, {DIRECT: alike(22.0)})
    for share, says in ((0.69, "0 of 1 rate as expected, 1 lower."), (0.71, "As expected.")):
        saved = CopyRate(
            kind=kind,
            source=End(ends[0]),
            destination=End(ends[1]),
            path="direct" if kind == "bidirectional" else None,
            median_gb_per_s=share * 20.0,
            expectation=Expectation(gb_per_s=20.0),
        )
        found = replace(machine, bandwidth=replace(there(machine.bandwidth), samples=(saved,)))
        text = document_text(bandwidth_document(found, there(found.bandwidth), ()), 80)
        assert text.splitlines()[0] == says
