from collections import Counter
from dataclasses import dataclass

import pytest

from gputopo.launch.train.placement import check_ops, check_variables, count_tower_ops
from gputopo.values.errors import HardwareError
from gputopo.values.run.events import Device
from gputopo.values.run.spec import RunSpec


@dataclass(frozen=True)
class Node:
    name: str
    op: str
    device: str


def spec(*devices: str) -> RunSpec:
    return RunSpec(
        model="alexnet",
        devices=tuple(Device(tower=tower, device=device) for tower, device in enumerate(devices)),
        backend="gpu",
        ps_device="/GPU:0",
        batch_size=1,
    )


def on(device: str, task: int | None = None) -> str:
    job = "localhost/replica:0/task:0" if task is None else f"worker/replica:0/task:{task}"
    return f"/job:{job}/device:{device}"


def test_an_op_counts_for_the_tower_whose_scope_it_was_built_in_wherever_it_stands() -> None:
    nodes = [
        Node("tower_0/Conv2D", "Conv2D", on("GPU:0")),
        Node("ConstantFolding/tower_1/gradient_tape/MatMul", "_FusedMatMul", on("CPU:0")),
        Node("update/AddN", "AddN", on("CPU:0")),
    ]
    assert count_tower_ops(nodes) == {(0, "/GPU:0"): 1, (1, "/CPU:0"): 1}


def test_copies_between_devices_and_clock_readings_are_no_computing_ops() -> None:
    ops = ("_Send", "_Recv", "Timestamp", "ReadVariableOp", "Identity", "Const")
    nodes = [Node(f"tower_0/{op}", op, on("CPU:0")) for op in ops]
    assert count_tower_ops(nodes) == Counter()


def test_an_op_on_another_device_than_its_tower_is_an_error_that_names_both() -> None:
    counts = Counter({(0, "/GPU:0"): 60, (1, "/GPU:1"): 58, (1, "/CPU:0"): 2})
    with pytest.raises(HardwareError, match=r"2 ops of device 1 were placed on /CPU:0, not on /GPU:1"):
        check_ops(counts, spec("/GPU:0", "/GPU:1"))


def test_a_device_without_any_op_is_an_error() -> None:
    with pytest.raises(HardwareError, match="no op was placed on /GPU:1"):
        check_ops(Counter({(0, "/GPU:0"): 60}), spec("/GPU:0", "/GPU:1"))


@dataclass(frozen=True)
class Shape:
    count: int

    def num_elements(self) -> int:
        return self.count


@dataclass(frozen=True)
class Type:
    size: int = 4


@dataclass(frozen=True)
class Variable:
    device: str
    shape: Shape
    name: str = "kernel:0"
    dtype: Type = Type()


def variables(*devices: str) -> list[Variable]:
    return [Variable(on(device), Shape(10 * (number + 1))) for number, device in enumerate(devices)]


def test_bytes_of_variables_are_counted_by_device() -> None:
    wanted = ["/GPU:0", "/GPU:1", "/GPU:0"]
    found = check_variables([(variables("GPU:0", "GPU:1", "GPU:0"), wanted)])
    assert found == {"/GPU:0": 160, "/GPU:1": 80}


def test_one_variable_on_another_device_is_an_error_that_names_both() -> None:
    with pytest.raises(HardwareError, match=r"variable kernel:0 is on /CPU:0, not on /GPU:1"):
        check_variables([(variables("GPU:0", "CPU:0"), ["/GPU:0", "/GPU:1"])])
