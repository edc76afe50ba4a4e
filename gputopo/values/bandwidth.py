"""Measured bandwidths as frozen values, and their JSON form (`gputopo.bandwidth/1`).

Gigabytes are 10^9 bytes.

What a number counts, per kind:

- h2d, d2h, p2p_direct, p2p_staged: every byte once, one direction;
- bidirectional: the bytes of both directions together;
- d2d_local and host_memory: every byte twice, since it is read and written in the same memory, as
  NVIDIA's bandwidthTest and STREAM do; of host_memory the source is the memory's node, the destination the
  node of the cores that copy;
- allreduce and the other collective operations: algorithm bandwidth, the bytes of the operation (of an
  allreduce of gradients: those of one replica) over the time (nccl-tests, doc/PERFORMANCE.md);
  `bus_gb_per_s` is beside it. Source and destination are both all GPUs that take part: `gpu:0,1,2,3`, `gpus`
  where the tool lists none, `hosts` where they are of several hosts;
- latency has microseconds and no bandwidth;
- network: bytes from one host to another, each once, one direction; network_bidirectional: those of both
  directions together; network_latency: microseconds of half a round trip of a small message, as perftest
  and the OSU benchmarks report it, of an RDMA read or atomic the whole.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from statistics import median, median_high
from typing import Literal, NamedTuple, TypeVar, get_args

import msgspec

from gputopo.values.ends import End, renumbered
from gputopo.values.fields import Value
from gputopo.values.grouping import grouped

# Operations of all GPUs of a group together, as NCCL and nccl-tests name them.
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
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)

Kind = Literal[
    "h2d",
    "d2h",
    "bidirectional",
    "p2p_direct",
    "p2p_staged",
    "d2d_local",
    "host_memory",
    "latency",
    "network",
    "network_bidirectional",
    "network_latency",
    Collective,
]
NETWORK: tuple[Kind, ...] = ("network", "network_bidirectional", "network_latency")

TCP = "TCP"  # transport by which TensorFlow's copies between hosts go, too
NETWORK_ERROR = "NETWORK_ERROR"  # reason of a transfer between hosts that failed
SEPARATE_RUNS = "SEPARATE_RUNS"  # reason of a collective operation whose processes did not meet

# How the bytes were moved: by a copy engine (between GPUs the source's, which writes; or the destination's,
# which reads), by a kernel that reads or writes the other side, by the cores of the host, or by the driver's
# choice where a tool did not report it.
Method = Literal["copy_engine", "copy_engine_read", "kernel_read", "kernel_write", "cpu", "driver"]
READING: tuple[Method, ...] = ("copy_engine_read", "kernel_read")  # the destination acts
KERNELS: tuple[Method, ...] = ("kernel_read", "kernel_write")

Path = Literal["direct", "staged"]
Pair = tuple[int, int]  # of GPUs, by index
GpuEnds = tuple[int | None, int | None]

# From this size on the cost of starting a copy (some 10 us) is under 3 % of its time even on 16 lanes of
# generation 5. bandwidthTest copies 32 MiB, p2pBandwidthLatencyTest 40 MB, nvbandwidth 512 MiB.
LARGE_BYTES = 16 * 1024 * 1024
# Repeats of one copy on a sound machine lie within 1 to 2 % of each other; this is well beyond. Ours.
AGREE_SHARE = 0.05
# A rate below this share of what is expected of it is never "as expected". Not measured; chosen because sound
# copies of published outputs reach 0.83 of it and more, except between CPU sockets.
LOW_SHARE = 0.70
AT_MOST = "derived: at most"  # begins the source of an expectation that is a limit
# Ours: fewer have no first and last quarter to compare.
MIN_INTERVALS = 4

Level = Literal["quick", "full"]

# Why a number is shown and never used (gputopo.copies.physics): it is of a cache and not of the memory; above
# what any link of the GPU carries; at odds with the other numbers of the same path.
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
# Up to this size a time is that of starting the operation, not of its bytes.
SMALL_BYTES = 8 * 1024


class Conditions(Value, frozen=True):
    """What NVML reported of one GPU while copies ran: the median of its readings, None where refused.

    `readings`: how many began and ended inside the timed windows. Where there are none, since the windows
    were shorter than a reading, the values are those of `readings_beside`: begun inside a window, ended after
    it. `pcie_gen` and `pcie_width` are the link's under load; `link_changes` how often it changed within the
    windows.
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
    """What went from one end to another."""

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
        """The GPU at each end, None for any other end, and for several GPUs that work together."""
        return self.source.gpu, self.destination.gpu

    @property
    def gpus(self) -> tuple[int, ...]:
        """The GPUs of both ends, each once, those of the source first."""
        return tuple(dict.fromkeys((*self.source.gpus, *self.destination.gpus)))

    @property
    def pair(self) -> Pair | None:
        """Source and destination if both are GPUs and differ."""
        source, destination = self.gpu_ends
        if source is None or destination is None or source == destination:
            return None
        return source, destination

    @property
    def host_gpu(self) -> int | None:
        """The one GPU of a copy from or to the host."""
        source, destination = self.gpu_ends
        if (source is None) == (destination is None):
            return None
        return source if destination is None else destination


class Run(Value, frozen=True):
    """The number of one of several runs: GB/s, of a latency microseconds. `name`: None for one without."""

    name: str | None
    value: float


class Sample(Between, frozen=True):
    """One measured number with everything that it rests on.

    `group` names a set of copies that ran at the same time; None: it ran alone. `with_reverse`: a copy in the
    other direction ran at the same time, whose bytes are not counted (`bidirectional` counts both); its group
    has one GPU, or all of them both ways. `median_*` is over `repeats_*`, which holds every repeat that
    counts; `discarded_gb_per_s` those taken during clock ramp-up. `runs`: the numbers of all runs, of which
    the median is the lower median (gputopo.copies.physics).
    """

    bytes: int | None = None
    pinned: bool | None = None
    method: Method | None = None
    path: Path | None = None  # for GPU pairs in `bidirectional` and `latency`
    group: str | None = None
    with_reverse: bool = False
    numa_node: int | None = None  # where most of the host memory lies, None if not bound
    numa_wanted: int | None = None  # the node that it was asked for, where not all of it lies there
    median_gb_per_s: float | None = None
    repeats_gb_per_s: tuple[float, ...] = ()
    spread_percent: float | None = None  # (largest - smallest) / median
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
    ranks: int | None = None  # of a collective operation: how many GPUs, over all hosts
    hosts: int | None = None  # None: unknown
    in_place: bool | None = None  # whether a collective wrote into the memory that it read
    data_type: str | None = None  # of a collective: float, bfloat16, ...
    reduction: str | None = None  # sum, max, ...; None for an operation that reduces nothing
    root: int | None = None  # rank that sends (broadcast, scatter) or receives (reduce, gather)
    # Of NCCL's log and command, of the network by nccl-tests too: P2P, SHM, NET, NET/IB, GDRDMA, card mlx5_0,
    # NVLS, no NVLS, NCCL_ALGO=Ring
    nccl: tuple[str, ...] = ()
    tool: str | None = None  # of the network, the program that measured: iperf3, ib_write_bw, nccl-tests, ...
    transport: str | None = None  # of the network: TCP, UDP, RDMA write, NCCL, ...
    streams: int | None = None  # of the network: connections, or queue pairs, at once
    run: str | None = None  # which run of the tool it is of, where a text holds several
    runs: tuple[Run, ...] = ()
    invalid: Invalid | None = None  # why it is not used, None for a number without objection

    @property
    def rate(self) -> float:
        """Its rate in GB/s, 0 where it has none."""
        return self.median_gb_per_s or 0.0

    @property
    def is_large(self) -> bool:
        """Whether it is a valid rate of copies that are large, or of a size that is unknown."""
        is_rate = self.invalid is None and bool(self.median_gb_per_s)
        return is_rate and (self.bytes is None or self.bytes >= LARGE_BYTES)

    @property
    def run_values(self) -> list[float]:
        """The numbers of all runs of a tool."""
        return [run.value for run in self.runs]

    @property
    def runs_agree(self) -> bool:
        """Whether all runs of a tool gave about the same number: within noise of their median."""
        middle = median(self.run_values or [0.0])
        return all(abs(value - middle) <= AGREE_SHARE * middle for value in self.run_values)

    @property
    def is_by_copy_engine(self) -> bool:
        """Whether it was made as programs make it: not by a kernel, nor read by the destination."""
        return self.method not in (*READING, "kernel_write")

    @property
    def is_direct(self) -> bool:
        """Whether it is between two GPUs and not over host memory."""
        return self.kind == "p2p_direct" or (self.kind == "bidirectional" and self.path != "staged")

    @property
    def directions(self) -> int:
        """How many directions its rate counts."""
        return 2 if self.kind == "bidirectional" else 1

    @property
    def one_way_rate(self) -> float:
        """Its rate in GB/s in one direction: of both at once half of their sum."""
        return self.rate / self.directions

    @property
    def floor_gb_per_s(self) -> float:
        """The rate in GB/s below which it is lower than expected; 0 where nothing is expected."""
        return max(self.expected_low_gb_per_s or 0.0, LOW_SHARE * (self.expected_gb_per_s or 0.0))

    @property
    def expects_at_most(self) -> bool:
        """Whether its expectation is a limit, which few machines reach."""
        return (self.expected_source or "").startswith(AT_MOST)

    @property
    def is_collective(self) -> bool:
        """Whether it is of a collective operation, and so of no single path."""
        return self.kind in COLLECTIVES

    @property
    def one_way_group(self) -> str | None:
        """Its group if all copies of that go in its direction, None where one goes back."""
        return None if self.with_reverse else self.group


class Expectation(NamedTuple):
    """What a number should reach, and at least reaches on sound machines, in GB/s.

    Without a rate it is only words about it. `without_nvls`: what a ring reaches if NVSwitches could reduce.
    """

    source: str
    gb_per_s: float | None = None
    low_gb_per_s: float | None = None
    without_nvls: float | None = None

    @property
    def is_limit(self) -> bool:
        """Whether it is what the links carry at most, which few machines reach."""
        return self.source.startswith(AT_MOST)

    def beside(self, sample: Sample, digits: int) -> Sample:
        """Return the sample with this expectation, rounded."""
        return msgspec.structs.replace(
            sample,
            expected_gb_per_s=self.gb_per_s and round(self.gb_per_s, digits),
            expected_low_gb_per_s=self.low_gb_per_s and round(self.low_gb_per_s, digits),
            expected_source=self.source,
        )


class Failure(Between, frozen=True):
    """A copy that went wrong; the others went on.

    `reason` is the driver's name of the error (`CUDA_ERROR_...`), or `WRONG_DATA`; `TIMED_OUT`; `CRASHED`: a
    call of the driver ended the measuring process; `NOT_HELD`: the driver did not take all copies of a window
    while they were held back, or cannot hold a stream back, so that none could be timed.
    """

    reason: str
    says: str
    method: Method | None = None
    path: Path | None = None
    pinned: bool | None = None
    group: str | None = None


Measured = TypeVar("Measured", Sample, Failure)


def with_new_indices(one: Measured, gpus: Mapping[int, int]) -> Measured:
    """Return a number or a failure with the new index of each GPU; a GPU without one keeps its own."""
    source, destination = (End(renumbered(end, gpus)) for end in one.ends)
    group = one.group and renumbered(one.group, gpus)
    moved = msgspec.structs.replace(one, source=source, destination=destination, group=group)
    if isinstance(moved, Sample):
        seen = [msgspec.structs.replace(c, gpu=gpus.get(c.gpu, c.gpu)) for c in moved.conditions]
        return msgspec.structs.replace(moved, conditions=tuple(seen))
    return moved


class NotMeasured(Value, frozen=True):
    """A number that was not taken, and why. It is no failure and no pass. `what` is in words."""

    what: str
    reason: str


class UplinkGroup(Value, frozen=True):
    """GPUs that slow one another down when they copy to or from the host at once.

    `alone_gb_per_s` and `together_gb_per_s` are sums over the group. `bridge`: where their paths meet in the
    PCI tree, None where the tree shows no such place. `agrees`: whether the tree has these GPUs behind one
    uplink; None: no tree to compare with. `slowed`: all kinds of copies that slow down, so that one direction
    that does not is not in it; empty: `from_kind` alone.
    """

    gpus: tuple[int, ...]
    from_kind: Kind  # the copies whose sums these are
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
    """Mean rate of one copy over an interval of a soak; it ran beside others (`Soak`)."""

    gb_per_s: float


class SoakInterval(Value, frozen=True):
    """What was copied up to `end_s`, seconds since the beginning of the soak, and after the interval before.

    `copied_bytes`: by GPU, what it received and sent; within its memory every byte once.
    """

    end_s: float
    rates: tuple[SoakRate, ...] = ()
    copied_bytes: dict[int, int] = msgspec.field(default_factory=dict)


class Soak(Value, frozen=True):
    """Copies under load for minutes: the host with all GPUs both ways at once, pairs of GPUs, memory.

    `asked_s`: how long it was to be. The GPUs' counters and readings over its time are the machine's samples.
    `port_errors`: by how much the AER counters of PCI bridges rose, by PCI address and kind.
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
        """Return the rate of a GPU's copies of a kind in the first and the last quarter of its intervals.

        Of a GPU with several others the median pair of those that it sends to, or `receives` from, so that
        one slow GPU is not that of all; None where no copy ran in MIN_INTERVALS intervals.
        """
        series = grouped(
            (one.ends, one.gb_per_s)
            for interval in self.intervals
            for one in interval.rates
            if one.kind == kind and gpu == one.gpu_ends[receives]
        )
        found = [rates for rates in series.values() if len(rates) >= MIN_INTERVALS]
        if not found:
            return None
        quarters = [(rates[: len(rates) // 4], rates[-(len(rates) // 4) :]) for rates in found]
        return (
            median_high(median(first) for first, _ in quarters),
            median_high(median(last) for _, last in quarters),
        )


class Bandwidth(Value, frozen=True, tag_field="schema", tag="gputopo.bandwidth/1"):
    """All that was measured in one session, or read from another tool's output.

    `measured_at`: seconds since the epoch. `complete` is False where it was interrupted, or the capture ends
    early.
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
    notes: tuple[str, ...] = ()  # to be shown with the numbers
    soak: Soak | None = None
    host_load: float | None = None  # load average before the measurement, of the logical CPUs

    @property
    def gpus(self) -> set[int]:
        """The GPUs whose copies were measured or failed, and those of uplink groups."""
        found = [one.gpus for one in (*self.samples, *self.failures)]
        return set[int]().union(*found, *(group.gpus for group in self.uplink_groups))


@dataclass(frozen=True, slots=True)
class CollectiveSeries:
    """The samples of one operation of one set of GPUs: one run, type, operator and root."""

    samples: tuple[Sample, ...]

    @property
    def first(self) -> Sample:
        """Any sample: for what all have in common."""
        return self.samples[0]

    @property
    def is_of_nccl_tests(self) -> bool:
        """Whether nccl-tests measured it, and not gputopo bench-reduction."""
        return self.first.in_place is not None  # TensorFlow's reductions do not report it

    @property
    def sizes(self) -> list[int]:
        """All sizes in bytes, each once."""
        return list(dict.fromkeys(one.bytes for one in self.samples if one.bytes is not None))

    @property
    def best(self) -> Sample:
        """The sample that is judged: of the largest size, the faster one of out of place and in place."""
        return max(self.samples, key=lambda one: (one.bytes or 0, one.bus_gb_per_s or 0.0))

    @property
    def smallest(self) -> Sample | None:
        """The sample of the smallest size whose time is a latency, None where there is none."""
        small = [one for one in self.samples if one.bytes is not None and one.bytes <= SMALL_BYTES]
        return min(small, key=lambda one: (one.bytes or 0, bool(one.in_place)), default=None)

    def at(self, size: int, *, in_place: bool) -> Sample | None:
        """Return the sample of one size."""
        return next(
            (one for one in self.samples if one.bytes == size and bool(one.in_place) == in_place), None
        )


_MEASURED = re.compile(
    r"(?:median|repeats|spread|discarded|expected|bus)_.*|conditions|runs?|invalid|numa_wanted"
)


@functools.cache
def identity(*besides: str) -> Callable[[Sample], object]:
    """Return what gives equal values for samples of the same thing, whatever the run and these fields are."""
    fields = (one for one in Sample.__struct_fields__ if not _MEASURED.fullmatch(one) and one not in besides)
    return attrgetter(*fields)


def series_of(samples: Iterable[Sample]) -> list[CollectiveSeries]:
    """Return the collective operations among samples, in their order."""
    of = identity("bytes", "in_place")
    found = grouped(((one.run, of(one)), one) for one in samples if one.kind in COLLECTIVES)
    return [CollectiveSeries(tuple(one)) for one in found.values()]


def gb(value: float) -> str:
    """Write GB/s with three figures: `0.73`, `11.3`, `195`."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


# 1.4826 median deviations are one standard deviation of normal noise.
DEVIATION = 1.4826


def noise_share(repeats: tuple[float, ...]) -> float:
    """Return one standard deviation of repeats as a share of their median; 0 where there are under three."""
    if len(repeats) < 3:
        return 0.0
    middle = median(repeats)
    deviation = DEVIATION * median(abs(repeat - middle) for repeat in repeats)
    return deviation / middle if middle > 0 else 0.0
