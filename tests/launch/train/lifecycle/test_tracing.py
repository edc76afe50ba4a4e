"""Traces of several hosts where one of them has none."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.train.lifecycle.trace_reading import MAX_OPS, device_times, union_ps
from gputopo.values.run.events import Device
from tests.invented_runs import gpu_devices, on_hosts

MS = 1_000_000_000  # picoseconds


@dataclass
class Named:
    name: str


@dataclass
class Stat:
    metadata_id: int
    str_value: str = ""
    ref_value: int = 0

    def WhichOneof(self, group: str) -> str:  # noqa: N802 - protobuf's name
        assert group == "value"
        return "ref_value" if self.ref_value else "str_value"


@dataclass
class Event:
    metadata_id: int
    offset_ps: int
    duration_ps: int
    stats: list[Stat]


@dataclass
class Line:
    name: str
    events: list[Event]
    timestamp_ns: int = 0


@dataclass
class Plane:
    name: str
    lines: list[Line] = field(default_factory=list)
    event_metadata: dict[int, Named] = field(default_factory=dict)
    stat_metadata: dict[int, Named] = field(default_factory=dict)

    def add(self, line: str, *events: tuple[Any, ...], timestamp_ns: int = 0) -> "Plane":
        """Add a line of events: (name, start in ms, end in ms, facts by name, as text or as a reference)."""
        made = []
        for name, start, end, *facts in events:
            stats = []
            for key, value in (facts[0] if facts else {}).items():
                referred = key == "tf_op"
                stats.append(
                    Stat(self._stat(key), ref_value=self._stat(value))
                    if referred
                    else Stat(self._stat(key), str_value=value)
                )
            number = len(self.event_metadata) + 1
            self.event_metadata[number] = Named(name)
            made.append(Event(number, int(start * MS), int((end - start) * MS), stats))
        self.lines.append(Line(line, made, timestamp_ns))
        return self

    def _stat(self, name: str) -> int:
        number = len(self.stat_metadata) + 1
        self.stat_metadata[number] = Named(name)
        return number


GPUS = (Device(tower=0, device="/GPU:0"), Device(tower=1, device="/GPU:1"))
CPUS = (Device(tower=0, device="/CPU:0"), Device(tower=1, device="/CPU:1"))


def test_a_gpu_has_its_computing_and_each_direction_of_copying_apart() -> None:
    plane = (
        Plane("/device:GPU:1")
        .add("Stream #14(Compute)", ("gemm", 0, 10, {"tf_op": "tower_1/dense/MatMul:MatMul"}))
        .add(
            "Stream #15(MemcpyH2D,MemcpyD2H)",
            ("MemcpyH2D", 5, 8),
            ("MemcpyD2H", 20, 21),
            ("MemoryAlloc", 0, 99),
        )
        .add("Stream #16(MemcpyP2P)", ("MemcpyP2P", 12, 14))
        .add("TensorFlow Ops", ("MatMul", 0, 10))
        .add("Steps", ("1", 0, 50))
    )
    (times,) = device_times([plane], GPUS)
    assert (times.device, times.tower) == ("/GPU:1", 1)
    assert times.compute_s == pytest.approx(0.010)
    assert times.to_device_s == pytest.approx(0.003)
    assert times.to_host_s == pytest.approx(0.001)
    assert times.peer_s == pytest.approx(0.002)
    assert times.busy_s == pytest.approx(0.013)
    assert times.ops_s == {"MatMul": pytest.approx(0.010)}


def test_a_copy_within_a_gpu_is_its_work_and_one_to_another_gpu_is_not() -> None:
    details = "kind_src:device kind_dst:device size:4096 dest:{} async:1"
    plane = Plane("/device:GPU:0").add(
        "Stream #3(MemcpyD2D)",
        ("MemcpyD2D", 0, 1, {"memcpy_details": details.format(0)}),
        ("MemcpyD2D", 2, 5, {"memcpy_details": details.format(1)}),
    )
    (times,) = device_times([plane], GPUS)
    assert times.compute_s == pytest.approx(0.001)
    assert times.peer_s == pytest.approx(0.003)


def test_kernels_that_run_at_once_on_two_streams_count_once() -> None:
    plane = (
        Plane("/device:GPU:0")
        .add("Stream #1(Compute)", ("a", 0, 4), ("b", 4, 6))
        .add("Stream #2(Compute)", ("c", 3, 8))
    )
    (times,) = device_times([plane], GPUS)
    assert times.compute_s == pytest.approx(0.008)


def test_cpu_devices_are_distinguished_by_the_scope_of_their_ops() -> None:
    plane = (
        Plane("/host:CPU")
        .add("tf_Compute/1", ("tower_0/conv/Conv2D:_MklNativeConv2D", 0, 5), ("ExecutorState::Process", 0, 9))
        .add(
            "tf_Compute/2",
            ("gradient_tape/tower_1/conv/ReluGrad:ReluGrad", 2, 3),
            ("tower_1/Read/ReadVariableOp/_5:_Send", 0, 1),
            ("tower_0/dense/MatMul:MatMul", 4, 7),
            ("update/AddN:AddN", 8, 9),
        )
    )
    first, second = device_times([plane, Plane("Task Environment")], CPUS)
    assert (first.device, first.tower, second.device) == ("/CPU:0", 0, "/CPU:1")
    assert first.compute_s == pytest.approx(0.007)
    assert first.ops_s == {"_MklNativeConv2D": pytest.approx(0.005), "MatMul": pytest.approx(0.003)}
    assert second.compute_s == pytest.approx(0.001)
    assert first.to_device_s is None, "a CPU has no copy engine: that is not zero"


START = "ExecutorState::ProcessAsync::Start"


def call(tower: int, start: float, end: float, kind: str = "PartitionedCall") -> tuple[Any, ...]:
    return (START, start, end, {"name": f"tower_{tower}/PartitionedCall", "kernel_type": kind})


def test_a_program_of_xla_is_the_call_that_runs_it_whatever_its_ops() -> None:
    within = ("Conv2D_1.11", 1, 7, {"hlo_op": "Conv2D_1.11", "hlo_module": "a_0"})
    plane = Plane("/host:CPU").add(
        "tf_Compute/1", call(0, 0, 10), within, call(0, 50, 90, kind="_Recv"), call(1, 4, 8)
    )
    first, second = device_times([plane], CPUS)
    assert first.compute_s == pytest.approx(0.010), "without what it waited for"
    assert first.ops_s == {"PartitionedCall": pytest.approx(0.010)}
    assert second.ops_s == {"PartitionedCall": pytest.approx(0.004)}


def test_gpus_of_a_host_among_several_have_the_names_and_towers_that_they_have_in_the_run() -> None:
    own = on_hosts(gpu_devices(1), gpu_devices(2))[1:]
    planes = [Plane(f"/device:GPU:{n}").add("Stream #1(Compute)", ("a", 0, 1)) for n in (0, 1)]
    assert [(times.device, times.tower) for times in device_times(planes, own)] == [
        ("/job:worker/task:1/device:GPU:0", 1),
        ("/job:worker/task:1/device:GPU:1", 2),
    ]


def test_only_the_longest_kinds_of_work_are_named() -> None:
    plane = Plane("/device:GPU:0").add(
        "Stream #1(Compute)",
        *[(f"kernel_{number}", number, number + number / 100) for number in range(1, 40)],
    )
    (times,) = device_times([plane], GPUS)
    assert len(times.ops_s) == MAX_OPS
    assert next(iter(times.ops_s)) == "kernel_39"


INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda x: (x[0], x[0] + x[1])))


@given(INTERVALS)
def test_what_intervals_cover_is_the_number_of_points_in_any_of_them(
    intervals: list[tuple[int, int]],
) -> None:
    moments = {moment for start, end in intervals for moment in range(start, end)}
    assert union_ps(intervals) == len(moments)
