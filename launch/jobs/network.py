"""What each host does in a measurement of the network: its transfers, or rank 0 nccl-tests for all."""

import ipaddress
import secrets
import signal
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec

from gputopo.copies.jobs import matchings
from gputopo.copies.nccl_hosts import (
    ALL_LIMIT_S,
    LIMIT_S,
    Pair,
    Rate,
    bandwidth_of_pairs,
    command,
    environment,
    with_all,
)
from gputopo.copies.network import (
    NCCL_TESTS,
    NcclPrograms,
    NetworkHost,
    NetworkResult,
    Order,
    Timing,
    ToolChoice,
    TransferResult,
    choose,
    schedule,
)
from gputopo.launch.hosts.messages import Joining
from gputopo.probes.processes import tethered
from gputopo.probes.programs import Ended, all_reduce_of, rate_of, run_all
from gputopo.probes.tcp import Listener, latency, send
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth

# With so many partners a host has failed before it is left out; so many rounds have measured nothing before
# no other is begun. Each may take LIMIT_S; not measured
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


def _strange(hosts: tuple[NetworkHost, ...]) -> str | None:
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
        command([(order.hosts[rank].address, 1) for rank in pair], nccl, order.timing, environ)
        for pair in pairs
    ]
    return dict(zip(pairs, map(rate_of, _run(commands, environ, LIMIT_S)), strict=True))


def _with_all(order: Order, measured: Bandwidth, environ: Mapping[str, str]) -> Bandwidth:
    own, *others = map(_nccl, order.hosts)
    gpus = [(host.address, _nccl(host).gpus) for host in order.hosts]
    ranks = sum(number for _, number in gpus)
    if own.all_reduce is None or any(one.all_reduce != own.all_reduce for one in others):
        return with_all(measured, "all_reduce_perf is not at the same path on all hosts", ranks)
    words = command(gpus, own, order.timing, environ, all_reduce=own.all_reduce)
    (ended,) = _run([words], environ, ALL_LIMIT_S)
    return with_all(measured, all_reduce_of(ended, ranks=ranks, hosts=len(gpus)), ranks)


def _run(commands: list[list[str]], environ: Mapping[str, str], limit_s: float) -> list[Ended]:
    try:
        return run_all(commands, environment(environ), limit_s, _WRAP)
    except OSError as error:
        return [Ended("", None, f"mpirun cannot be started: {error.strerror}")] * len(commands)


def _nccl(host: NetworkHost) -> NcclPrograms:
    assert host.tools is not None, "the tools of all hosts are known"
    assert host.tools.nccl is not None, "the tool was chosen"
    return host.tools.nccl


_LATE_BY_S = 1.0  # after which a slot is over, or disturbs others; not measured
_IS_LATE = "left out: a transfer before it took too long"
LATE_S = 15.0  # for results after the last slot: a transfer that fails takes 5 s; not measured


def order_of(hosts: Sequence[Joining], timing: Timing, asked: ToolChoice, failed: str | None = None) -> Order:
    """Return what all hosts are to do, by what each brought. `failed`: as of `choose`.

    Raises HardwareError for a tool that was asked for and that cannot measure.
    """
    own = _distinct(map(_host, hosts))
    tool, passed_over = choose(asked, {host.name: host.tools for host in own}, failed)
    return Order(
        hosts=tuple(own),
        token=secrets.token_hex(16),
        timing=timing,
        tool=tool,
        passed_over=passed_over,
    )


def measure_order(line: bytes, listener: Listener, environ: Mapping[str, str]) -> NetworkResult:
    """Do what an order, as JSON, asks of this host. Raises InputError."""
    order = schema.decode(line, Order, origin="the order")
    if order.tool == NCCL_TESTS:  # that of rank 0 measures for all
        if order.rank:
            return NetworkResult()
        found = measure_by_nccl(order, environ)
        return NetworkResult(error=found) if isinstance(found, str) else NetworkResult(nccl=found)
    listener.token = order.token
    return measure(order)


def measure(order: Order) -> NetworkResult:
    """Measure the transfers of one host, each in its slot; the first begins `lead_s` after this call.

    Those to a host that could not be reached are not tried again: each would take some seconds, and this host
    would be late for the others.
    """
    begin_s = time.monotonic() + order.timing.lead_s
    found: list[TransferResult] = []
    errors: dict[int, str] = {}
    for number, slot in enumerate(schedule(len(order.hosts), order.timing)):
        left_s = begin_s + slot.start_s - time.monotonic()
        time.sleep(max(0.0, left_s))
        for destination in [end for source, end in slot.transfers if source == order.rank]:
            error = errors.get(destination) or (_IS_LATE if left_s < -_LATE_BY_S else None)
            if error is None:
                try:
                    values = _measured(order, destination, is_latency=slot.kind == "latency")
                    found.append(TransferResult(slot=number, destination=destination, values=values))
                    continue
                except OSError as failed:
                    errors[destination] = error = (failed.strerror or str(failed)).lower()
            found.append(TransferResult(slot=number, destination=destination, error=error))
    return NetworkResult(measured=tuple(found))


def _measured(order: Order, destination: int, *, is_latency: bool) -> tuple[float, ...]:
    """Make one transfer; return GB/s of each window, or microseconds. Raises OSError."""
    host = order.hosts[destination]
    if is_latency:
        return latency(host.address, host.port, order.token, order.timing)
    return send(host.address, host.port, order.token, order.timing, order.streams)


def _host(joining: Joining) -> NetworkHost:
    """Return a host by what it brought; what is strange of its card is not known."""
    names = ("interface", "rate_gbit_per_s", "mtu_bytes", "tools")
    brought = {name: joining.resources.get(name) for name in names}
    try:
        card = msgspec.convert({"name": "", "address": "", "port": 0, **brought}, NetworkHost)
    except msgspec.ValidationError:
        card = NetworkHost(name="", address="", port=0)
    return msgspec.structs.replace(card, name=joining.name, address=joining.address, port=joining.port)


def _distinct(hosts: Iterable[NetworkHost]) -> list[NetworkHost]:
    """Return the hosts with different names: those of the same name with their ranks."""
    hosts = list(hosts)
    names = [host.name for host in hosts]
    return [
        host if names.count(host.name) == 1 else msgspec.structs.replace(host, name=f"{host.name}#{rank}")
        for rank, host in enumerate(hosts)
    ]
