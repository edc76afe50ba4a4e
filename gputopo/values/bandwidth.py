"""Measured bandwidths as frozen values, and their JSON form (`gputopo.bandwidth/1`).

Gigabytes are 10^9 bytes. A place is written `gpu:3` (its index in the machine), `node:1` (the memory, or the
cores, of one NUMA node), `host` (host memory of an unknown node) or `gpus` (all the others together,
where a tool reports one number for them).

What a number counts, per kind:

- h2d, d2h, p2p_direct, p2p_staged: every byte once, one direction;
- bidirectional: the bytes of both directions together;
- d2d_local and host_memory: every byte twice, since it is read and written in the same memory, as
  NVIDIA's bandwidthTest and STREAM do; of host_memory the source is the memory's node, the destination the
  node of the cores that copy;
- allreduce: algorithm bandwidth, the bytes of one replica's gradients over the time (nccl-tests,
  doc/PERFORMANCE.md); `bus_gb_per_s` is beside it;
- latency has microseconds and no bandwidth.
"""

import functools
from typing import Literal

from gputopo.values.fields import Value

Kind = Literal[
    "h2d",
    "d2h",
    "bidirectional",
    "p2p_direct",
    "p2p_staged",
    "d2d_local",
    "host_memory",
    "latency",
    "allreduce",
]

# How the bytes were moved: by a copy engine, by a kernel that reads or writes the other side, by the cores of
# the host, or by the driver's choice where a tool did not report it.
Method = Literal["copy_engine", "kernel_read", "kernel_write", "cpu", "driver"]

Path = Literal["direct", "staged"]

Level = Literal["quick", "full"]


class Conditions(Value, frozen=True):
    """What NVML reported of one GPU inside the timed window: the median of its readings, None where refused.

    `pcie_gen` and `pcie_width` are the link's under load; `link_changes` how often it changed within the
    windows. `readings` 0: the window was over before one could be taken.
    """

    gpu: int
    readings: int = 0
    pstate: str | None = None
    graphics_mhz: int | None = None
    memory_mhz: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    link_changes: int = 0
    power_w: float | None = None
    temperature_c: int | None = None
    throttle_mask: int | None = None
    throttle_reasons: tuple[str, ...] | None = None


class Sample(Value, frozen=True):
    """One measured number with everything that it rests on.

    `group` names a set of copies that ran at the same time; None: it ran alone. `median_*` is over
    `repeats_*`, which holds every repeat that counts; `discarded_gb_per_s` those taken during clock
    ramp-up. `spread_percent`: (largest - smallest) / median. `path`: for GPU pairs in `bidirectional` and
    `latency`. `numa_node`: where the host memory was, None if not bound.
    """

    kind: Kind
    source: str
    destination: str
    bytes: int | None = None
    pinned: bool | None = None
    method: Method | None = None
    path: Path | None = None
    group: str | None = None
    numa_node: int | None = None
    median_gb_per_s: float | None = None
    repeats_gb_per_s: tuple[float, ...] = ()
    spread_percent: float | None = None
    median_us: float | None = None
    repeats_us: tuple[float, ...] = ()
    discarded_gb_per_s: tuple[float, ...] = ()
    discarded_because: str | None = None
    conditions: tuple[Conditions, ...] = ()
    expected_gb_per_s: float | None = None
    expected_low_gb_per_s: float | None = None
    expected_source: str | None = None
    bus_gb_per_s: float | None = None
    algorithm: str | None = None  # of an allreduce: copy, ring, nccl, ...
    model: str | None = None  # of an allreduce: whose gradients


class Failure(Value, frozen=True):
    """A copy that went wrong; the others went on.

    `reason` is the driver's name of the error (`CUDA_ERROR_...`), `WRONG_DATA`, `TIMED_OUT`, or `NOT_HELD`:
    the driver did not take all copies of a window while they were held back, so that none could be timed.
    """

    kind: Kind
    source: str
    destination: str
    reason: str
    says: str
    method: Method | None = None
    path: Path | None = None
    pinned: bool | None = None
    group: str | None = None


class NotMeasured(Value, frozen=True):
    """A number that was not taken, and why. It is no failure and no pass. `what` is in words."""

    what: str
    reason: str


class UplinkGroup(Value, frozen=True):
    """GPUs that slow one another down when they copy to or from the host at once.

    `alone_gb_per_s` and `together_gb_per_s` are sums over the group. `bridge`: where their paths meet in the
    PCI tree, None where the tree shows no such place. `agrees`: whether the tree has these GPUs behind one
    uplink; None: no tree to compare with. `from_kind`: the copies that showed it.
    """

    gpus: tuple[int, ...]
    from_kind: Kind
    alone_gb_per_s: float | None = None
    together_gb_per_s: float | None = None
    bridge: str | None = None
    agrees: bool | None = None


class Bandwidth(Value, frozen=True, tag_field="schema", tag="gputopo.bandwidth/1"):
    """All that was measured in one session, or read from another tool's output.

    `measured_at`: seconds since the epoch. `complete` is False where it was interrupted, or the capture ends
    early. `notes`: to be shown with the numbers.
    """

    source: str  # live, bandwidthTest, p2pBandwidthLatencyTest, nvbandwidth, ...; several are joined by " + "
    samples: tuple[Sample, ...] = ()
    failures: tuple[Failure, ...] = ()
    not_measured: tuple[NotMeasured, ...] = ()
    uplink_groups: tuple[UplinkGroup, ...] = ()
    level: Level | None = None
    complete: bool = True
    measured_at: float | None = None
    duration_s: float | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    notes: tuple[str, ...] = ()


@functools.lru_cache(maxsize=1024)  # a few places, asked for every sample
def gpu_of(place: str) -> int | None:
    """Return the index of a place `gpu:3`, None for a place that is no GPU."""
    kind, _, number = place.partition(":")
    return int(number) if kind == "gpu" and number.isdecimal() else None


def node_of(place: str) -> int | None:
    """Return the index of a place `node:1`, None for any other place."""
    kind, _, number = place.partition(":")
    return int(number) if kind == "node" and number.isdecimal() else None
