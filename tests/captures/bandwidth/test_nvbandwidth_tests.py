import pytest

from gputopo.captures.bandwidth import nvbandwidth_tests as names
from gputopo.values.bandwidth import Kind, Method


@pytest.mark.parametrize(
    ("test", "ends", "method"),
    [
        ("host_to_device_memcpy_ce", ("h2d", "host", "gpus"), "copy_engine"),
        ("host_to_all_bidirectional_memcpy_sm", ("h2d", "host", "gpus"), "kernel_read"),
        ("all_to_host_memcpy_sm", ("d2h", "gpus", "host"), "kernel_write"),
        ("device_to_device_memcpy_read_sm", ("p2p_direct", "gpus", "gpus"), "kernel_read"),
        ("one_to_all_write_sm", ("p2p_direct", "gpus", "gpus"), "kernel_write"),
        ("device_local_copy", ("d2d_local", "gpus", "gpus"), "copy_engine"),
        ("host_device_latency_sm", ("latency", "host", "gpus"), "kernel_read"),
        ("device_to_device_latency_sm", ("latency", "gpus", "gpus"), "kernel_read"),
    ],
)
def test_a_name_tells_what_is_copied_from_where_to_where_and_by_what(
    test: str, ends: tuple[Kind, str, str], method: Method
) -> None:
    assert names.is_known(test)
    assert names.ends(test) == ends
    assert names.method(test) == method


@pytest.mark.parametrize("test", ["multinode_device_to_device_memcpy_read_ce", "nonsense", ""])
def test_a_test_of_several_machines_is_not_known(test: str) -> None:
    assert not names.is_known(test)


@pytest.mark.parametrize(
    ("test", "between"),
    [
        ("device_to_device_memcpy_read_ce", True),
        ("all_to_one_read_ce", True),
        ("multinode_device_to_device_memcpy_read_ce", True),
        ("host_to_device_memcpy_ce", False),
        ("all_to_host_memcpy_ce", False),
    ],
)
def test_a_test_is_between_gpus_where_both_ends_are(test: str, between: bool) -> None:
    assert names.is_between_gpus(test) == between
