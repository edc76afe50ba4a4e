"""The network between hosts by nccl-tests: rank 0 runs it on each pair of hosts, in rounds of pairs."""

import ipaddress
import signal
from collections import Counter
from collections.abc import Mapping
from functools import partial

from gputopo.copies.jobs import matchings
from gputopo.copies.network.by_nccl import (
    LIMIT_S,
    Pair,
    Rate,
    bandwidth_of_pairs,
    command,
    environment,
)
from gputopo.copies.network.schedule import Host, Order
from gputopo.launch.supervise.process.tether import tethered
from gputopo.probes.network.nccl_tests import rate_of, run_all
from gputopo.values.bandwidth import Bandwidth

# With so many partners a host has failed before it is left out; so many rounds have measured nothing before
# no other is begun. Each may take LIMIT_S. Ours.
_MAX_FAILED = 2
_LEFT_OUT = "left out: it failed with other hosts, or they did"


def measure_pairs(order: Order, environ: Mapping[str, str]) -> Bandwidth | str:
    """Measure all pairs of hosts from here, the host of rank 0; return why where none could be."""
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
    return bandwidth_of_pairs(order, found)


def _strange(hosts: tuple[Host, ...]) -> str | None:
    """Return whose address is none that mpirun may be given: it came over the network."""
    for host in hosts:
        try:
            ipaddress.IPv4Address(host.address)
        except ValueError:
            return f"{host.name} has no IPv4 address"
    return None


def _round(order: Order, pairs: list[Pair], environ: Mapping[str, str]) -> dict[Pair, Rate | str]:
    tools = order.hosts[0].tools
    assert tools is not None, "rank 0 knows its tools"
    assert tools.nccl is not None, "the tool was chosen"
    nccl = tools.nccl
    commands = [
        command([order.hosts[rank].address for rank in pair], nccl, order.timing, environ) for pair in pairs
    ]
    # mpirun ends its job at SIGTERM; killed, it would leave ranks behind.
    wrap = partial(tethered, signum=signal.SIGTERM)
    try:
        ended = run_all(commands, environment(environ), LIMIT_S, wrap)
    except OSError as error:
        return dict.fromkeys(pairs, f"mpirun cannot be started: {error.strerror}")
    return {pair: rate_of(one) for pair, one in zip(pairs, ended, strict=True)}
