import pytest

from gputopo.captures.bandwidth.nvbandwidth_tests import NvbandwidthReport
from gputopo.values.bandwidth import Kind, Method


@pytest.mark.parametrize(
    ("test", "ends", "method"),
    [
        ("host_to_device_memcpy_ce", ("h2d", "host", "gpus"), "copy_engine"),
        ("host_to_all_bidirectional_memcpy_sm", ("h2d", "host", "gpus"), "kernel_read"),
        ("all_to_host_memcpy_sm", ("d2h", "gpus", "host"), "kernel_write"),
        ("device_to_device_memcpy_read_ce", ("p2p_direct", "gpus", "gpus"), "copy_engine_read"),
        ("device_to_device_memcpy_read_sm", ("p2p_direct", "gpus", "gpus"), "kernel_read"),
        ("one_to_all_write_sm", ("p2p_direct", "gpus", "gpus"), "kernel_write"),
        ("device_local_copy", ("d2d_local", "gpus", "gpus"), "copy_engine"),
        ("host_device_latency_sm", ("latency", "host", "gpus"), "kernel_read"),
        ("device_to_device_latency_sm", ("latency", "gpus", "gpus"), "kernel_read"),
    ],
)
def test_a_failure_is_of_what_the_test_copies_and_by_what(
    test: str, ends: tuple[Kind, str, str], method: Method
) -> None:
    report = NvbandwidthReport()
    report.fail(test, "CUDA_ERROR_ILLEGAL_ADDRESS")
    (failure,) = report.failures
    assert (failure.kind, failure.source, failure.destination) == ends
    assert failure.method == method
