"""The testcases of nvbandwidth 0.2 to 0.8 by their names: what each copies, from where to where, and by what.

All GPUs count as one place: which of them a number is of tells its column, or its row.
"""

import re

from gputopo.captures.places import ALL_GPUS, HOST
from gputopo.values.bandwidth import Kind, Method

PAIRS = re.compile(r"device_to_device(_bidirectional)?_memcpy_(read|write)_(ce|sm)")
_HOST = re.compile(r"(host_to_device|device_to_host|host_to_all|all_to_host)(_bidirectional)?_memcpy_(ce|sm)")
_FAN = re.compile(r"(all_to_one|one_to_all)_(read|write)_(ce|sm)")


def is_known(test: str) -> bool:
    """Tell whether this is one of the tests on one machine."""
    whole = ("host_device_latency_sm", "device_to_device_latency_sm", "device_local_copy")
    return test in whole or any(form.fullmatch(test) for form in (_HOST, PAIRS, _FAN))


def is_between_gpus(test: str) -> bool:
    """Tell whether a test copies from GPU to GPU."""
    return "device_to_device" in test or _FAN.fullmatch(test) is not None


def goes_into_one(test: str) -> bool:
    """Tell whether the bytes end in the one GPU: all_to_one by writing, one_to_all by reading."""
    return test.startswith(("all_to_one_write", "one_to_all_read"))


def ends(test: str) -> tuple[Kind, str, str]:
    """Give the kind of a test and the places between which it copies, all GPUs as one place."""
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
    """Give how a test moves its bytes. Its kernels run on the GPU where the other side is host memory."""
    if not test.endswith("_sm"):
        return "copy_engine"
    if "latency" in test or "_read_" in test or test.startswith("host_to"):
        return "kernel_read"
    return "kernel_write"
