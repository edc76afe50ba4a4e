"""From a parsed profile (an XSpace) to what each device did. Pure: no TensorFlow is needed to read.

What stands in a profile, by TensorFlow's own tracers (xla/backends/profiler/gpu/cupti_collector.cc for GPUs;
seen on 2.21 for CPUs): a plane "/device:GPU:N" for each GPU, with a line "Stream #S(kinds)" for each CUDA
stream, whose events are kernels by their name, MemcpyH2D, MemcpyD2H, MemcpyD2D, MemcpyP2P and Memset. The
other lines of such a plane are derived from these and would count twice. The plane "/host:CPU" has a line for
each thread, with an event "NAME:KIND" for each op that the thread ran, NAME as in the graph. Ops that may end
later (a call of a function, which is how XLA's programs are run) are events of one name with the facts `name`
and `kernel_type`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gputopo.values.run.events import Device, DeviceTimes

Kind = Literal["compute", "to_device", "to_host", "peer", "none"]
_GPU_PLANE = re.compile(r"/device:GPU:(\d+)")
_TOWER_OP = re.compile(r"(?:^|/)tower_(\d+)/.*:(\w+)$")
_MAY_END_LATER = "ExecutorState::ProcessAsync::Start"
_OP = re.compile(r":(\w+)$")


# The runtime's own: handing tensors from device to device, and reading variables where they live.
_NOT_COMPUTING = {"_Send", "_Recv", "_HostSend", "_HostRecv", "_Arg", "_Retval", "ReadVariableOp"}
_COPIES: dict[str, Kind] = {"MemcpyH2D": "to_device", "MemcpyD2H": "to_host", "MemcpyP2P": "peer"}
_BOOKKEEPING = {"MemoryAlloc", "MemoryFree", "Overhead", "Synchronization", "Generic"}
_DESTINATION = re.compile(r"\bdest:(\d+)")
MAX_OPS = 10  # kinds of ops reported per device
_LONGEST_NAME = 80  # C++ names of kernels can be thousands of characters
PICOSECOND = 1e-12


@dataclass(frozen=True)
class TraceSpan:
    """One event: what was done from `start_ps` to `end_ps`, in picoseconds of the profile's clock."""

    name: str
    start_ps: int
    end_ps: int
    facts: Mapping[str, str]


def device_times(planes: Iterable[Any], devices: Sequence[Device]) -> tuple[DeviceTimes, ...]:
    """Return what a host's devices did, from an XSpace's planes: a GPU's own, the host's for CPU devices.

    `devices`: of that host. A device that is not in the profile is left out.
    """
    found = []
    gpus = {device.device.rpartition("GPU:")[2]: device for device in devices}
    for plane in planes:
        gpu = _GPU_PLANE.fullmatch(plane.name)
        if gpu:
            known = gpus.get(gpu.group(1))
            name = f"/GPU:{gpu.group(1)}" if known is None else known.device
            found.append(_of_gpu(plane, name, None if known is None else known.tower))
        elif plane.name == "/host:CPU":
            found += _of_cpus(plane, [device for device in devices if "CPU" in device.device])
    return tuple(sorted(found, key=lambda times: (len(times.device), times.device)))  # /GPU:2 before /GPU:10


def union_ps(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of intervals (start, end)."""
    covered, reached = 0, None
    for start, end in sorted(intervals):
        if reached is None or start > reached:
            covered += end - start
            reached = end
        elif end > reached:
            covered += end - reached
            reached = end
    return covered


def _of_gpu(plane: Any, device: str, tower: int | None) -> DeviceTimes:
    spans: dict[Kind, list[tuple[int, int]]] = defaultdict(list)
    ops = Counter[str]()
    own = device.rpartition(":")[2]
    for line in plane.lines:
        if not line.name.startswith("Stream #"):
            continue
        for span in _spans(plane, line):
            kind = _kind(span, own)
            if kind == "none":
                continue
            spans[kind].append((span.start_ps, span.end_ps))
            if kind == "compute":
                ops[_work(span)] += span.end_ps - span.start_ps
    return DeviceTimes(
        device=device,
        tower=tower,
        compute_s=_seconds(spans["compute"]),
        to_device_s=_seconds(spans["to_device"]),
        to_host_s=_seconds(spans["to_host"]),
        peer_s=_seconds(spans["peer"]),
        busy_s=_seconds([span for of_kind in spans.values() for span in of_kind]),
        ops_s=_longest(ops),
    )


def _of_cpus(plane: Any, devices: Sequence[Device]) -> Iterator[DeviceTimes]:
    """Logical CPU devices share their threads: an op belongs to the tower in whose scope it was built."""
    lines = [_spans(plane, line) for line in plane.lines]
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    ops: dict[int, Counter[str]] = defaultdict(Counter)
    for tower, kind, span in _tower_ops(lines):
        spans[tower].append((span.start_ps, span.end_ps))
        ops[tower][kind] += span.end_ps - span.start_ps
    for device in devices:
        if device.tower in spans:
            busy = _seconds(spans[device.tower])
            yield DeviceTimes(
                device=device.device,
                tower=device.tower,
                compute_s=busy,
                busy_s=busy,
                ops_s=_longest(ops[device.tower]),
            )


def _tower_ops(lines: Iterable[Iterable[TraceSpan]]) -> Iterator[tuple[int, str, TraceSpan]]:
    """Return the ops of the graph that compute for a tower: its number, their kind, and when."""
    for line in lines:
        for span in line:
            name = span.name
            if name == _MAY_END_LATER:
                name = f"{span.facts.get('name', '')}:{span.facts.get('kernel_type', '')}"
            found = _TOWER_OP.search(name)
            if found is not None and found.group(2) not in _NOT_COMPUTING:
                yield int(found.group(1)), found.group(2), span


def _kind(span: TraceSpan, own: str) -> Kind:
    if span.name in _COPIES:
        return _COPIES[span.name]
    if span.name in _BOOKKEEPING:
        return "none"
    if span.name == "MemcpyD2D":  # with unified addresses a copy to another GPU may be called so too
        destination = _DESTINATION.search(span.facts.get("memcpy_details", ""))
        return "peer" if destination and destination.group(1) != own else "compute"
    return "compute"


def _work(span: TraceSpan) -> str:
    """Name what a kernel is for: the kind of the op that started it, or else the kernel itself."""
    op = _OP.search(span.facts.get("tf_op", ""))
    return op.group(1) if op else span.name[:_LONGEST_NAME]


def _spans(plane: Any, line: Any) -> Iterator[TraceSpan]:
    begin = line.timestamp_ns * 1000
    for event in line.events:
        start = begin + event.offset_ps
        yield TraceSpan(
            plane.event_metadata[event.metadata_id].name,
            start,
            start + event.duration_ps,
            {plane.stat_metadata[stat.metadata_id].name: _text(plane, stat) for stat in event.stats},
        )


def _text(plane: Any, stat: Any) -> str:
    if stat.WhichOneof("value") == "ref_value":  # the name of another entry is the text
        return str(plane.stat_metadata[stat.ref_value].name)
    return str(stat.str_value)


def _longest(ops: Counter[str]) -> dict[str, float]:
    return {name: length * PICOSECOND for name, length in ops.most_common(MAX_OPS)}


def _seconds(intervals: Iterable[tuple[int, int]]) -> float:
    return union_ps(intervals) * PICOSECOND
