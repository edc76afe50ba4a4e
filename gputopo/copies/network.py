"""The network between hosts: who sends to whom and when, by which tool, and what a card's rate allows. Pure.

All hosts follow one schedule by clocks of their own, which start when rank 0 has answered.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from gputopo.copies.jobs import matchings
from gputopo.values.bandwidth import NETWORK_ERROR, TCP, Bandwidth, Failure, NotMeasured, Sample
from gputopo.values.errors import HardwareError

Tool = Literal["tcp", "nccl-tests"]
ToolChoice = Literal["auto", "tcp", "nccl-tests"]

PROBE = "TCP probe"  # ours
NCCL_TESTS: Literal["nccl-tests"] = "nccl-tests"
_MAX_NAMED = 4  # hosts in a line
_HINT = (
    "it needs GPUs, and in PATH mpirun of Open MPI and sendrecv_perf (made with MPI=1), on all hosts, and "
    "ssh from rank 0 to the others without a password; or measure with --network-tool auto"
)


class NcclPrograms(msgspec.Struct, frozen=True, kw_only=True):
    """What nccl-tests needs of a host: the paths of mpirun and sendrecv_perf, and GPUs (their number)."""

    mpirun: str
    program: str
    gpus: int
    all_reduce: str | None = None  # the path of all_reduce_perf, None without it


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What a host has of nccl-tests; `lacks`: why it cannot use them."""

    nccl: NcclPrograms | None = None
    lacks: str = "not known"


def choose(
    asked: ToolChoice, hosts: Mapping[str, Tools | None], failed: str | None = None
) -> tuple[Tool, str | None]:
    """Return the tool that was asked for, or nccl-tests where all hosts have it, else why they have not.

    `hosts`: by name. `failed`: why nccl-tests, which were tried, measured nothing. Raises HardwareError
    where they were asked for by name and are missing somewhere, or failed.
    """
    if asked == "tcp":
        return "tcp", None
    if not (lacking := failed or _lacking(hosts)):
        return NCCL_TESTS, None
    if asked != "auto":
        raise HardwareError(f"{NCCL_TESTS} cannot measure between these hosts: {lacking}", _HINT)
    return "tcp", f"no {NCCL_TESTS}: {lacking}"


def _lacking(hosts: Mapping[str, Tools | None]) -> str:
    """Return which hosts cannot use nccl-tests, and why; empty where all can."""
    by_reason: dict[str, list[str]] = {}
    for name, tools in hosts.items():
        if tools is None or tools.nccl is None:
            by_reason.setdefault("not known" if tools is None else tools.lacks, []).append(name)
    found = [tools.nccl for tools in hosts.values() if tools and tools.nccl]
    for paths in ({one.mpirun for one in found}, {one.program for one in found}):
        if not by_reason and len(paths) > 1:
            return f"not at the same path on all hosts: {', '.join(sorted(paths)[:_MAX_NAMED])}"
    return ", ".join(f"{why} ({_named(names, len(hosts))})" for why, names in by_reason.items())


def _named(names: list[str], hosts: int) -> str:
    if len(names) == hosts:
        return "all hosts"
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(names[:_MAX_NAMED])}{more}"


AT_ONCE = "all hosts at once"

# Connections of a transfer at once. Ours: on loopback 4 carry half as much again as one (2.4 and 1.6 GB/s).
STREAMS = 4
# Above it one process that copies all bytes through sockets may be the limit, and not the card: one core
# copies about 3 GB/s. Ours.
MAX_TCP_GBIT_PER_S = 25.0
# Bytes of a packet that are not payload: IPv4 and TCP with timestamps (RFC 791, 9293, 7323) within its MTU;
# Ethernet's header, check, preamble and gap around it (IEEE 802.3).
_HEADERS = 20 + 20 + 12
_FRAME = 14 + 4 + 8 + 12

SlotKind = Literal["latency", "one way", "both ways", "at once"]


class Timing(msgspec.Struct, frozen=True):
    """How long a transfer is measured, in seconds; before that it warms up."""

    warm_s: float = 0.1
    window_s: float = 0.1
    windows: int = 5
    latency_s: float = 0.2
    gap_s: float = 0.2  # between two slots
    lead_s: float = 0.5  # until all hosts have rank 0's answer. Ours.

    @property
    def transfer_s(self) -> float:
        """Seconds of a transfer."""
        return self.warm_s + self.windows * self.window_s


QUICK = Timing()
FULL = Timing(warm_s=0.5, window_s=0.25, windows=10, latency_s=0.5)


class Slot(NamedTuple):
    """Transfers that run at the same time, from rank to rank, `start_s` after the beginning."""

    kind: SlotKind
    start_s: float
    transfers: tuple[tuple[int, int], ...]


class NetworkHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host as the others reach it. `interface`, its rate and MTU: of the card that has the address."""

    name: str
    address: str
    port: int
    interface: str | None = None
    rate_gbit_per_s: float | None = None  # None where it is not Ethernet, or not known
    mtu_bytes: int | None = None
    tools: Tools | None = None  # None where that is not known


class Order(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.network_order/1"):
    """What all hosts do. `rank`: of the host that gets it."""

    rank: int = 0
    hosts: tuple[NetworkHost, ...]
    token: str  # shows a host that a connection is of this measurement
    timing: Timing
    streams: int = STREAMS
    tool: Tool = "tcp"
    passed_over: str | None = None  # why no better tool is used


class TransferResult(msgspec.Struct, frozen=True, kw_only=True):
    """One transfer of a slot, by its sender: GB/s that arrived in each window, or microseconds."""

    slot: int
    destination: int
    values: tuple[float, ...] = ()
    error: str | None = None


class NetworkResult(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.network_result/1"
):
    """What one host measured: its transfers, or rank 0 all by nccl-tests; `error`: why that failed."""

    measured: tuple[TransferResult, ...] = ()
    nccl: Bandwidth | None = None
    error: str | None = None


def schedule(hosts: int, timing: Timing) -> list[Slot]:
    """Return the slots of all hosts: four for each round of pairs, and at the end all at once.

    In a slot of latencies and in one way each host sends or receives; in the others both.
    """
    slots: list[Slot] = []
    start_s = 0.0
    rate_s = timing.transfer_s

    def add(kind: SlotKind, transfers: Sequence[tuple[int, int]], seconds: float) -> None:
        nonlocal start_s
        slots.append(Slot(kind, start_s, tuple(transfers)))
        start_s += seconds + timing.gap_s

    for pairs in matchings(range(hosts)):
        back = [(b, a) for a, b in pairs]
        add("latency", pairs, timing.latency_s)
        add("one way", pairs, rate_s)
        add("one way", back, rate_s)
        add("both ways", [*pairs, *back], rate_s)
    if hosts > 2:
        ring = [(rank, (rank + 1) % hosts) for rank in range(hosts)]
        add("at once", ring, rate_s)
    return slots


def seconds_of(hosts: int, timing: Timing) -> float:
    """Return how long all slots take, seconds."""
    *_, last = schedule(hosts, timing)
    return timing.lead_s + last.start_s + timing.transfer_s + timing.gap_s


def expected(one: NetworkHost, other: NetworkHost) -> tuple[float, str] | None:
    """Return GB/s of TCP's payload at the rate of the slower card, and the source; None: not known.

    None also above `MAX_TCP_GBIT_PER_S`.
    """
    if one.rate_gbit_per_s is None or other.rate_gbit_per_s is None:
        return None
    rate = min(one.rate_gbit_per_s, other.rate_gbit_per_s)
    mtu = min(one.mtu_bytes or 1500, other.mtu_bytes or 1500)
    if not 0 < rate <= MAX_TCP_GBIT_PER_S or mtu <= _HEADERS:
        return None
    share = (mtu - _HEADERS) / (mtu + _FRAME)
    source = f"{rate:g} Gbit/s of the card, {share:.1%} of it payload of TCP with an MTU of {mtu}"
    return rate / 8 * share, source


def bandwidth_of(order: Order, results: Mapping[int, NetworkResult], absent: Mapping[int, str]) -> Bandwidth:
    """Return what all hosts measured. `absent`: why a host has no result, by rank."""
    slots = schedule(len(order.hosts), order.timing)
    samples: list[Sample] = []
    failures: list[Failure] = []
    for rank, result in sorted(results.items()):
        for one in result.measured:
            if not 0 <= one.slot < len(slots) or (rank, one.destination) not in slots[one.slot].transfers:
                continue  # another host's word is not trusted
            kind = slots[one.slot].kind
            if one.error is not None or not one.values:
                failures.append(_failure(order, rank, one, kind))
            else:
                samples.append(_sample(order, rank, one, kind))
    whys = [
        NotMeasured(what=f"transfers of {order.hosts[rank].name}", reason=why)
        for rank, why in sorted(absent.items())
    ]
    return Bandwidth(
        source="live",
        samples=tuple(samples),
        failures=tuple(failures),
        not_measured=tuple(whys),
        complete=not absent,
        notes=tuple(_notes(order)),
    )


def _notes(order: Order) -> list[str]:
    how = f"{PROBE}: {order.streams} connections for each transfer; RDMA was not measured"
    notes = [f"{how}; {order.passed_over}" if order.passed_over else how]
    rates = {host.rate_gbit_per_s for host in order.hosts}
    if any(rate is not None and rate > MAX_TCP_GBIT_PER_S for rate in rates):
        notes.append(
            f"cards above {MAX_TCP_GBIT_PER_S:g} Gbit/s: the CPU may limit TCP, so that hosts are compared "
            "with one another only"
        )
    elif None in rates:
        notes.append("the rate of a card is not known: hosts are compared with one another only")
    return notes


def _sample(order: Order, rank: int, one: TransferResult, kind: SlotKind) -> Sample:
    ends = ends_of(order, rank, one.destination)
    middle = median(one.values)
    is_spread = len(one.values) > 1 and middle
    spread = 100 * (max(one.values) - min(one.values)) / middle if is_spread else None
    if kind == "latency":
        return Sample(
            kind="network_latency",
            source=ends[0],
            destination=ends[1],
            median_us=middle,
            repeats_us=one.values,
            spread_percent=spread,
            tool=PROBE,
            transport=TCP,
            streams=1,
        )
    # Both ways share no link of a full-duplex network; at once each host does both.
    gb_per_s, source = expected(order.hosts[rank], order.hosts[one.destination]) or (None, None)
    return Sample(
        kind="network",
        source=ends[0],
        destination=ends[1],
        group=AT_ONCE if kind == "at once" else None,
        with_reverse=kind == "both ways",
        median_gb_per_s=middle,
        repeats_gb_per_s=one.values,
        spread_percent=spread,
        expected_gb_per_s=None if gb_per_s is None else round(gb_per_s, 3),
        expected_source=source,
        tool=PROBE,
        transport=TCP,
        streams=order.streams,
    )


def _failure(order: Order, rank: int, one: TransferResult, kind: SlotKind) -> Failure:
    source, destination = ends_of(order, rank, one.destination)
    return Failure(
        kind="network_latency" if kind == "latency" else "network",
        source=source,
        destination=destination,
        reason=NETWORK_ERROR,
        says=one.error or "nothing arrived",
    )


def ends_of(order: Order, source: int, destination: int) -> tuple[str, str]:
    """Return the places of two ranks."""
    return f"host:{order.hosts[source].name}", f"host:{order.hosts[destination].name}"
