"""A measurement of the network: what each host is ordered to do, and what a host does by an order."""

import ipaddress
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    PROBE,
    RDMA,
    RDMA_LIMIT_S,
    STREAMS,
    Done,
    Ended,
    Ends,
    NcclPrograms,
    NetworkHost,
    Order,
    Slot,
    SlotKind,
    Timing,
    ToolChoice,
    choose,
    failure,
    note_of,
    rdma_commands,
    rdma_note,
    rdma_sample,
    sample,
    schedule,
)
from gputopo.launch.hosts.messages import Joining
from gputopo.probes.processes import tethered
from gputopo.probes.programs import all_reduce_of, rate_of, rdma_rate_of, run_all
from gputopo.probes.tcp import latency, send
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth, Failure, NotMeasured, Sample
from gputopo.values.errors import GputopoError

# Has hosts, by rank, do what each is ordered, at the same time; gives why one does not.
Do = Callable[[Mapping[int, Order]], Mapping[int, Done | GputopoError]]
Rates = Mapping[Ends, float | str]

# With so many partners a host has failed before it is left out; so many rounds have measured nothing before
# no other is begun. Each may take LIMIT_S; not measured
_MAX_FAILED = 2
_LEFT_OUT = "left out: it failed with other hosts, or they did"
_PORTS = range(20_000, 32_000)  # of servers: below those of outgoing connections


def measure(
    brought: Sequence[Joining], timing: Timing, asked: ToolChoice, do: Do, note: Callable[[str], None]
) -> Bandwidth:
    """Measure by the best tool that all hosts have and that measures something.

    `brought`: what each host answered, by rank. `note`: prints a line. Raises HardwareError for a tool that
    was asked for and that cannot measure.
    """
    hosts = _distinct(map(_host, brought))
    tools = {host.name: host.tools for host in hosts}
    failed: dict[str, str] = {}
    while True:
        tool, passed_over = choose(asked, tools, failed)
        rounds = len(matchings(range(len(hosts))))
        rate_s = timing.transfer_s
        seconds = {"tcp": 3 * rate_s + timing.latency_s, RDMA: 2 * rate_s + 2, NCCL_TESTS: LIMIT_S}[tool]
        by, most = PROBE if tool == "tcp" else tool, "at most" if tool == NCCL_TESTS else "about"
        note(f"measuring between {len(hosts)} hosts by {by}: {most} {rounds * seconds:.0f} s")
        if tool == "tcp":
            found: Bandwidth | str = by_tcp(hosts, timing, do)
        elif (strange := _strange(hosts[1:])) is not None:
            found = strange
        else:
            found = by_rdma(hosts, timing, do) if tool == RDMA else by_nccl(hosts, timing, do)
        if isinstance(found, Bandwidth):
            first, *others = found.notes
            first = f"{first}; {passed_over}" if passed_over else first
            return msgspec.structs.replace(found, notes=(first, *others))
        failed[tool] = found


def by_tcp(hosts: Sequence[NetworkHost], timing: Timing, do: Do) -> Bandwidth:
    """Measure by our own transfers."""

    def orders(kind: SlotKind, ends: Ends) -> dict[int, Order]:
        to = hosts[ends[1]]
        what: str = "latency" if kind == "latency" else "rate"
        return {
            ends[0]: Order(
                transfer=what,  # type: ignore[arg-type]
                address=to.address,
                port=to.port,
                token=to.token,
                timing=timing,
            )
        }

    def read(kind: SlotKind, ends: Ends, done: Done) -> Sample | str:
        if done.error is not None or not done.values:
            return done.error or "nothing arrived"
        return sample(hosts, ends, done.values, kind)

    return _by_slots(hosts, schedule(len(hosts)), do, orders, read, tuple(note_of(hosts)))


def by_rdma(hosts: Sequence[NetworkHost], timing: Timing, do: Do) -> Bandwidth | str:
    """Measure each direction by ib_write_bw; return why where nothing could be."""

    def orders(_: SlotKind, ends: Ends) -> dict[int, Order]:
        source, destination = (hosts[end] for end in ends)
        commands = rdma_commands(source, destination, random.choice(_PORTS), timing)
        limit_s = timing.transfer_s + RDMA_LIMIT_S
        return {
            rank: Order(commands=(tuple(words),), limit_s=limit_s)
            for rank, words in zip(ends, commands, strict=True)
        }

    def read(_: SlotKind, ends: Ends, done: Done) -> Sample | str:
        rate = rdma_rate_of(done.ended[0]) if done.ended else str(done.error)
        return rate if isinstance(rate, str) else rdma_sample(hosts, ends, rate)

    slots = [slot for slot in schedule(len(hosts)) if slot.kind == "one way"]
    found = _by_slots(hosts, slots, do, orders, read, (rdma_note(hosts),))
    if not found.samples:
        why = [f"{one.source[5:]} to {one.destination[5:]}: {one.says}" for one in found.failures]
        return (why or [one.reason for one in found.not_measured])[0]
    lacking = NotMeasured(
        what="both directions at once, all hosts at once, latencies", reason=f"by {RDMA} one at a time is"
    )
    return msgspec.structs.replace(found, not_measured=(*found.not_measured, lacking))


def _by_slots(
    hosts: Sequence[NetworkHost],
    slots: Iterable[Slot],
    do: Do,
    orders: Callable[[SlotKind, Ends], Mapping[int, Order]],
    read: Callable[[SlotKind, Ends, Done], Sample | str],
    notes: tuple[str, ...],
) -> Bandwidth:
    """Measure slot by slot. A transfer that failed is not tried again: each would take some seconds."""
    samples: list[Sample] = []
    failures: list[Failure] = []
    failed: dict[Ends, str] = {}
    absent: dict[int, str] = {}
    for number, slot in enumerate(slots):
        if number >= 2 * _MAX_FAILED and not samples:
            break
        tried = [ends for ends in slot.transfers if ends not in failed and not {*ends} & {*absent}]
        given = {rank: one for ends in tried for rank, one in orders(slot.kind, ends).items()}
        done = do(given) if given else {}
        absent |= {rank: one.what for rank, one in done.items() if isinstance(one, GputopoError)}
        for ends in slot.transfers:
            answer = done.get(ends[0]) if ends in tried else None
            if isinstance(answer, Done):
                found = read(slot.kind, ends, answer)
                if isinstance(found, str):
                    failed[ends] = found
                else:
                    samples.append(found)
            elif ends[0] not in absent and ends[1] in absent:
                failed[ends] = absent[ends[1]]
            if ends in failed:
                failures.append(failure(hosts, ends, failed[ends], slot.kind))
    return Bandwidth(
        source="live",
        samples=tuple(samples),
        failures=tuple(failures),
        not_measured=tuple(
            NotMeasured(what=f"transfers of {hosts[rank].name}", reason=why)
            for rank, why in sorted(absent.items())
        ),
        complete=not absent,
        notes=notes,
    )


def by_nccl(hosts: Sequence[NetworkHost], timing: Timing, do: Do) -> Bandwidth | str:
    """Measure from the host of rank 0 by nccl-tests; return why where no pair could be.

    All GPUs at once are measured where no pair failed.
    """
    found: dict[Pair, Rate | str] = {}
    failures: Counter[int] = Counter()
    own = _nccl(hosts[0])
    for number, pairs in enumerate(matchings(range(len(hosts)))):
        rates = any(isinstance(one, Rate) for one in found.values())
        if number >= _MAX_FAILED and not rates:
            break
        tried = [pair for pair in pairs if all(failures[rank] < _MAX_FAILED for rank in pair)]
        found |= dict.fromkeys(pairs, _LEFT_OUT)
        commands = [command([(hosts[rank].address, 1) for rank in pair], own, timing) for pair in tried]
        for pair, ended in zip(tried, _run(commands, LIMIT_S, do), strict=True):
            found[pair] = one = rate_of(ended)
            if isinstance(one, str):
                failures.update(pair)
    if not any(isinstance(one, Rate) for one in found.values()):
        (a, b), why = next(iter(found.items()))
        return f"{hosts[a].name} with {hosts[b].name}: {why}"
    measured = bandwidth_of_pairs(hosts, found)
    return measured if failures else _with_all(hosts, measured, timing, do)


def _with_all(hosts: Sequence[NetworkHost], measured: Bandwidth, timing: Timing, do: Do) -> Bandwidth:
    own, *others = map(_nccl, hosts)
    gpus = [(host.address, _nccl(host).gpus) for host in hosts]
    ranks = sum(number for _, number in gpus)
    if own.all_reduce is None or any(one.all_reduce != own.all_reduce for one in others):
        return with_all(measured, "all_reduce_perf is not at the same path on all hosts", ranks)
    (ended,) = _run([command(gpus, own, timing, all_reduce=own.all_reduce)], ALL_LIMIT_S, do)
    return with_all(measured, all_reduce_of(ended, ranks=ranks, hosts=len(gpus)), ranks)


def _run(commands: Sequence[Sequence[str]], limit_s: float, do: Do) -> Sequence[Ended]:
    """Have the host of rank 0 run commands."""
    if not commands:
        return ()
    done = do({0: Order(commands=tuple(map(tuple, commands)), limit_s=limit_s)})[0]
    if isinstance(done, Done) and len(done.ended) == len(commands):
        return done.ended
    why = done.error or "no result" if isinstance(done, Done) else done.what
    return [Ended("", None, f"cannot be started: {why}")] * len(commands)


def perform(line: bytes, environ: Mapping[str, str]) -> Done:
    """Do what an order, as JSON, asks of this host. Raises InputError."""
    order = schema.decode(line, Order, origin="the order")
    try:
        if order.transfer == "latency":
            return Done(values=latency(order.address, order.port, order.token, order.timing))
        if order.transfer == "rate":
            return Done(values=send(order.address, order.port, order.token, order.timing, STREAMS))
        # mpirun ends its job at SIGTERM; killed, it would leave ranks behind.
        wrap = partial(tethered, signum=signal.SIGTERM)
        commands = [list(words) for words in order.commands]
        return Done(ended=tuple(run_all(commands, environment(environ), order.limit_s, wrap)))
    except OSError as failed:
        return Done(error=(failed.strerror or str(failed)).lower())


def _strange(hosts: Sequence[NetworkHost]) -> str | None:
    """Return whose address is none that a program may be given: it came over the network."""
    for host in hosts:
        try:
            ipaddress.IPv4Address(host.address)
        except ValueError:
            return f"{host.name} has no IPv4 address"
    return None


def _nccl(host: NetworkHost) -> NcclPrograms:
    assert host.tools is not None, "the tools of all hosts are known"
    assert host.tools.nccl is not None, "the tool was chosen"
    return host.tools.nccl


def _host(joining: Joining) -> NetworkHost:
    own = joining.resources
    return NetworkHost(
        name=joining.name,
        address=joining.address,
        port=joining.port,
        token=own.token,
        rate_gbit_per_s=own.rate_gbit_per_s,
        mtu_bytes=own.mtu_bytes,
        tools=own.tools,
    )


def _distinct(hosts: Iterable[NetworkHost]) -> list[NetworkHost]:
    """Return the hosts with different names: those of the same name with their ranks."""
    hosts = list(hosts)
    names = [host.name for host in hosts]
    return [
        host if names.count(host.name) == 1 else msgspec.structs.replace(host, name=f"{host.name}#{rank}")
        for rank, host in enumerate(hosts)
    ]
