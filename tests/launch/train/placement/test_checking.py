from collections import Counter
from types import SimpleNamespace

import pytest

from gputopo.launch.train.placement import check_ops, check_variables, count_tower_ops
from gputopo.values.errors import HardwareError
from gputopo.values.run.events import Device
from gputopo.values.run.spec import RunSpec


def spec(*devices: str) -> RunSpec:
    return RunSpec(
        model="alexnet",
        devices=tuple(Device(tower=tower, device=device) for tower, device in enumerate(devices)),
        backend="gpu",
        ps_device="/GPU:0",
        batch_size=1,
    )


def on(device: str) -> str:
    return f"/job:localhost/replica:0/task:0/device:{device}"


def node(name: str, op: str, device: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, op=op, device=on(device))


def test_an_op_counts_for_the_tower_whose_scope_it_was_built_in_wherever_it_stands() -> None:
    nodes = [
        node("tower_0/Conv2D", "Conv2D", "GPU:0"),
        node("ConstantFolding/tower_1/gradient_tape/MatMul", "_FusedMatMul", "CPU:0"),
        node("update/AddN", "AddN", "CPU:0"),
    ]
    assert count_tower_ops(nodes) == {(0, "/GPU:0"): 1, (1, "/CPU:0"): 1}


def test_copies_between_devices_and_clock_readings_are_no_computing_ops() -> None:
    ops = ("_Send", "_Recv", "Timestamp", "ReadVariableOp", "Identity", "Const")
    nodes = [node(f"tower_0/{op}", op, "CPU:0") for op in ops]
    assert count_tower_ops(nodes) == Counter()


def test_an_op_on_another_device_than_its_tower_is_an_error_that_names_both() -> None:
    counts = Counter({(0, "/GPU:0"): 60, (1, "/GPU:1"): 58, (1, "/CPU:0"): 2})
    with pytest.raises(HardwareError, match=r"2 ops of device 1 were placed on /CPU:0, not on /GPU:1"):
        check_ops(counts, spec("/GPU:0", "/GPU:1"))


def test_a_device_without_any_op_is_an_error() -> None:
    with pytest.raises(HardwareError, match="no op was placed on /GPU:1"):
        check_ops(Counter({(0, "/GPU:0"): 60}), spec("/GPU:0", "/GPU:1"))


def variable(device: str, elements: int) -> SimpleNamespace:
    shape, dtype = SimpleNamespace(num_elements=lambda: elements), SimpleNamespace(size=4)
    return SimpleNamespace(device=on(device), name="kernel:0", shape=shape, dtype=dtype)


def test_bytes_of_variables_are_counted_by_device() -> None:
    wanted = ["/GPU:0", "/GPU:1", "/GPU:0"]
    variables = [variable("GPU:0", 10), variable("GPU:1", 20), variable("GPU:0", 30)]
    found = check_variables([(variables, wanted)])
    assert found == {"/GPU:0": 160, "/GPU:1": 80}


def test_one_variable_on_another_device_is_an_error_that_names_both() -> None:
    with pytest.raises(HardwareError, match=r"variable kernel:0 is on /CPU:0, not on /GPU:1"):
        check_variables([([variable("GPU:0", 10), variable("CPU:0", 10)], ["/GPU:0", "/GPU:1"])])
