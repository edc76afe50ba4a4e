import json

import pytest

from gputopo.captures import reading
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine
from tests.kit.dialects import nvbandwidth

DEVICES = ["0: NVIDIA A (00000000:0c:00): (myhost)", "1: NVIDIA B (00000000:05:00): (myhost)"]
H2D = nvbandwidth.json_case("host_to_device_memcpy_ce", [[56.5, 57.25]])


def read(text: str) -> tuple[Machine, Bandwidth]:
    machine = reading.read_text(text, origin="test")
    assert machine.bandwidth is not None
    return machine, machine.bandwidth


def test_versions_and_devices_are_told_and_no_host_name() -> None:
    machine, bandwidth = read(nvbandwidth.json_of_cases([H2D], DEVICES))
    assert (bandwidth.driver_version, bandwidth.cuda_version) == ("570.86.16", "12.8")
    assert [(g.index, g.cuda_index, g.name, g.pci_address) for g in machine.gpus] == [
        (0, 1, "NVIDIA B", "0000:05:00.0"),
        (1, 0, "NVIDIA A", "0000:0c:00.0"),
    ]
    assert {s.destination: s.median_gb_per_s for s in bandwidth.samples} == {"gpu:1": 56.5, "gpu:0": 57.25}
    assert "myhost" not in repr(machine)


def test_three_matrices_in_one_are_each_direction_and_the_total() -> None:
    rows: list[list[float | str]] = [
        ["N/A", 20.5],
        [21.5, "N/A"],
        ["N/A", 22.5],
        [23.5, "N/A"],
        ["N/A", 43.0],
        [45.0, "N/A"],
    ]
    _, bandwidth = read(
        nvbandwidth.json_of_cases(
            [nvbandwidth.json_case("device_to_device_bidirectional_memcpy_read_ce", rows)]
        )
    )
    assert [(s.kind, s.source, s.destination, s.median_gb_per_s) for s in bandwidth.samples] == [
        ("p2p_direct", "gpu:1", "gpu:0", 20.5),
        ("p2p_direct", "gpu:0", "gpu:1", 21.5),
        ("p2p_direct", "gpu:0", "gpu:1", 22.5),
        ("p2p_direct", "gpu:1", "gpu:0", 23.5),
        ("bidirectional", "gpu:0", "gpu:1", 43.0),
        ("bidirectional", "gpu:1", "gpu:0", 45.0),
    ]


def test_waived_and_failed_tests_are_told_apart() -> None:
    cases = [
        H2D,
        {"name": "device_to_device_memcpy_read_ce", "status": "Waived"},
        {"name": "all_to_one_write_sm", "status": "Waived", "error": "needs 3 GPUs"},
        {
            "name": "device_to_host_memcpy_ce",
            "status": "Error",
            "error": "[CUDA_ERROR_UNKNOWN] unknown error",
        },
        {"name": "device_local_copy", "status": "Running"},
    ]
    machine, bandwidth = read(nvbandwidth.json_of_cases(cases, DEVICES))
    assert [(one.what, one.reason) for one in bandwidth.not_measured] == [
        ("nvbandwidth device_to_device_memcpy_read_ce", "waived: no two GPUs can access one another"),
        ("nvbandwidth all_to_one_write_sm", "waived: needs 3 GPUs"),
        ("nvbandwidth device_local_copy", "status Running"),
    ]
    assert [(f.kind, f.reason) for f in bandwidth.failures] == [("d2h", "CUDA_ERROR_UNKNOWN")]
    assert [(k.a, k.b, k.p2p_read) for k in machine.links] == [(0, 1, "NOT_SUPPORTED")]
    assert len(bandwidth.samples) == 2


def test_an_error_of_the_whole_run_belongs_to_the_test_that_was_running() -> None:
    document = json.loads(
        nvbandwidth.json_of_cases([H2D, {"name": "device_to_host_memcpy_ce", "status": "Running"}])
    )
    document["nvbandwidth"]["error"] = "[CUDA_ERROR_ECC_UNCORRECTABLE] uncorrectable ECC error"
    _, bandwidth = read(json.dumps(document))
    assert [(f.kind, f.reason) for f in bandwidth.failures] == [("d2h", "CUDA_ERROR_ECC_UNCORRECTABLE")]
    assert not bandwidth.complete


def test_a_test_that_failed_alone_does_not_end_the_run() -> None:
    failed = {"name": "device_to_host_memcpy_ce", "status": "Error", "error": "[CUDA_ERROR_UNKNOWN] unknown"}
    for cases in ([H2D, failed], [failed, H2D]):
        _, bandwidth = read(nvbandwidth.json_of_cases(cases))
        assert bandwidth.complete
        assert len(bandwidth.failures) == 1


def test_a_test_of_several_machines_is_told_as_not_read() -> None:
    machine, bandwidth = read(
        nvbandwidth.json_of_cases([nvbandwidth.json_case("multinode_all_to_one_write_sm", [[1.5, 2.5]])])
    )
    assert "multinode" in bandwidth.not_measured[0].what
    assert len(machine.unread) == 1


def test_the_buffer_size_is_the_bytes_of_each_copy_where_it_is_told() -> None:
    document = json.loads(nvbandwidth.json_of_cases([H2D]))
    document["nvbandwidth"]["bufferSize"] = 512
    assert {s.bytes for s in read(json.dumps(document))[1].samples} == {512 * 2**20}
    assert {s.bytes for s in read(nvbandwidth.json_of_cases([H2D]))[1].samples} == {None}


def test_what_stands_around_the_json_does_not_matter_and_two_of_them_are_joined() -> None:
    d2h = nvbandwidth.json_case("device_to_host_memcpy_ce", [[1.5, 2.5]])
    one, other = (nvbandwidth.json_of_cases([case], DEVICES) for case in (H2D, d2h))
    text = f"$ nvbandwidth -j\n{one}\n$ again\n{other}\n"
    assert [s.kind for s in read(text)[1].samples] == ["h2d", "h2d", "d2h", "d2h"]


@pytest.mark.parametrize("cell", ["-1", "nan", "inf", "1e99", "x y", "Infinity"])
def test_a_number_that_no_copy_has_is_reported_and_not_taken(cell: str) -> None:
    machine, bandwidth = read(
        nvbandwidth.json_of_cases([nvbandwidth.json_case("host_to_device_memcpy_ce", [[56.5, cell]])])
    )
    assert [s.median_gb_per_s for s in bandwidth.samples] == [56.5]
    assert [line.text for line in machine.unread] == [f"host_to_device_memcpy_ce: {cell}"]


@pytest.mark.parametrize(
    "case",
    [
        {"name": "host_to_device_memcpy_ce", "status": "Passed"},
        {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["1"], ["1", "2"]]},
        {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [None]},
        {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": {"a": 1}},
        {"name": 7},
        "text",
        None,
    ],
)
def test_a_testcase_of_another_shape_is_reported_and_the_rest_is_read(case: object) -> None:
    document = json.loads(nvbandwidth.json_of_cases([H2D]))
    document["nvbandwidth"]["testcases"].append(case)
    machine, bandwidth = read(json.dumps(document))
    assert len(bandwidth.samples) == 2
    assert len(machine.unread) == 1


@pytest.mark.parametrize("value", ["1", "[]", "null", '{"testcases": 5}', "{}"])
def test_json_without_testcases_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="JSON of nvbandwidth without its testcases"):
        read(f'{{"nvbandwidth": {value}}}')


def test_json_that_was_cut_off_is_refused_wherever_the_cut_is() -> None:
    text = nvbandwidth.json_of_cases([H2D], DEVICES)
    for end in range(20, len(text), 7):
        with pytest.raises(InputError, match="not complete JSON"):
            read(text[:end])
    with pytest.raises(InputError, match="nested too deep"):
        read('{"nvbandwidth": ' + "[" * 100_000)
