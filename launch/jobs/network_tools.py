"""The network between hosts: which program measures it, with which commands, and what rate is expected.

Uses three external programs: iperf3 (TCP), perftest's ib_write_bw (RDMA), and nccl-tests with Open MPI's
mpirun (NCCL between GPUs). In a round, each host has one partner.
"""

import ipaddress
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from msgspec.structs import replace

from gputopo.values.bandwidth import (
    NCCL_TESTS,
    NETWORK_ERROR,
    Expectation,
    Failure,
    NetworkTool,
    NetworkToolChoice,
    TransferRate,
)
from gputopo.values.ends import End
from gputopo.values.errors import HardwareError
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import host_set
from gputopo.values.machine import NicPort

RDMA: Literal["ib_write_bw"] = "ib_write_bw"
IPERF3: Literal["iperf3"] = "iperf3"

# The programs that each tool needs on every host, and how to get them.
PROGRAMS: dict[NetworkTool, tuple[str, ...]] = {
    RDMA: ("ib_write_bw",),
    NCCL_TESTS: ("mpirun", "sendrecv_perf"),
    IPERF3: ("iperf3",),
}
ALL_REDUCE = "all_reduce_perf"
# Suffixes of nccl-tests programs built with MPI=1: none, or the one that NAME_SUFFIX=_mpi gives (preferred).
_SUFFIXES = ("", "_mpi")
HINTS: dict[NetworkTool, str] = {
    IPERF3: "install iperf3 on all hosts: apt install iperf3, dnf install iperf3",
    RDMA: "install perftest on all hosts, which need an active RDMA port: apt install perftest",
    NCCL_TESTS: "on all hosts: GPUs, Open MPI, and sendrecv_perf of nccl-tests in PATH, built with MPI=1; "
    "ssh from the first host to the others without a password",
}
STREAMS = 4  # connections or queue pairs in a transfer; not measured
SECONDS = {"quick": 2, "full": 10}  # for a transfer; not measured
START_S = 15.0  # for a program in addition to its transfer; ib_write_bw opens the device. Not measured
PORTS = range(20_000, 32_000)  # for servers: below the ports of outgoing connections

BYTES = 64 * 2**20  # in a message of sendrecv_perf: NCCL nearly reaches its rate. Not measured
ALL_BYTES = 256 * 2**20  # in an all-reduce: from this size its bus bandwidth is judged
PAIR_LIMIT_S, ALL_LIMIT_S = 60.0, 120.0  # for a run of nccl-tests: NCCL starts on all GPUs. Not measured
_MAX_LOGS = 64  # ranks that log, 12 KB each
_WRITE_BYTES = 64 * 1024  # in an RDMA write: ib_write_bw's default
# Above this rate, the limit may be the process that copies all bytes through sockets, not the card: one core
# copies about 3 GB/s. Not measured on each CPU.
MAX_TCP_GBIT_PER_S = 25.0
# Bytes of a packet that are not payload: IPv4 and TCP with timestamps (RFC 791, 9293, 7323) within the MTU,
# and Ethernet's header, checksum, preamble and gap outside it (IEEE 802.3).
_HEADERS = 20 + 20 + 12
_FRAME = 14 + 4 + 8 + 12
# The server on the other host may start to listen a little later.
_UNTIL_THERE = """\
for n in 1 2 3 4 5 6; do
    out=$("$@" 2>&1); code=$?
    case $out in *"connect to"*) sleep 0.5 ;; *) break ;; esac
done
printf '%s\\n' "$out"; exit $code\
"""
# Variables that another mpirun, or srun, has set for this process: "mpirun does not support recursive calls",
# and in a Slurm step it would wait for the CPUs of this step. Parameters of networks and ssh are kept, and
# permission to run as root.
_OF_STARTERS = re.compile(
    r"(?!(?:OMPI|PRTE|PMIX)_MCA_(?:btl|pml|mtl|oob|coll|plm_rsh|plm_ssh)_)(?!OMPI_ALLOW_RUN_AS_ROOT)"
    r"(?:OMPI|PMIX|PRTE|ORTE|OPAL|PMI|SLURM|HYDRA)_\w+|NCCL_(?:DEBUG|TESTS)\w*"
)
_SSH = ("OMPI_MCA_plm_rsh_args", "-o BatchMode=yes -o ConnectTimeout=10")
_OF_RANKS = re.compile(r"(?!NCCL_(?:DEBUG|TESTS))NCCL_\w+|LD_LIBRARY_PATH")
_LOG = ("-x", "NCCL_DEBUG=INFO", "-x", "NCCL_DEBUG_SUBSYS=INIT,NET")

Ends = tuple[int, int]  # (sending rank, receiving rank)
Command = tuple[int, tuple[str, ...]]  # (the rank of its host, the arguments)


class NetworkHost(NamedTuple):
    """A host as other hosts reach it. `programs`: paths by name. `rdma`: the port with that address, or any.

    Rate and MTU belong to the card with the address. The rate is None if it is not Ethernet, or unknown.
    """

    name: str
    address: str
    programs: Mapping[str, str] = {}
    gpus: int = 0
    rdma: NicPort | None = None
    rate_gbit_per_s: float | None = None
    mtu_bytes: int | None = None


def network_programs() -> dict[str, str]:
    """Return the paths of the programs in PATH that measure the network, by name."""
    names = (ALL_REDUCE, *(name for of_tool in PROGRAMS.values() for name in of_tool))
    return {name: path for name in names for suffix in _SUFFIXES if (path := shutil.which(f"{name}{suffix}"))}


def choose(asked: NetworkToolChoice, hosts: Sequence[NetworkHost]) -> tuple[NetworkTool, str | None]:
    """Return the requested tool, or the first that all hosts have, and why earlier tools cannot be used.

    Raises HardwareError, which says what to install, if there is none.
    """
    why: list[str] = []
    for tool in get_args(NetworkTool) if asked == "auto" else (asked,):
        if not (lacking := _lacking(tool, hosts)):
            return tool, "; ".join(why) or None
        why.append(f"no {tool}: {lacking}")
    hint = HINTS[IPERF3 if asked == "auto" else asked]
    raise HardwareError(f"no tool can measure between these hosts: {'; '.join(why)}", hint)


def _lacking(tool: NetworkTool, hosts: Sequence[NetworkHost]) -> str:
    """Return which hosts cannot use a tool, and why; empty if all can."""
    by_reason = grouped((why, host.name) for host in hosts if (why := _lacks(tool, host)) is not None)
    return ", ".join(
        f"{why} ({'all hosts' if len(names) == len(hosts) else host_set(names)})"
        for why, names in by_reason.items()
    )


def _lacks(tool: NetworkTool, host: NetworkHost) -> str | None:
    if absent := [name for name in PROGRAMS[tool] if name not in host.programs]:
        return f"{absent[0]} is not installed"
    if tool == NCCL_TESTS and not host.gpus:
        return "no GPU"
    if tool == RDMA and host.rdma is None:
        return "no active RDMA port"
    try:  # the address came over the network, and is passed to programs
        address = ipaddress.ip_address(host.address)
    except ValueError:
        return "no IP address"
    return None if tool == IPERF3 or address.version == 4 else "no IPv4 address"


def rounds(tool: NetworkTool, hosts: int) -> list[list[Ends]]:
    """Return the transfers of each round. A transfer of nccl-tests has both directions.

    For the other tools, the last round is a ring of all hosts if there are three or more.
    """
    if tool == NCCL_TESTS:
        return matchings(range(hosts))
    transfers = [way for pairs in matchings(range(hosts)) for way in (pairs, [(b, a) for a, b in pairs])]
    return [*transfers, [(rank, (rank + 1) % hosts) for rank in range(hosts)]] if hosts > 2 else transfers


def matchings(members: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return rounds of pairs in which each member has one partner. Together they contain each pair once.

    Uses the circle method: one member is fixed, the others rotate. With an odd number of members, one has no
    partner in each round.
    """
    circle: list[int | None] = [*members, *([None] if len(members) % 2 else [])]
    rounds = []
    for _ in range(1, len(circle)):
        ends = zip(circle, reversed(circle), strict=True)
        pairs = [(a, b) for a, b in ends if a is not None and b is not None]
        rounds.append(pairs[: len(members) // 2])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def transfer(
    tool: NetworkTool,
    hosts: Sequence[NetworkHost],
    ends: Ends,
    seconds: int,
    port: int,
    environ: Mapping[str, str],
) -> list[Command]:
    """Return the commands of a transfer. The first prints the rate. `port`: the server's port."""
    if tool == NCCL_TESTS:
        return [nccl_command([(hosts[rank].address, 1) for rank in ends], hosts[0], seconds, environ)]
    source, destination = (hosts[rank] for rank in ends)
    if tool == IPERF3:
        server: tuple[str, ...] = ("-s", "-1", "-B", destination.address, "-p", str(port))
        client: tuple[str, ...] = ("-c", destination.address, "-p", str(port), "-P", str(STREAMS))
        client = (*client, "-t", str(seconds), "-O", "1", "-i", "0.5", "-J")
    else:
        # -F: do not fail if CPU clocks differ. -f 0: measure the whole duration.
        options = ("-s", str(_WRITE_BYTES), "-q", str(STREAMS), "-D", str(seconds), "-f", "0")
        of_both = ("-F", "-p", str(port), "--report_gbits", *options)
        client, server = ((*_device(host), *of_both) for host in (source, destination))
        client = (*client, destination.address)
    program, other_program = (host.programs[PROGRAMS[tool][0]] for host in (source, destination))
    return [
        (ends[0], ("sh", "-c", _UNTIL_THERE, "sh", program, *client)),
        (ends[1], (other_program, *server)),
    ]


def _device(host: NetworkHost) -> tuple[str, ...]:
    """Return ib_write_bw's options for the port. It chooses the RoCE v2 GID with an IPv4 address itself."""
    assert host.rdma is not None, "the tool was chosen"
    return ("-d", host.rdma.rdma_device or "", "-i", str(host.rdma.rdma_port or 1))


def nccl_command(
    ranks: Sequence[tuple[str, int]],
    first: NetworkHost,
    seconds: int,
    environ: Mapping[str, str],
    program: str = "sendrecv_perf",
) -> Command:
    """Return the command that runs nccl-tests, for the first host. `ranks`: the GPUs at each address.

    NCCL's variables are passed by name, so that no value is in the command.
    """
    places = ",".join(f"{address}:{number}" for address, number in ranks)
    count = sum(number for _, number in ranks)
    size = str(ALL_BYTES if program == ALL_REDUCE else BYTES)
    without = [f"--unset={name}" for name in sorted(environ) if _OF_STARTERS.fullmatch(name)]
    ssh, value = _SSH
    names = [word for name in sorted(environ) if _OF_RANKS.fullmatch(name) for word in ("-x", name)]
    words = (
        *("env", *without, *([] if ssh in environ else [f"{ssh}={value}"])),
        *(first.programs["mpirun"], "--bind-to", "none", "--host", places, "-np", str(count)),
        *(*names, *(_LOG if count <= _MAX_LOGS else ()), first.programs[program]),
        *("-b", size, "-e", size, "-g", "1", "-w", "2", "-n", str(5 * seconds)),
    )
    return 0, words


def placed(
    tool: NetworkTool, hosts: Sequence[NetworkHost], ends: Ends, measured: TransferRate
) -> list[TransferRate]:
    """Return a program's samples for these hosts, with the rates expected from their cards."""
    source, destination = (End.of_host(hosts[rank].name) for rank in ends)
    sample = replace(measured, source=source, destination=destination)
    if tool == NCCL_TESTS:
        return [sample, replace(sample, source=destination, destination=source)]
    return [replace(sample, expectation=expected(tool, [hosts[rank] for rank in ends]).rounded(3))]


def expected(tool: NetworkTool, hosts: Sequence[NetworkHost]) -> Expectation:
    """Return the rate in GB/s that the slower card of two hosts allows, if known.

    For TCP this is the payload, and unknown above `MAX_TCP_GBIT_PER_S`.
    """
    if tool == RDMA:
        rate = min((host.rdma and host.rdma.rate_gbit_per_s) or 0.0 for host in hosts)
        return Expectation(f"{rate:g} Gbit/s of the RDMA port", rate / 8) if rate else Expectation()
    rate = min(host.rate_gbit_per_s or 0.0 for host in hosts)
    mtu = min(host.mtu_bytes or 1500 for host in hosts)
    if not 0 < rate <= MAX_TCP_GBIT_PER_S or mtu <= _HEADERS:
        return Expectation()
    share = (mtu - _HEADERS) / (mtu + _FRAME)
    source = f"{rate:g} Gbit/s of the card, {share:.1%} of it payload of TCP with an MTU of {mtu}"
    return Expectation(source, rate / 8 * share)


def failure(hosts: Sequence[NetworkHost], ends: Ends, says: str) -> Failure:
    """Return a transfer that failed."""
    source, destination = (End.of_host(hosts[rank].name) for rank in ends)
    return Failure(kind="network", source=source, destination=destination, reason=NETWORK_ERROR, says=says)


def method(tool: NetworkTool, hosts: Sequence[NetworkHost], samples: Sequence[TransferRate]) -> str:
    """Return a text that says how a tool measured these samples."""
    if tool == RDMA:
        devices = ", ".join(dict.fromkeys(_device(host)[1] for host in hosts))
        return f"{RDMA}: {STREAMS} queue pairs for each transfer, between ports of {devices}"
    alone = "; nothing is expected of these cards: hosts are only compared with each other"
    if all(sample.expectation.gb_per_s for sample in samples):
        alone = ""
    if tool == IPERF3:
        return f"{IPERF3}: {STREAMS} connections for each transfer{alone}"
    facts = ", ".join(dict.fromkeys(fact for sample in samples for fact in sample.nccl))
    paths = f"; NCCL's log has {facts}" if facts else ""
    messages = f"messages of {BYTES >> 20} MiB in both directions at once, the rate of one of them"
    return f"{NCCL_TESTS}: sendrecv_perf between GPU 0 of each two hosts, {messages}{paths}{alone}"
