"""The network between hosts: who sends to whom and when, by which tool, and what a card's rate allows. Pure.

The command that was typed orders each transfer of each host, and reads what that measured.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Literal, NamedTuple

import msgspec

from gputopo.copies.jobs import matchings
from gputopo.values.bandwidth import NETWORK_ERROR, TCP, Failure, Sample
from gputopo.values.errors import HardwareError
from gputopo.values.index_ranges import host_set

Tool = Literal["ib_write_bw", "nccl-tests", "tcp"]
ToolChoice = Literal["auto", "ib_write_bw", "nccl-tests", "tcp"]

PROBE = "TCP probe"  # ours
RDMA: Literal["ib_write_bw"] = "ib_write_bw"
NCCL_TESTS: Literal["nccl-tests"] = "nccl-tests"
_MAX_PATHS = 4  # in a line
_HINTS: dict[Tool, str] = {
    RDMA: "it needs perftest and an active RDMA port with the address of the host, on all hosts; or measure "
    "with --network-tool auto",
    NCCL_TESTS: "it needs GPUs, and in PATH mpirun of Open MPI and sendrecv_perf (made with MPI=1), on all "
    "hosts, and ssh from rank 0 to the others without a password; or measure with --network-tool auto",
}


class NcclPrograms(msgspec.Struct, frozen=True, kw_only=True):
    """What nccl-tests needs of a host: the paths of mpirun and sendrecv_perf, and GPUs (their number)."""

    mpirun: str
    program: str
    gpus: int
    all_reduce: str | None = None  # the path of all_reduce_perf, None without it
    variables: tuple[str, ...] = ()  # NAME=value, for all ranks where this host starts them


class RdmaPort(msgspec.Struct, frozen=True, kw_only=True):
    """The active RDMA port of the address of a host. `gid_index`: of RoCE, None for InfiniBand."""

    device: str
    port: int
    link_layer: str
    rate_gbit_per_s: float | None = None
    gid_index: int | None = None


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What a host can measure with. `lacks`: why it cannot use a tool."""

    rdma: RdmaPort | None = None
    nccl: NcclPrograms | None = None
    lacks: dict[str, str] = {}


def choose(
    asked: ToolChoice, hosts: Mapping[str, Tools | None], failed: Mapping[str, str] = {}
) -> tuple[Tool, str | None]:
    """Return the tool that was asked for, or the best that all hosts have; and why no better one.

    `hosts`: by name. `failed`: why tools that were tried measured nothing. Raises HardwareError where a tool
    was asked for by name and is missing somewhere, or failed.
    """
    passed: list[str] = []
    for tool in (RDMA, NCCL_TESTS):
        if asked not in ("auto", tool):
            continue
        if not (lacking := failed.get(tool) or _lacking(tool, hosts)):
            return tool, "; ".join(passed) or None
        if asked != "auto":
            raise HardwareError(f"{tool} cannot measure between these hosts: {lacking}", _HINTS[tool])
        passed.append(f"no {tool}: {lacking}")
    return "tcp", "; ".join(passed) or None


def _lacking(tool: Tool, hosts: Mapping[str, Tools | None]) -> str:
    """Return which hosts cannot use a tool, and why; empty where all can."""
    by_reason: dict[str, list[str]] = {}
    for name, tools in hosts.items():
        if tools is None or (tools.rdma if tool == RDMA else tools.nccl) is None:
            why = "not known" if tools is None else tools.lacks.get(tool, "not known")
            by_reason.setdefault(why, []).append(name)
    nccl = [tools.nccl for tools in hosts.values() if tools and tools.nccl]
    for paths in ({one.mpirun for one in nccl}, {one.program for one in nccl}):
        if tool == NCCL_TESTS and not by_reason and len(paths) > 1:
            return f"not at the same path on all hosts: {', '.join(sorted(paths)[:_MAX_PATHS])}"
    layers = {tools.rdma.link_layer for tools in hosts.values() if tools and tools.rdma}
    if tool == RDMA and not by_reason and len(layers) > 1:
        return f"the ports are of {' and of '.join(sorted(layers))}"
    return ", ".join(
        f"{why} ({'all hosts' if len(names) == len(hosts) else host_set(names)})"
        for why, names in by_reason.items()
    )


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
Ends = tuple[int, int]  # from rank to rank


class Timing(msgspec.Struct, frozen=True):
    """How long a transfer is measured, in seconds; before that it warms up, until all hosts have begun."""

    warm_s: float = 0.2
    window_s: float = 0.1
    windows: int = 5
    latency_s: float = 0.2

    @property
    def transfer_s(self) -> float:
        """Seconds of a transfer."""
        return self.warm_s + self.windows * self.window_s


QUICK = Timing()
FULL = Timing(warm_s=0.5, window_s=0.25, windows=10, latency_s=0.5)


class Slot(NamedTuple):
    """Transfers that run at the same time."""

    kind: SlotKind
    transfers: tuple[Ends, ...]


class NetworkHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host as the others reach it. Rate and MTU: of the card that has the address."""

    name: str
    address: str
    port: int
    token: str = ""  # which a sender must show there
    rate_gbit_per_s: float | None = None  # None where it is not Ethernet, or not known
    mtu_bytes: int | None = None
    tools: Tools | None = None  # None where that is not known


class Order(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.network_order/1"):
    """What a host is to do: a transfer by TCP to a listener, or programs to run at the same time."""

    transfer: Literal["rate", "latency"] | None = None
    address: str = ""
    port: int = 0
    token: str = ""
    timing: Timing = QUICK
    commands: tuple[tuple[str, ...], ...] = ()
    limit_s: float = 0.0  # for the programs


class Ended(NamedTuple):
    """What a program printed, and its exit code; None where it was ended, `why`."""

    text: str
    code: int | None
    why: str | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.network_done/1"):
    """What an order gave: GB/s that arrived in each window, or microseconds; or the ends of programs."""

    values: tuple[float, ...] = ()
    error: str | None = None
    ended: tuple[Ended, ...] = ()


def schedule(hosts: int) -> list[Slot]:
    """Return the slots of all hosts: four for each round of pairs, and at the end all at once.

    In a slot of latencies and in one way each host sends or receives; in the others both.
    """
    slots: list[Slot] = []
    for pairs in matchings(range(hosts)):
        back = tuple((b, a) for a, b in pairs)
        there = tuple(pairs)
        slots += [Slot("latency", there), Slot("one way", there), Slot("one way", back)]
        slots.append(Slot("both ways", (*there, *back)))
    if hosts > 2:
        slots.append(Slot("at once", tuple((rank, (rank + 1) % hosts) for rank in range(hosts))))
    return slots


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


def note_of(hosts: Sequence[NetworkHost]) -> Iterable[str]:
    """Yield what is to be known of rates by TCP between these hosts."""
    yield f"{PROBE}: {STREAMS} connections for each transfer; RDMA was not measured"
    rates = {host.rate_gbit_per_s for host in hosts}
    if any(rate is not None and rate > MAX_TCP_GBIT_PER_S for rate in rates):
        yield (
            f"cards above {MAX_TCP_GBIT_PER_S:g} Gbit/s: the CPU may limit TCP, so that hosts are compared "
            "with one another only"
        )
    elif None in rates:
        yield "the rate of a card is not known: hosts are compared with one another only"


def sample(hosts: Sequence[NetworkHost], ends: Ends, values: Sequence[float], kind: SlotKind) -> Sample:
    """Return what a transfer by TCP measured."""
    source, destination = ends_of(hosts, ends)
    middle = median(values)
    is_spread = len(values) > 1 and middle
    spread = 100 * (max(values) - min(values)) / middle if is_spread else None
    if kind == "latency":
        return Sample(
            kind="network_latency",
            source=source,
            destination=destination,
            median_us=middle,
            repeats_us=tuple(values),
            spread_percent=spread,
            tool=PROBE,
            transport=TCP,
            streams=1,
        )
    # Both ways share no link of a full-duplex network; at once each host does both.
    gb_per_s, why = expected(hosts[ends[0]], hosts[ends[1]]) or (None, None)
    return Sample(
        kind="network",
        source=source,
        destination=destination,
        group=AT_ONCE if kind == "at once" else None,
        with_reverse=kind == "both ways",
        median_gb_per_s=middle,
        repeats_gb_per_s=tuple(values),
        spread_percent=spread,
        expected_gb_per_s=None if gb_per_s is None else round(gb_per_s, 3),
        expected_source=why,
        tool=PROBE,
        transport=TCP,
        streams=STREAMS,
    )


def failure(hosts: Sequence[NetworkHost], ends: Ends, says: str, kind: SlotKind = "one way") -> Failure:
    """Return a transfer that failed."""
    source, destination = ends_of(hosts, ends)
    return Failure(
        kind="network_latency" if kind == "latency" else "network",
        source=source,
        destination=destination,
        reason=NETWORK_ERROR,
        says=says,
    )


def ends_of(hosts: Sequence[NetworkHost], ends: Ends) -> tuple[str, str]:
    """Return the places of two ranks."""
    return f"host:{hosts[ends[0]].name}", f"host:{hosts[ends[1]].name}"


# ib_write_bw: bytes of a write, its default; RDMA transfers for whole seconds, at least.
_WRITE_BYTES = 64 * 1024
RDMA_LIMIT_S = 15.0  # beside the transfer: ib_write_bw opens the device; 6 tries to reach its server. Ours.
# The server of the other host may listen a little later.
_UNTIL_THERE = """\
for n in 1 2 3 4 5 6; do
    out=$("$@" 2>&1); code=$?
    case $out in *"connect to"*) sleep 0.5 ;; *) break ;; esac
done
echo "$out"; exit $code\
"""


def rdma_commands(
    source: NetworkHost, destination: NetworkHost, port: int, timing: Timing
) -> list[list[str]]:
    """Return the commands of the sender and of the receiver, whose server is at that port.

    -F: clocks of the CPU that differ are no reason to fail. -f 0: the whole duration is measured.
    """
    found = []
    for host in (source, destination):
        rdma = _rdma(host)
        words = [RDMA, "-F", "-p", str(port), "-d", rdma.device, "-i", str(rdma.port)]
        words += [] if rdma.gid_index is None else ["-x", str(rdma.gid_index)]
        words += ["-s", str(_WRITE_BYTES), "-q", str(STREAMS), "--report_gbits"]
        found.append([*words, "-D", str(max(1, round(timing.transfer_s))), "-f", "0"])
    client, server = found
    return [["sh", "-c", _UNTIL_THERE, "sh", *client, destination.address], server]


def rdma_sample(hosts: Sequence[NetworkHost], ends: Ends, gb_per_s: float) -> Sample:
    """Return the rate of one direction by ib_write_bw; that of the slower port is expected."""
    source, destination = ends_of(hosts, ends)
    rates = [_rdma(hosts[end]).rate_gbit_per_s or 0.0 for end in ends]
    return Sample(
        kind="network",
        source=source,
        destination=destination,
        bytes=_WRITE_BYTES,
        median_gb_per_s=gb_per_s,
        repeats_gb_per_s=(gb_per_s,),
        expected_gb_per_s=round(min(rates) / 8, 3) if all(rates) else None,
        expected_source=f"{min(rates):g} Gbit/s of the RDMA port" if all(rates) else None,
        tool=RDMA,
        transport="RDMA write",
        streams=STREAMS,
    )


def rdma_note(hosts: Sequence[NetworkHost]) -> str:
    """Return how ib_write_bw measured."""
    ports = [_rdma(host) for host in hosts]
    devices = ", ".join(dict.fromkeys(port.device for port in ports))
    return f"{RDMA}: {STREAMS} queue pairs for each transfer, between {ports[0].link_layer} ports {devices}"


def _rdma(host: NetworkHost) -> RdmaPort:
    assert host.tools is not None, "the tools of all hosts are known"
    assert host.tools.rdma is not None, "the tool was chosen"
    return host.tools.rdma
