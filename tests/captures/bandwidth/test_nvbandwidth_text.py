import pytest
from hypothesis import strategies as st

from gputopo.captures import reading
from gputopo.captures.bandwidth.nvbandwidth import read as read_nvbandwidth
from gputopo.values.bandwidth import Bandwidth, Sample, one_way_group
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine
from tests.kit.dialects import nvbandwidth

ROW = [[11.25, 12.5, 13.75]]
PAIRS: nvbandwidth.Rows = [[None, 21.25, 22.5], [23.75, None, 24.5], [25.25, 26.5, None]]
HEAD = """nvbandwidth Version: v0.8
Built from Git version: v0.8

CUDA Runtime Version: 12080
CUDA Driver Version: 12090
Driver Version: 570.86.16

myhost
Device 0: NVIDIA H100 80GB HBM3 (00000000:0c:00)
Device 1: NVIDIA H100 80GB HBM3 (00000000:22:00)
Device 2: NVIDIA H100 80GB HBM3 (00000000:b2:00)

"""


def read(text: str) -> tuple[Machine, Bandwidth]:
    machine = reading.read_text(text, origin="test")
    assert machine.bandwidth is not None
    return machine, machine.bandwidth


def numbers(text: str) -> dict[tuple[str, str, str], float | None]:
    return {(s.kind, s.source, s.destination): s.median_gb_per_s for s in read(text)[1].samples}


def first(text: str) -> Sample:
    return read(text)[1].samples[0]


def host(test: str, arrow: str = "->") -> str:
    return nvbandwidth.table(test, f"memcpy CE CPU(row) {arrow} GPU(column) bandwidth (GB/s)", ROW)


def pairs(test: str, arrow: str = "->") -> str:
    return nvbandwidth.table(test, f"memcpy CE GPU(row) {arrow} GPU(column) bandwidth (GB/s)", PAIRS)


def test_the_head_tells_versions_names_and_addresses_and_no_host_name() -> None:
    machine, bandwidth = read(HEAD + host("host_to_device_memcpy_ce"))
    assert (machine.driver.version, machine.driver.cuda_version) == ("570.86.16", "12.9")
    assert (bandwidth.driver_version, bandwidth.cuda_version) == ("570.86.16", "12.9")
    assert [(g.index, g.name, g.pci_address) for g in machine.gpus][2] == (
        2,
        "NVIDIA H100 80GB HBM3",
        "0000:b2:00.0",
    )
    assert "myhost" not in repr(machine)
    assert machine.unread == ()


def test_host_names_of_mpi_processes_are_dropped() -> None:
    text = "Process  0 (myhost): device 0: NVIDIA GB200 (00000008:01:00)\n"
    assert "myhost" not in repr(read(text + host("host_to_device_memcpy_ce"))[0])


@pytest.mark.parametrize(
    ("engine", "methods"), [("ce", ("copy_engine",) * 2), ("sm", ("kernel_read", "kernel_write"))]
)
def test_host_tests_are_pinned_copies_each_gpu_alone(engine: str, methods: tuple[str, str]) -> None:
    text = host(f"host_to_device_memcpy_{engine}") + host(f"device_to_host_memcpy_{engine}", "<-")
    told = read(text)[1].samples
    assert [(s.kind, s.source, s.destination, s.median_gb_per_s) for s in told[1::3]] == [
        ("h2d", "host", "gpu:1", 12.5),
        ("d2h", "gpu:1", "host", 12.5),
    ]
    assert {(s.pinned, s.group) for s in told} == {(True, None)}
    assert (told[0].method, told[3].method) == methods


@pytest.mark.parametrize(
    ("test", "kind"),
    [("host_to_device_bidirectional_memcpy_ce", "h2d"), ("device_to_host_bidirectional_memcpy_sm", "d2h")],
)
def test_a_bidirectional_host_test_is_one_direction_while_the_other_runs(test: str, kind: str) -> None:
    told = read(host(test, "<->"))[1].samples
    assert {s.kind for s in told} == {kind}
    assert [s.group for s in told] == [f"{test} gpu:{i}" for i in range(3)]


def test_all_to_host_and_host_to_all_run_on_all_gpus_at_once() -> None:
    told = read(host("all_to_host_memcpy_ce", "<-") + host("host_to_all_memcpy_ce"))[1].samples
    assert [(s.kind, s.group) for s in told[::3]] == [
        ("d2h", "all_to_host_memcpy_ce"),
        ("h2d", "host_to_all_memcpy_ce"),
    ]
    assert len({s.group for s in told}) == 2
    both = read(host("all_to_host_bidirectional_memcpy_ce", "<->"))[1].samples
    assert {(s.group, s.with_reverse, one_way_group(s)) for s in both} == {
        ("all_to_host_bidirectional_memcpy_ce", True, None)
    }
    alone = read(host("host_to_device_bidirectional_memcpy_ce", "<->"))[1].samples
    assert [(s.group, one_way_group(s)) for s in alone] == [
        (f"host_to_device_bidirectional_memcpy_ce gpu:{gpu}", None) for gpu in range(3)
    ]


def test_a_read_fetches_from_the_column_and_a_write_sends_from_the_row() -> None:
    fetched = numbers(pairs("device_to_device_memcpy_read_ce"))
    assert fetched["p2p_direct", "gpu:1", "gpu:0"] == 21.25
    assert len(fetched) == 6
    assert numbers(pairs("device_to_device_memcpy_write_ce", "<-"))["p2p_direct", "gpu:0", "gpu:1"] == 21.25
    assert first(pairs("device_to_device_memcpy_read_sm")).method == "kernel_read"
    assert first(pairs("device_to_device_memcpy_write_sm")).method == "kernel_write"


def test_before_0_6_a_bidirectional_pair_is_one_direction_while_the_other_runs() -> None:
    sample = first(pairs("device_to_device_bidirectional_memcpy_write_ce", "<->"))
    assert (sample.kind, sample.source, sample.destination) == ("p2p_direct", "gpu:0", "gpu:1")
    assert sample.group == "device_to_device_bidirectional_memcpy_write_ce gpu:0 gpu:1"


@pytest.mark.parametrize("way", ["read", "write"])
def test_before_0_6_kernels_of_a_bidirectional_pair_give_the_sum_of_both(way: str) -> None:
    sample = first(pairs(f"device_to_device_bidirectional_memcpy_{way}_sm", "->"))
    assert (sample.kind, sample.source, sample.destination) == ("bidirectional", "gpu:0", "gpu:1")
    assert (sample.path, sample.group, sample.median_gb_per_s) == ("direct", None, 21.25)


@pytest.mark.parametrize("test", ["all_to_one_read_sm", "one_to_all_write_ce"])
def test_one_gpu_with_all_has_one_row_whatever_its_heading(test: str) -> None:
    text = nvbandwidth.table(test, "memcpy SM GPU(row) -> GPU(column) bandwidth (GB/s)", ROW)
    assert read(text)[1].complete


@pytest.mark.parametrize("way", ["read", "write"])
def test_since_0_6_both_directions_and_their_total_are_told(way: str) -> None:
    test = f"device_to_device_bidirectional_memcpy_{way}_ce"
    text = f"Running {test}.\n"
    for scale, part in ((1, f"{way.capitalize()}1"), (2, f"{way.capitalize()}2"), (3, "Total")):
        rows = [[v and scale * v for v in row] for row in PAIRS]
        heading = f"memcpy CE GPU(row) <-> GPU(column) {part} bandwidth (GB/s)"
        text += nvbandwidth.matrix(heading, rows, f"{test}_{part.lower()}")
    told = read(text)[1].samples
    assert len(told) == 18
    assert [(s.kind, s.source, s.destination, s.median_gb_per_s, s.path) for s in told[::6]] == [
        ("p2p_direct", "gpu:1", "gpu:0", 21.25, None),
        ("p2p_direct", "gpu:0", "gpu:1", 42.5, None),
        ("bidirectional", "gpu:0", "gpu:1", 63.75, "direct"),
    ]
    assert told[0].group == told[6].group == f"{test} gpu:0 gpu:1"
    assert told[12].group is None


@pytest.mark.parametrize(
    ("test", "inward"),
    [
        ("all_to_one_write_ce", True),
        ("all_to_one_read_ce", False),
        ("one_to_all_write_sm", False),
        ("one_to_all_read_sm", True),
    ],
)
def test_a_total_over_all_peers_names_the_one_and_the_side_it_is_on(test: str, inward: bool) -> None:
    text = nvbandwidth.table(test, "memcpy CE All Gpus -> GPU(column) total bandwidth (GB/s)", ROW)
    sample = first(text)
    assert (sample.source, sample.destination) == (("gpus", "gpu:0") if inward else ("gpu:0", "gpus"))
    assert (sample.kind, sample.group) == ("p2p_direct", f"{test} gpu:0")


def test_latencies_are_microseconds_of_the_gpu_that_reads() -> None:
    text = nvbandwidth.table(
        "host_device_latency_sm", "memory latency SM CPU(row) <-> GPU(column) (ns)", [[574.5]]
    )
    sample = first(text)
    assert (sample.kind, sample.source, sample.destination) == ("latency", "host", "gpu:0")
    assert (sample.median_us, sample.median_gb_per_s) == (0.5745, None)
    heading = "Device to Device Latency SM GPU(row) <-> GPU(column) (ns)"
    text = nvbandwidth.table("device_to_device_latency_sm", heading, PAIRS)
    sample = first(text)
    assert (sample.source, sample.destination, sample.path) == ("gpu:1", "gpu:0", "direct")
    old, new = ("nvbandwidth Version: v0.7\n" + text, "nvbandwidth Version: v0.10\n" + text)
    assert any("before 0.8" in note for note in read(old)[1].notes)
    assert not any("before 0.8" in note for note in read(new)[1].notes)


def test_a_local_copy_is_counted_as_read_and_written() -> None:
    text = nvbandwidth.table("device_local_copy", "memcpy local GPU(column) bandwidth (GB/s)", ROW)
    _, bandwidth = read(text)
    assert [s.median_gb_per_s for s in bandwidth.samples] == [22.5, 25.0, 27.5]
    assert any("counts the bytes copied once" in note for note in bandwidth.notes)


def test_pairs_that_were_copied_are_peers_and_those_without_a_number_are_not() -> None:
    rows: nvbandwidth.Rows = [[None, 20.5, None], [20.5, None, None], [None, None, None]]
    heading = "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)"
    for empty in ("N/A", "0.00"):
        text = nvbandwidth.table("device_to_device_memcpy_read_ce", heading, rows, empty=empty)
        machine, bandwidth = read(text)
        assert [(k.a, k.b, k.p2p_read) for k in machine.links] == [
            (0, 1, "OK"),
            (0, 2, "NOT_SUPPORTED"),
            (1, 2, "NOT_SUPPORTED"),
        ]
        assert len(bandwidth.samples) == 2
        assert "4 of its numbers" in bandwidth.not_measured[0].what


@pytest.mark.parametrize(
    "line",
    [
        "Waiving device_to_device_memcpy_read_ce.",
        "Running device_to_device_memcpy_read_ce.\nWaived: ",
        "Waived: device_to_device_memcpy_read_ce",
    ],
)
def test_a_waived_test_is_not_measured_and_tells_that_no_pair_has_access(line: str) -> None:
    machine, bandwidth = read(HEAD + host("host_to_device_memcpy_ce") + line + "\n")
    assert [one.what for one in bandwidth.not_measured] == ["nvbandwidth device_to_device_memcpy_read_ce"]
    assert bandwidth.not_measured[0].reason == "waived: no two GPUs can access one another"
    assert {link.p2p_read for link in machine.links} == {"NOT_SUPPORTED"}
    assert bandwidth.failures == ()


def test_a_waived_test_without_a_name_is_still_told() -> None:
    _, bandwidth = read(host("host_to_device_memcpy_ce") + "Waived: \n")
    assert "does not name" in bandwidth.not_measured[0].what


def test_an_error_of_cuda_is_a_failure_of_the_test_that_ran() -> None:
    text = host("host_to_device_memcpy_ce") + (
        "Running device_to_host_memcpy_ce.\n[CUDA_ERROR_ILLEGAL_ADDRESS] an illegal memory access was "
        "encountered in expression cuStreamSynchronize(stream) in x() : memcpy.cpp:90\n"
    )
    _, bandwidth = read(text)
    (failure,) = bandwidth.failures
    assert (failure.kind, failure.source, failure.destination) == ("d2h", "gpus", "host")
    assert failure.reason == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert not bandwidth.complete
    assert len(bandwidth.samples) == 3


FAILED = "Running device_to_host_memcpy_ce.\n[CUDA_ERROR_UNKNOWN] unknown error in expression cuMemcpy\n"
LAST = "NOTE: The reported results may not reflect the full capabilities of the platform.\n"


@pytest.mark.parametrize(
    "rest",
    [pairs("device_to_device_memcpy_read_ce"), "Running all_to_one_read_ce.\nWaived: \n", LAST],
    ids=["another test", "a waived test", "the last words"],
)
def test_a_capture_that_goes_on_after_a_failed_test_does_not_end_early(rest: str) -> None:
    _, bandwidth = read(host("host_to_device_memcpy_ce") + FAILED + rest)
    assert len(bandwidth.failures) == 1
    assert bandwidth.complete


@pytest.mark.parametrize(
    "rest",
    [
        "NVML_ERROR: [Unknown Error] in expression x\n",
        "ASSERT in expression y\n",
        "Running device_local_copy.\n",
        host("device_to_host_memcpy_ce").partition(" 0  ")[0],
        pairs("device_to_device_memcpy_read_ce").partition(" 2  ")[0],
    ],
)
def test_a_capture_whose_last_test_has_no_result_ends_early(rest: str) -> None:
    assert not read(host("host_to_device_memcpy_ce") + rest)[1].complete


def test_where_cuda_did_not_start_the_error_is_all_that_is_told() -> None:
    text = (
        HEAD.partition("myhost")[0] + "[CUDA_ERROR_NO_DEVICE] no device in expression cuInit(0) in x.cpp:1\n"
    )
    machine, bandwidth = read(text)
    assert machine.gpus == ()
    assert [one.reason.partition("]")[0] for one in bandwidth.not_measured] == ["[CUDA_ERROR_NO_DEVICE"]
    assert not bandwidth.complete


def test_wrong_data_is_a_failure_and_an_unknown_test_is_not_measured() -> None:
    text = "Running host_to_device_memcpy_ce.\n Invalid value when checking the pattern at 0x7f\n"
    text += " Current offset : 4 \n"
    machine, bandwidth = read(text + "ERROR: Testcase nonsense not found!\n")
    assert [f.reason for f in bandwidth.failures] == ["WRONG_DATA"]
    assert "nonsense" in bandwidth.not_measured[0].reason
    assert machine.unread == ()


def test_the_name_below_a_matrix_stands_in_for_a_lost_line_above() -> None:
    text = host("device_to_host_memcpy_ce", "<-").partition("\n")[2]
    assert numbers(text)["d2h", "gpu:0", "host"] == 11.25
    with pytest.raises(InputError):  # what neither line names could be one of several tests
        read(text.partition("SUM")[0])


@pytest.mark.parametrize(
    ("hosts", "why"), [("", "may be on several hosts"), ("aab", "are on 2 hosts"), ("aaa", "without mpirun")]
)
def test_a_test_of_several_machines_is_not_measured(hosts: str, why: str) -> None:
    processes = "".join(
        f"Process {n} ({host}): device {n}: HGX GB200 (0000000{n}:01:00)\n" for n, host in enumerate(hosts)
    )
    machine, bandwidth = read(f"{processes}{pairs('multinode_device_to_device_memcpy_read_ce')}")
    assert bandwidth.samples == ()
    assert "multinode" in bandwidth.not_measured[0].what
    assert why in bandwidth.not_measured[0].reason
    assert [one.text[0] for one in machine.unread] == ["0", "1", "2"]  # its rows: inspect tells of them too


@pytest.mark.parametrize("cell", ["-3.00", "nan", "inf", "1e99", "12,5", "0x10"])
def test_a_number_that_no_copy_has_is_reported_and_not_taken(cell: str) -> None:
    machine, bandwidth = read(host("host_to_device_memcpy_ce").replace("12.50", cell))
    assert [s.destination for s in bandwidth.samples] == ["gpu:0", "gpu:2"]
    assert [cell in line.text for line in machine.unread] == [True]


@pytest.mark.parametrize("unit", [" +GB/s", " -ns"])
def test_the_sum_with_its_unit_names_a_test_whose_first_line_is_lost(unit: str) -> None:
    heading = "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)"
    text = nvbandwidth.matrix(heading, ROW, "device_to_host_memcpy_ce", perf=unit)
    assert numbers(text)["d2h", "gpu:0", "host"] == 11.25
    assert read(text)[0].unread == ()


def test_verbose_lines_and_prompts_are_no_lines_to_report() -> None:
    text = "> ./nvbandwidth -v\n" + HEAD.replace("myhost\n", "") + host("host_to_device_memcpy_ce")
    text += "".join(f"{what} host_to_device_memcpy_ce 11.25\n" for what in ("MIN", "MAX", "AVG"))
    assert read(text)[0].unread == ()


cells = st.integers(1, 99_999_99).map(lambda hundredths: hundredths / 100)


WHOLE = HEAD + host("host_to_device_memcpy_ce") + pairs("device_to_device_memcpy_read_ce")


def test_a_parser_alone_gives_the_same_machine() -> None:
    assert read_nvbandwidth(WHOLE, origin="test").machine == read(WHOLE)[0]
