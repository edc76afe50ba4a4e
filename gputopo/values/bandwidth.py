"""Measured bandwidths as frozen values, and their JSON form (`gputopo.bandwidth/1`).

Gigabytes are 10^9 bytes.

What a rate counts, per kind:

- h2d, d2h, p2p_direct, p2p_staged: every byte once, in one direction;
- bidirectional: the bytes of both directions together;
- d2d_local and host_memory: every byte twice, since it is read and written in the same memory, as in NVIDIA's
  bandwidthTest and STREAM. For host_memory the source is the node of the memory, the destination the node of
  the cores that copy;
- allreduce and the other collective operations: algorithm bandwidth, which is the bytes of the operation
  divided by the time (nccl-tests, doc/PERFORMANCE.md). For an allreduce of gradients, the bytes are those of
  one replica. `bus_gb_per_s` has the bus bandwidth. Source and destination are both all GPUs of the
  operation: `gpu:0,1,2,3`, `gpus` if the tool does not list them, `hosts` if they are on several hosts;
- latency has microseconds and no bandwidth;
- network: bytes from one host to another, each once, in one direction. network_bidirectional: the bytes of
  both directions together. network_latency: microseconds of half a round trip of a small message, as perftest
  and the OSU benchmarks report it; of the whole round trip for an RDMA read or atomic.
"""

import functools
import re
from collections import UserList
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, median_high
from typing import Literal, NamedTuple, TypeVar, get_args

import msgspec

from gputopo.values.ends import End, renumbered
from gputopo.values.fields import Value
from gputopo.values.grouping import grouped

# Operations of all GPUs of a group, with the names of NCCL and nccl-tests.
Collective = Literal[
    "allreduce",
    "allgather",
    "reduce_scatter",
    "alltoall",
    "sendrecv",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "hypercube",
]

CopyRateKind = Literal["h2d", "d2h", "bidirectional", "p2p_direct", "p2p_staged", "d2d_local", "host_memory"]
CopiedKind = Literal[CopyRateKind, "latency"]
Kind = Literal[CopyRateKind, "latency", "network", "network_bidirectional", "network_latency", Collective]
HostKind = Literal["h2d", "d2h"]
HOST_KINDS: tuple[HostKind, ...] = ("h2d", "d2h")

TCP = "TCP"  # TensorFlow's copies between hosts use it too
NCCL_TESTS: Literal["nccl-tests"] = "nccl-tests"  # `TransferRate.tool` of transfers between GPUs of two hosts
NetworkTool = Literal["ib_write_bw", "nccl-tests", "iperf3"]  # what `bandwidth --network` measures with
NetworkToolChoice = Literal["auto", "ib_write_bw", "nccl-tests", "iperf3"]
ALL_HOSTS_AT_ONCE = "all hosts at once"  # the group of transfers in which every host sends and receives
NETWORK_ERROR = "NETWORK_ERROR"  # reason for a failed transfer between hosts
SEPARATE_RUNS = "SEPARATE_RUNS"  # reason if the processes of a collective operation did not meet

# How the bytes were moved: by a copy engine (between GPUs: of the source, which writes, or of the
# destination, which reads), by a kernel that reads or writes the other side, by the CPU cores, or as the
# driver chose if a tool did not report it.
Method = Literal["copy_engine", "copy_engine_read", "kernel_read", "kernel_write", "cpu", "driver"]
READING: tuple[Method, ...] = ("copy_engine_read", "kernel_read")  # the destination copies
KERNELS: tuple[Method, ...] = ("kernel_read", "kernel_write")

Path = Literal["direct", "staged"]
Pair = tuple[int, int]  # GPU indices
GpuEnds = tuple[int | None, int | None]

# From this size on, starting a copy (some 10 us) takes less than 3 % of its time even on 16 lanes of
# generation 5. bandwidthTest copies 32 MiB, p2pBandwidthLatencyTest 40 MB, nvbandwidth 512 MiB.
LARGE_BYTES = 16 * 1024 * 1024
# Not measured; chosen because repeats of a copy on a sound machine differ by 1 to 2 %, and this is well
# beyond.
AGREE_SHARE = 0.05
# A rate below this share of the expected rate is never "as expected". Not measured; chosen because sound
# copies in published outputs reach at least 0.83, except between CPU sockets.
LOW_SHARE = 0.70
AT_MOST = "derived: at most"  # the source of an expectation that is a limit starts with this
# Not measured; chosen because fewer intervals have no first and last quarter to compare.
MIN_INTERVALS = 4

Level = Literal["quick", "full"]

# Why a rate is shown but never used (gputopo.copies.physics): it is the rate of a cache and not of memory; it
# is above the rate of any link of the GPU; it contradicts other rates of the same path.
Invalid = Literal["cache", "above_link", "inconsistent"]

COLLECTIVE_NAMES: dict[Kind, str] = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "sendrecv": "send and receive",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "hypercube": "hypercube",
}
# Up to this size, the time is spent on starting the operation, not on its bytes.
SMALL_BYTES = 8 * 1024


class Conditions(Value, frozen=True):
    """NVML readings of one GPU while copies ran: their medians, None if NVML refused.

    `readings`: number of readings that started and ended inside the timed windows. If there are none, because
    the windows were shorter than a reading, the values are medians of the `readings_beside`, which started
    inside a window and ended after it. `pcie_gen` and `pcie_width`: of the link under load. `link_changes`:
    how often the link changed within the windows.
    """

    gpu: int
    readings: int = 0
    readings_beside: int = 0
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


class Between(Value, frozen=True):
    """Something that went from one end to another."""

    kind: Kind
    source: End
    destination: End

    @property
    def ends(self) -> tuple[End, End]:
        """Source and destination."""
        return self.source, self.destination

    @property
    def names(self) -> tuple[str, str]:
        """The names of both hosts."""
        return self.source.name, self.destination.name

    @property
    def way(self) -> str:
        """Both ends in words: `host to gpu:0`."""
        return f"{self.source} to {self.destination}"

    @property
    def gpu_ends(self) -> GpuEnds:
        """The GPU at each end; None for any other end, and for several GPUs that work together."""
        return self.source.gpu, self.destination.gpu

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs of both ends, each once, GPUs of the source first."""
        return tuple(dict.fromkeys((*self.source.gpus, *self.destination.gpus)))

    @property
    def pair(self) -> Pair | None:
        """Source and destination if they are different GPUs."""
        source, destination = self.gpu_ends
        if source is None or destination is None or source == destination:
            return None
        return source, destination

    @property
    def host_gpu(self) -> int | None:
        """The GPU of a copy from or to the host."""
        source, destination = self.gpu_ends
        if (source is None) == (destination is None):
            return None
        return source if destination is None else destination


class Run(Value, frozen=True):
    """The result of one of several runs: GB/s, or microseconds for a latency. `name`: None if it has none."""

    name: str | None
    value: float


class Expectation(NamedTuple):
    """The expected rate, and the minimum on sound machines, in GB/s.

    Without a rate, `source` only describes what is known; "": nothing is known. `without_nvls`: the rate of a
    ring if NVSwitches can reduce.
    """

    source: str = ""
    gb_per_s: float | None = None
    low_gb_per_s: float | None = None
    without_nvls: float | None = None

    @property
    def is_limit(self) -> bool:
        """Whether it is the maximum of the links, which few machines reach."""
        return self.source.startswith(AT_MOST)

    @property
    def floor_gb_per_s(self) -> float:
        """The GB/s below which the rate is lower than expected; 0 without an expectation."""
        return max(self.low_gb_per_s or 0.0, LOW_SHARE * (self.gb_per_s or 0.0))

    def rounded(self, digits: int) -> "Expectation":
        """Return the expectation as it is stored next to a rate."""
        rate, low = self.gb_per_s, self.low_gb_per_s
        return Expectation(self.source, rate and round(rate, digits), low and round(low, digits))


class Measured(Between, frozen=True):
    """One measured rate or latency with everything that it is based on.

    `group`: name of a set of copies that ran at the same time; None: it ran by itself. `with_reverse`: a copy
    in the other direction ran at the same time, and its bytes are not counted (`bidirectional` counts both).
    Its group has one GPU, or all of them both ways.

    `median_*` is the median of `repeats_*`, which has every used repeat. `discarded_gb_per_s`: repeats during
    clock ramp-up. `runs`: the results of all runs; the median is their lower median (gputopo.copies.physics).
    """

    bytes: int | None = None
    group: str | None = None
    with_reverse: bool = False
    spread_percent: float | None = None  # (largest - smallest) / median
    conditions: tuple[Conditions, ...] = ()
    run: str | None = None  # the run of the tool, if a text has several runs
    runs: tuple[Run, ...] = ()
    invalid: Invalid | None = None  # why it is not used, None if it is valid

    @property
    def run_values(self) -> list[float]:
        """The results of all runs of a tool."""
        return [run.value for run in self.runs]

    @property
    def runs_agree(self) -> bool:
        """Whether all runs of a tool agree: within noise of their median."""
        middle = median(self.run_values or [0.0])
        return all(abs(value - middle) <= AGREE_SHARE * middle for value in self.run_values)


class Rate(Measured, frozen=True, kw_only=True):
    """A measured rate of any kind."""

    median_gb_per_s: float | None = None
    repeats_gb_per_s: tuple[float, ...] = ()
    expectation: Expectation = Expectation()

    @property
    def value(self) -> float | None:
        """The rate in GB/s."""
        return self.median_gb_per_s

    @property
    def rate(self) -> float:
        """The rate in GB/s; 0 without a rate."""
        return self.median_gb_per_s or 0.0

    @property
    def is_low(self) -> bool:
        """Whether the rate is lower than expected."""
        return self.rate < self.expectation.floor_gb_per_s

    @property
    def is_by_copy_engine(self) -> bool:
        """Whether no other way of copying was measured than that of programs."""
        return True

    @property
    def is_large(self) -> bool:
        """Whether it is a valid rate of large copies, or of copies of unknown size."""
        is_rate = self.invalid is None and bool(self.median_gb_per_s)
        return is_rate and (self.bytes is None or self.bytes >= LARGE_BYTES)


class Latency(Measured, frozen=True, kw_only=True):
    """A measured latency of any kind."""

    median_us: float
    repeats_us: tuple[float, ...] = ()

    @property
    def value(self) -> float:
        """The latency in microseconds."""
        return self.median_us


class CopyRate(Rate, frozen=True, kw_only=True):
    """The rate of copies of a GPU or within host memory."""

    kind: CopyRateKind
    pinned: bool | None = None
    method: Method | None = None
    path: Path | None = None  # for GPU pairs in `bidirectional`
    numa_node: int | None = None  # where most of the host memory is, None if it is not bound
    numa_wanted: int | None = None  # the requested node, if not all of the memory is there
    discarded_gb_per_s: tuple[float, ...] = ()
    discarded_because: str | None = None

    @property
    def is_by_copy_engine(self) -> bool:
        """Whether it was copied as programs copy: not by a kernel, nor read by the destination."""
        return self.method not in (*READING, "kernel_write")

    @property
    def is_direct(self) -> bool:
        """Whether it is between two GPUs and not through host memory."""
        return self.kind == "p2p_direct" or (self.kind == "bidirectional" and self.path != "staged")

    @property
    def directions(self) -> int:
        """The number of directions that the rate counts."""
        return 2 if self.kind == "bidirectional" else 1

    @property
    def one_way_rate(self) -> float:
        """The rate in GB/s in one direction: half of the sum if both directions ran at once."""
        return self.rate / self.directions

    @property
    def one_way_group(self) -> str | None:
        """The group if all its copies go in this direction; None if one goes back."""
        return None if self.with_reverse else self.group


class CopyLatency(Latency, frozen=True, kw_only=True):
    """The latency of a GPU's small copy, or of its access to other memory."""

    kind: Literal["latency"] = "latency"
    pinned: bool | None = None
    method: Method | None = None
    path: Path | None = None  # for GPU pairs
    numa_node: int | None = None  # as in `CopyRate`
    numa_wanted: int | None = None
    discarded_because: str | None = None


class CollectiveRate(Rate, frozen=True, kw_only=True):
    """The algorithm bandwidth of a collective operation, which has no single path, and its time."""

    kind: Collective
    median_us: float | None = None
    repeats_us: tuple[float, ...] = ()
    bus_gb_per_s: float | None = None
    algorithm: str | None = None  # of an allreduce: copy, ring, nccl, ...
    model: str | None = None  # of an allreduce: the model whose gradients are added
    ranks: int | None = None  # number of GPUs over all hosts
    hosts: int | None = None  # None: unknown
    in_place: bool | None = None  # whether it wrote into the memory that it read
    data_type: str | None = None  # float, bfloat16, ...
    reduction: str | None = None  # sum, max, ...; None for an operation that reduces nothing
    root: int | None = None  # rank that sends (broadcast, scatter) or receives (reduce, gather)
    # From NCCL's log and command: P2P, SHM, NET, NET/IB, GDRDMA, card mlx5_0, NVLS, no NVLS, NCCL_ALGO=Ring
    nccl: tuple[str, ...] = ()


class TransferRate(Rate, frozen=True, kw_only=True):
    """The rate of a transfer between two hosts."""

    kind: Literal["network", "network_bidirectional"]
    tool: str | None = None  # the tool that measured: iperf3, ib_write_bw, nccl-tests, ...
    transport: str | None = None  # TCP, UDP, RDMA write, NCCL, ...
    streams: int | None = None  # number of parallel connections or queue pairs
    nccl: tuple[str, ...] = ()  # of nccl-tests, as in `CollectiveRate`


class TransferLatency(Latency, frozen=True, kw_only=True):
    """The latency of a small message between two hosts."""

    kind: Literal["network_latency"] = "network_latency"
    tool: str | None = None  # as in `TransferRate`
    transport: str | None = None
    streams: int | None = None


Copied = CopyRate | CopyLatency
Transfer = TransferRate | TransferLatency
Sample = CopyRate | CopyLatency | CollectiveRate | TransferRate | TransferLatency
AnySample = TypeVar("AnySample", bound=Measured)


class Failure(Between, frozen=True):
    """A copy that failed; the other copies continued.

    `reason`: the driver's name of the error (`CUDA_ERROR_...`); `WRONG_DATA`; `TIMED_OUT`; `CRASHED`: a
    driver call ended the measuring process; `NOT_HELD`: the driver did not accept all copies of a window
    while they were held back, or cannot hold a stream back, so that no copy could be timed.
    """

    reason: str
    says: str
    method: Method | None = None
    path: Path | None = None
    pinned: bool | None = None
    group: str | None = None


class Samples(UserList[Sample]):
    """The measurements of a session, in their order. Their JSON form: gputopo.values.bandwidth_json."""

    def of(self, kind: type[AnySample]) -> tuple[AnySample, ...]:
        """Return the samples of a type."""
        return tuple(sample for sample in self if isinstance(sample, kind))


Moved = TypeVar("Moved", bound=Measured | Failure)


def with_new_indices(measured: Moved, gpus: Mapping[int, int]) -> Moved:
    """Return a sample or a failure with new GPU indices; a GPU without a new index keeps its own."""
    source, destination = (End(renumbered(end, gpus)) for end in measured.ends)
    group = measured.group and renumbered(measured.group, gpus)
    moved = msgspec.structs.replace(measured, source=source, destination=destination, group=group)
    if isinstance(moved, Measured):
        seen = [msgspec.structs.replace(c, gpu=gpus.get(c.gpu, c.gpu)) for c in moved.conditions]
        return msgspec.structs.replace(moved, conditions=tuple(seen))
    return moved


class NotMeasured(Value, frozen=True):
    """A measurement that was not made, and why. It is neither failed nor passed. `what`: in words."""

    what: str
    reason: str


class UplinkGroup(Value, frozen=True):
    """GPUs that slow one another down when they copy to or from the host at once.

    `alone_gb_per_s` and `together_gb_per_s` are sums over the group. `bridge`: where their paths meet in the
    PCI tree, None if the tree does not show it. `agrees`: whether the tree has these GPUs behind one uplink;
    None without a tree. `slowed`: all kinds of copies that slow down, so that a direction that does not slow
    down is not included; empty: only `from_kind`.
    """

    gpus: tuple[int, ...]
    from_kind: Kind  # the kind of copies in the sums
    alone_gb_per_s: float | None = None
    together_gb_per_s: float | None = None
    bridge: str | None = None
    agrees: bool | None = None
    slowed: tuple[Kind, ...] = ()

    @property
    def directions(self) -> tuple[Kind, ...]:
        """All kinds of copies that are known to slow down."""
        return self.slowed or (self.from_kind,)


class SoakRate(Between, frozen=True):
    """Mean rate of one copy over an interval of a soak, while other copies ran (`Soak`)."""

    gb_per_s: float


class SoakInterval(Value, frozen=True):
    """The copies of an interval, which ends `end_s` seconds after the start of the soak.

    `copied_bytes`: bytes that each GPU received and sent; bytes within its memory are counted once.
    """

    end_s: float
    rates: tuple[SoakRate, ...] = ()
    copied_bytes: dict[int, int] = msgspec.field(default_factory=dict)


class Soak(Value, frozen=True):
    """Copies under load for minutes: the host with all GPUs both ways at once, pairs of GPUs, memory.

    `asked_s`: the requested duration. The GPUs' counters and readings over this time are the machine's
    samples. `port_errors`: increase of the AER counters of PCI bridges, by PCI address and kind.
    """

    asked_s: float
    port_errors: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    intervals: tuple[SoakInterval, ...] = ()

    @property
    def copied_bytes(self) -> dict[int, int]:
        """The bytes that each GPU received and sent."""
        total: dict[int, int] = {}
        for interval in self.intervals:
            for gpu, count in interval.copied_bytes.items():
                total[gpu] = total.get(gpu, 0) + count
        return total

    def ends(self, gpu: int, kind: Kind, *, receives: bool = False) -> tuple[float, float] | None:
        """Return the rates of a GPU's copies of a kind in the first and the last quarter of its intervals.

        If the GPU copies with several others, it is the median over the GPUs that it sends to, or `receives`
        from, so that one slow peer does not change it. None if no copy ran in MIN_INTERVALS intervals.
        """
        series = grouped(
            (rate.ends, rate.gb_per_s)
            for interval in self.intervals
            for rate in interval.rates
            if rate.kind == kind and gpu == rate.gpu_ends[receives]
        )
        all_rates = [rates for rates in series.values() if len(rates) >= MIN_INTERVALS]
        if not all_rates:
            return None
        quarters = [(rates[: len(rates) // 4], rates[-(len(rates) // 4) :]) for rates in all_rates]
        return (
            median_high(median(first) for first, _ in quarters),
            median_high(median(last) for _, last in quarters),
        )


class Bandwidth(Value, frozen=True, tag_field="schema", tag="gputopo.bandwidth/1"):
    """All measurements of one session, or of the output of another tool.

    `measured_at`: seconds since the epoch. `complete` is False if the session was interrupted or the capture
    ends early.
    """

    source: str  # live, bandwidthTest, p2pBandwidthLatencyTest, nvbandwidth, ...; several are joined by " + "
    samples: Samples = msgspec.field(default_factory=Samples)
    failures: tuple[Failure, ...] = ()
    not_measured: tuple[NotMeasured, ...] = ()
    uplink_groups: tuple[UplinkGroup, ...] = ()
    level: Level | None = None
    complete: bool = True
    measured_at: float | None = None
    duration_s: float | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    notes: tuple[str, ...] = ()  # shown with the numbers
    soak: Soak | None = None
    host_load: float | None = None  # load average per logical CPU before the measurement

    def __post_init__(self) -> None:
        if not isinstance(self.samples, Samples):
            msgspec.structs.force_setattr(self, "samples", Samples(self.samples))

    @property
    def copies(self) -> tuple[CopyRate, ...]:
        """The rates of copies."""
        return self.samples.of(CopyRate)

    @property
    def gpus(self) -> set[int]:
        """The GPUs whose copies were measured or failed, and the GPUs of uplink groups."""
        gpus = [item.gpus for item in (*self.samples, *self.failures)]
        return set[int]().union(*gpus, *(group.gpus for group in self.uplink_groups))


@dataclass(frozen=True, slots=True)
class CollectiveSeries:
    """The samples of one collective operation on a set of GPUs: one run, type, operator and root."""

    samples: tuple[CollectiveRate, ...]

    @property
    def first(self) -> CollectiveRate:
        """Any sample, for the fields that are equal in all."""
        return self.samples[0]

    @property
    def is_of_nccl_tests(self) -> bool:
        """Whether nccl-tests measured it, not gputopo bench-reduction."""
        return self.first.in_place is not None  # TensorFlow's reductions do not report it

    @property
    def sizes(self) -> list[int]:
        """All sizes in bytes, each once."""
        return list(dict.fromkeys(sample.bytes for sample in self.samples if sample.bytes is not None))

    @property
    def best(self) -> CollectiveRate:
        """The sample that is judged: of the largest size, the faster of out of place and in place."""
        return max(self.samples, key=lambda sample: (sample.bytes or 0, sample.bus_gb_per_s or 0.0))

    @property
    def smallest(self) -> CollectiveRate | None:
        """The sample of the smallest size whose time is a latency, None if all are larger."""
        small = [
            sample for sample in self.samples if sample.bytes is not None and sample.bytes <= SMALL_BYTES
        ]
        return min(small, key=lambda sample: (sample.bytes or 0, bool(sample.in_place)), default=None)

    def at(self, size: int, *, in_place: bool) -> CollectiveRate | None:
        """Return the sample of one size."""
        return next(
            (sample for sample in self.samples if sample.bytes == size and bool(sample.in_place) == in_place),
            None,
        )


_MEASURED = re.compile(
    r"(?:median|repeats|spread|discarded|bus)_.*|expectation|conditions|runs?|invalid|numa_wanted"
)


@functools.cache
def identity(*besides: str) -> Callable[[Sample], tuple[object, ...]]:
    """Return a key function: samples that differ only in results, runs and `besides` have equal keys."""
    names = dict.fromkeys(name for kind in get_args(Sample) for name in kind.__struct_fields__)
    fields = [name for name in names if not _MEASURED.fullmatch(name) and name not in besides]
    return lambda sample: tuple(getattr(sample, name, None) for name in fields)


def series_of(samples: Samples) -> list[CollectiveSeries]:
    """Return the collective operations in samples, in their order."""
    key = identity("bytes", "in_place")
    by_key = grouped(((sample.run, key(sample)), sample) for sample in samples.of(CollectiveRate))
    return [CollectiveSeries(tuple(group)) for group in by_key.values()]


def gb(value: float) -> str:
    """Write GB/s with three figures: `0.73`, `11.3`, `195`."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
