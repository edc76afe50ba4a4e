"""The programs that can measure the network between hosts, and which of them a measurement uses. Pure.

All pairs of a measurement are measured by the same one, so that their numbers can be compared.
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from gputopo.values.errors import HardwareError

Tool = Literal["tcp", "iperf3", "nccl-tests", "ib_write_bw"]
ToolChoice = Literal["auto", "tcp", "iperf3", "nccl-tests", "ib_write_bw"]
Program = Literal["iperf3", "ib_write_bw", "ib_write_lat"]

PROBE = "TCP probe"  # ours
NCCL_TESTS: Literal["nccl-tests"] = "nccl-tests"
# Between the cards alone; by NCCL, as GPUs exchange gradients; by TCP, which may be no path of the former.
_BEST_FIRST: tuple[Tool, ...] = ("ib_write_bw", NCCL_TESTS, "iperf3")
_MIN_INTERVAL_S = 0.1  # of iperf3's reports
_MAX_NAMED = 4  # hosts in a line
_HINTS: dict[Tool, str] = {
    "iperf3": "install iperf3 on all hosts, or measure with --network-tool auto",
    NCCL_TESTS: "it needs GPUs, and in PATH mpirun of Open MPI and sendrecv_perf (made with MPI=1), on all "
    "hosts, and ssh from rank 0 to the others without a password; or measure with --network-tool auto",
    "ib_write_bw": "see gputopo inspect for the RDMA ports, install perftest on all hosts, or measure with "
    "--network-tool auto",
}


class Uses(NamedTuple):
    """The programs that each host starts for a tool; seconds that one takes beside its transfer, at most.

    None for the TCP probe, and for nccl-tests, which rank 0 starts on all hosts.

    iperf3 takes 0.02 s on loopback; perftest opens the device and registers memory. Ours.
    """

    rate: Program | None = None
    latency: Program | None = None
    start_s: float = 0.0


USES: dict[Tool, Uses] = {
    "tcp": Uses(),
    "iperf3": Uses("iperf3", None, 1.0),
    NCCL_TESTS: Uses(),
    "ib_write_bw": Uses("ib_write_bw", "ib_write_lat", 2.0),
}


class Rdma(msgspec.Struct, frozen=True, kw_only=True):
    """An active RDMA port. `gid_index`: of RoCE, that of the host's address; None for InfiniBand.

    `on_path`: whether its interface has the address at which the others reach the host.
    """

    device: str
    port: int
    link_layer: str
    rate_gbit_per_s: float | None = None
    gid_index: int | None = None
    on_path: bool = True


class Nccl(msgspec.Struct, frozen=True, kw_only=True):
    """What nccl-tests needs of a host: the paths of mpirun and sendrecv_perf, and GPUs (their number).

    `all_reduce`: the path of all_reduce_perf, None without it.
    """

    mpirun: str
    program: str
    gpus: int
    all_reduce: str | None = None


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """What a host can measure with. `lacks`: why it cannot use a tool; without an entry it can."""

    rdma: Rdma | None = None
    nccl: Nccl | None = None
    lacks: dict[str, str] = {}


class Choice(NamedTuple):
    """The tool of a measurement. `passed_over`: why it is not a better one, None where that was not asked."""

    tool: Tool
    passed_over: str | None = None


def choose(
    asked: ToolChoice, hosts: Mapping[str, Tools | None], failed: Mapping[Tool, str] | None = None
) -> Choice:
    """Return the tool that was asked for, or the best one that all hosts have. `hosts`: by name.

    `failed`: tools that were tried, and why they measured nothing. Raises HardwareError where a tool that was
    asked for by name is missing somewhere, or failed.
    """
    if asked == "tcp":
        return Choice("tcp")
    passed: list[str] = []
    for tool in _BEST_FIRST:
        if asked not in ("auto", tool):
            continue
        lacking = (failed or {}).get(tool) or _lacking(tool, hosts, on_path=asked == "auto")
        if not lacking:
            return Choice(tool, _not_used(passed))
        if asked != "auto":
            raise HardwareError(f"{tool} cannot measure between these hosts: {lacking}", _HINTS[tool])
        passed.append(f"{tool}: {lacking}")
    return Choice("tcp", _not_used(passed))


def _not_used(passed: list[str]) -> str | None:
    return "; ".join(f"no {words}" for words in passed) or None


def _lacking(tool: Tool, hosts: Mapping[str, Tools | None], *, on_path: bool) -> str:
    """Return which hosts cannot use a tool, and why; empty where all can."""
    by_reason: dict[str, list[str]] = {}
    for name, tools in hosts.items():
        if (why := _why_not(tool, tools, on_path=on_path)) is not None:
            by_reason.setdefault(why, []).append(name)
    if not by_reason and tool == "ib_write_bw":
        layers = {tools.rdma.link_layer for tools in hosts.values() if tools and tools.rdma}
        if len(layers) > 1:
            return f"the ports are of {' and of '.join(sorted(layers))}"
    if not by_reason and tool == NCCL_TESTS:
        found = [tools.nccl for tools in hosts.values() if tools and tools.nccl]
        for paths in ({one.mpirun for one in found}, {one.program for one in found}):
            if len(paths) > 1:
                return f"not at the same path on all hosts: {', '.join(sorted(paths)[:_MAX_NAMED])}"
    return ", ".join(f"{why} ({_named(names, len(hosts))})" for why, names in by_reason.items())


def _why_not(tool: str, tools: Tools | None, *, on_path: bool) -> str | None:
    if tools is None:
        return "not known"
    if tool in tools.lacks or tool not in ("ib_write_bw", NCCL_TESTS):
        return tools.lacks.get(tool)
    if tool == NCCL_TESTS:
        return None if tools.nccl else "not known"
    if tools.rdma is None:
        return "no active RDMA port"
    if on_path and not tools.rdma.on_path:
        return f"{tools.rdma.device} is not of the interface at which the hosts meet"
    return None


def _named(names: list[str], hosts: int) -> str:
    if len(names) == hosts:
        return "all hosts"
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{', '.join(names[:_MAX_NAMED])}{more}"


def whole_seconds(seconds: float) -> int:
    """Return the duration that a program is given, which takes whole seconds."""
    return max(1, math.ceil(seconds - 1e-6))


def interval_s(window_s: float) -> float:
    """Return the interval of iperf3's reports for a window."""
    return max(_MIN_INTERVAL_S, window_s)
