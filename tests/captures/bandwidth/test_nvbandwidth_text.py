import pytest

from gputopo.values.bandwidth import CopyRate
from gputopo.values.errors import InputError
from tests.captures.samples import measured_of as read
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


def numbers(text: str) -> dict[tuple[str, str, str], float | None]:
    return {(s.kind, s.source, s.destination): s.median_gb_per_s for s in read(text)[1].copies}


def first(text: str) -> CopyRate:
    return read(text)[1].copies[0]


def host(test: str, arrow: str = "->") -> str:
    return nvbandwidth.table(test, f"memcpy CE CPU(row) {arrow} GPU(column) bandwidth (GB/s)", ROW)


def pairs(test: str, arrow: str = "->") -> str:
    return nvbandwidth.table(test, f"memcpy CE GPU(row) {arrow} GPU(column) bandwidth (GB/s)", PAIRS)


def test_kernels_in_both_directions_have_only_their_total_up_to_version_0_5() -> None:
    found = numbers(pairs("device_to_device_bidirectional_memcpy_read_sm", "<->"))
    assert found["bidirectional", "gpu:0", "gpu:1"] == 21.25


def test_the_options_for_performance_lines_and_for_every_sample_change_no_number() -> None:
    plain = host("host_to_device_memcpy_ce")
    text = plain.replace("SUM", "&&&& PERF").replace("37.50", "37.50 +GB/s")
    text = text.replace("memcpy CE", "\tSample 0: Device 0 -> Device 1: 0.50 GB/s\nmemcpy CE")
    assert (numbers(text), read(text)[0].unread) == (numbers(plain), ())


def test_host_names_of_mpi_processes_are_dropped() -> None:
    text = "Process  0 (myhost): device 0: NVIDIA GB200 (00000008:01:00)\n"
    assert "myhost" not in repr(read(text + host("host_to_device_memcpy_ce"))[0])


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
    assert bandwidth.not_measured[0].reason == "waived: no two GPUs can access each other"
    assert {link.p2p_read for link in machine.links} == {"NOT_SUPPORTED"}
    assert bandwidth.failures == ()


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("host_to_device_memcpy_ce", ("h2d", "host", "gpus", "copy_engine")),
        ("device_to_device_memcpy_read_ce", ("p2p_direct", "gpus", "gpus", "copy_engine_read")),
        ("one_to_all_write_sm", ("p2p_direct", "gpus", "gpus", "kernel_write")),
        ("device_to_device_latency_sm", ("latency", "gpus", "gpus", "kernel_read")),
    ],
)
def test_an_error_of_cuda_is_a_failure_of_what_the_test_copies(
    test: str, expected: tuple[str, str, str, str]
) -> None:
    text = host("host_to_device_memcpy_ce") + (
        f"Running {test}.\n[CUDA_ERROR_ILLEGAL_ADDRESS] an illegal memory access was "
        "encountered in expression cuStreamSynchronize(stream) in x() : memcpy.cpp:90\n"
    )
    _, bandwidth = read(text)
    (failure,) = bandwidth.failures
    assert (failure.kind, failure.source, failure.destination, failure.method) == expected
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
        "Running device_local_copy.\n",
        pairs("device_to_device_memcpy_read_ce").partition(" 2  ")[0],
    ],
)
def test_a_capture_whose_last_test_has_no_result_ends_early(rest: str) -> None:
    assert not read(host("host_to_device_memcpy_ce") + rest)[1].complete


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


@pytest.mark.parametrize("hosts", ["", "aab"])
def test_a_test_of_several_machines_is_not_measured(hosts: str) -> None:
    processes = "".join(
        f"Process {n} ({host}): device {n}: HGX GB200 (0000000{n}:01:00)\n" for n, host in enumerate(hosts)
    )
    machine, bandwidth = read(f"{processes}{pairs('multinode_device_to_device_memcpy_read_ce')}")
    assert not bandwidth.samples
    assert "multinode" in bandwidth.not_measured[0].what
    assert "may be on several hosts" in bandwidth.not_measured[0].reason
    assert [one.text[0] for one in machine.unread] == ["0", "1", "2"]  # its rows: inspect tells of them too
