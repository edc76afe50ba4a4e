"""The network between hosts by nccl-tests: rank 0 runs it on pairs of hosts, in rounds, and on all GPUs."""

import ipaddress
import signal
from collections import Counter
from collections.abc import Mapping
from functools import partial

from gputopo.copies.jobs import matchings
from gputopo.copies.network.by_nccl import (
    ALL_LIMIT_S,
    LIMIT_S,
    Pair,
    Rate,
    all_command,
    bandwidth_of_pairs,
    environment,
    pair_command,
    with_all,
)
from gputopo.copies.network.schedule import Host, Order
from gputopo.copies.network.tools import Nccl
from gputopo.probes.network.nccl_tests import Ended, all_reduce_of, rate_of, run_all
from gputopo.probes.processes import tethered
from gputopo.values.bandwidth import Bandwidth

# With so many partners a host has failed before it is left out; so many rounds have measured nothing before
# no other is begun. Each may take LIMIT_S. Ours.
_MAX_FAILED = 2
# mpirun ends its job at SIGTERM; killed, it would leave ranks behind.
_WRAP = partial(tethered, signum=signal.SIGTERM)
_LEFT_OUT = "left out: it failed with other hosts, or they did"


def measure_by_nccl(order: Order, environ: Mapping[str, str]) -> Bandwidth | str:
    """Measure from here, the host of rank 0; return why where no pair could be.

    All GPUs at once are measured where no pair failed.
    """
    found: dict[Pair, Rate | str] = {}
    failures: Counter[int] = Counter()
    if (strange := _strange(order.hosts[1:])) is not None:
        return strange
    for number, pairs in enumerate(matchings(range(len(order.hosts)))):
        rates = any(isinstance(one, Rate) for one in found.values())
        if number >= _MAX_FAILED and not rates:
            break
        tried = [pair for pair in pairs if all(failures[rank] < _MAX_FAILED for rank in pair)]
        found |= dict.fromkeys(pairs, _LEFT_OUT)
        for pair, one in _round(order, tried, environ).items():
            found[pair] = one
            if isinstance(one, str):
                failures.update(pair)
    if not any(isinstance(one, Rate) for one in found.values()):
        (a, b), why = next(iter(found.items()))
        return f"{order.hosts[a].name} with {order.hosts[b].name}: {why}"
    measured = bandwidth_of_pairs(order, found)
    return measured if failures else _with_all(order, measured, environ)


def _strange(hosts: tuple[Host, ...]) -> str | None:
    """Return whose address is none that mpirun may be given: it came over the network."""
    for host in hosts:
        try:
            ipaddress.IPv4Address(host.address)
        except ValueError:
            return f"{host.name} has no IPv4 address"
    return None


def _round(order: Order, pairs: list[Pair], environ: Mapping[str, str]) -> dict[Pair, Rate | str]:
    nccl = _nccl(order.hosts[0])
    commands = [
        pair_command([order.hosts[rank].address for rank in pair], nccl, order.timing, environ)
        for pair in pairs
    ]
    return dict(zip(pairs, map(rate_of, _run(commands, environ, LIMIT_S)), strict=True))


def _with_all(order: Order, measured: Bandwidth, environ: Mapping[str, str]) -> Bandwidth:
    own, *others = map(_nccl, order.hosts)
    gpus = [(host.address, _nccl(host).gpus) for host in order.hosts]
    ranks = sum(number for _, number in gpus)
    if own.all_reduce is None or any(one.all_reduce != own.all_reduce for one in others):
        return with_all(measured, "all_reduce_perf is not at the same path on all hosts", ranks)
    command = all_command(gpus, own, own.all_reduce, order.timing, environ)
    (ended,) = _run([command], environ, ALL_LIMIT_S)
    return with_all(measured, all_reduce_of(ended, ranks=ranks, hosts=len(gpus)), ranks)


def _run(commands: list[list[str]], environ: Mapping[str, str], limit_s: float) -> list[Ended]:
    try:
        return run_all(commands, environment(environ), limit_s, _WRAP)
    except OSError as error:
        return [Ended("", None, f"mpirun cannot be started: {error.strerror}")] * len(commands)


def _nccl(host: Host) -> Nccl:
    assert host.tools is not None, "the tools of all hosts are known"
    assert host.tools.nccl is not None, "the tool was chosen"
    return host.tools.nccl
