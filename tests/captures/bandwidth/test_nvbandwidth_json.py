import json

import pytest

from gputopo.values.errors import InputError
from tests.captures.samples import measured_of as read
from tests.kit.dialects import nvbandwidth

DEVICES = ["0: NVIDIA A (00000000:0c:00): (myhost)", "1: NVIDIA B (00000000:05:00): (myhost)"]
H2D = nvbandwidth.json_case("host_to_device_memcpy_ce", [[56.5, 57.25]])


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
        ("nvbandwidth device_to_device_memcpy_read_ce", "waived: no two GPUs can access each other"),
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


@pytest.mark.parametrize("cell", ["-1", "inf", "x y"])
def test_a_number_that_no_copy_has_is_reported_and_not_taken(cell: str) -> None:
    machine, bandwidth = read(
        nvbandwidth.json_of_cases([nvbandwidth.json_case("host_to_device_memcpy_ce", [[56.5, cell]])])
    )
    assert [s.median_gb_per_s for s in bandwidth.copies] == [56.5]
    assert [line.text for line in machine.unread] == [f"host_to_device_memcpy_ce: {cell}"]


@pytest.mark.parametrize(
    "case",
    [
        {"name": "host_to_device_memcpy_ce", "status": "Passed"},
        {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [["1"], ["1", "2"]]},
        {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": {"a": 1}},
        {"name": 7},
        None,
    ],
)
def test_a_testcase_of_another_shape_is_reported_and_the_rest_is_read(case: object) -> None:
    document = json.loads(nvbandwidth.json_of_cases([H2D]))
    document["nvbandwidth"]["testcases"].append(case)
    machine, bandwidth = read(json.dumps(document))
    assert len(bandwidth.samples) == 2
    assert len(machine.unread) == 1


@pytest.mark.parametrize("value", ["null", '{"testcases": 5}'])
def test_json_without_testcases_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="JSON of nvbandwidth without its testcases"):
        read(f'{{"nvbandwidth": {value}}}')


def test_json_that_was_cut_off_is_refused_wherever_the_cut_is() -> None:
    text = nvbandwidth.json_of_cases([H2D], DEVICES)
    for end in range(20, len(text), 60):
        with pytest.raises(InputError, match="not complete JSON"):
            read(text[:end])
    with pytest.raises(InputError, match="nested too deep"):
        read('{"nvbandwidth": ' + "[" * 100_000)
