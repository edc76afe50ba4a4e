"""The network between the hosts of an allocation: each measures its part of the schedule, rank 0 collects."""

import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec

from gputopo.copies.network.schedule import (
    Host,
    Measured,
    Order,
    Result,
    Timing,
    bandwidth_of,
    schedule,
)
from gputopo.copies.network.tools import NCCL_TESTS, USES, Tool, ToolChoice, choose
from gputopo.launch.hosts.gathering.guest import Guest, Telling
from gputopo.launch.hosts.gathering.meeting import Meeting
from gputopo.launch.hosts.gathering.messages import End, Joining, Refused, Start, Unused
from gputopo.probes.network.programs import ProgramError, Programs
from gputopo.probes.network.tcp import Listener, latency, send
from gputopo.probes.processes import tethered
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.errors import ExitCode

_WAIT_S = 0.1  # between two looks at whether all is over, while a slot has not begun. Ours.
_LATE_BY_S = 1.0  # after which a slot is over, or disturbs others. Ours.
_IS_LATE = "left out: a transfer before it took too long"
_LATE_S = 15.0  # for results after the last slot: a transfer that fails takes 5 s. Ours.


def order_of(
    own: Host,
    joined: Mapping[int, Joining],
    timing: Timing,
    asked: ToolChoice,
    failed: Mapping[Tool, str] | None = None,
) -> Order:
    """Return what all hosts are to do, by what each brought. `joined`: what the meeting's `wait` returned.

    `failed`: as of `choose`. Raises HardwareError for a tool that was asked for and that cannot measure.
    """
    hosts = _distinct([own, *(_host(one) for _, one in sorted(joined.items()))])
    choice = choose(asked, {host.name: host.tools for host in hosts}, failed)
    return Order(
        hosts=tuple(hosts),
        token=secrets.token_hex(16),
        timing=timing.of(choice.tool),
        tool=choice.tool,
        passed_over=choice.passed_over,
    )


def lead(meeting: Meeting, order: Order, listener: Listener) -> Bandwidth:
    """Have all hosts measure, take part as rank 0, and return what they measured. The meeting goes on."""
    _admit(listener, order, 0)
    hold(meeting, order)
    ranks = range(len(order.hosts))
    results = {0: measure(order, 0, lambda: False)}
    for rank, text in meeting.results(_LATE_S).items():
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            results[rank] = msgspec.json.decode(text, type=Result)
    absent = {rank: "it did not report its result" for rank in ranks if rank not in results}
    return bandwidth_of(order, results, absent)


def hold(meeting: Meeting, order: Order) -> None:
    """Have all hosts take part in what rank 0 has measured for them; each learns the end."""
    body = msgspec.Raw(schema.encode(order))
    meeting.answer({rank: Start(spec=body) for rank in range(1, len(order.hosts))})


def take_part(guest: Guest, joining: Joining, listener: Listener, join_timeout_s: float) -> End:
    """Join rank 0, measure what it asks for, and return what it reports at the end. Raises GputopoError."""
    reply = guest.join(joining, join_timeout_s)
    if isinstance(reply, Refused):
        raise reply.error
    if isinstance(reply, Unused):
        return End(exit_code=int(ExitCode.OK))
    order = schema.decode(bytes(reply.spec), Order, origin="rank 0's answer")
    _admit(listener, order, joining.rank)
    with Telling(guest) as telling:
        result = measure(order, joining.rank, lambda: telling.end is not None)
        if telling.end is None:
            guest.report(msgspec.json.encode(result))
        while telling.end is None:
            time.sleep(_WAIT_S)
        return telling.end


def measure(order: Order, rank: int, is_over: Callable[[], bool]) -> Result:
    """Measure the transfers of one host, each in its slot; the first begins `lead_s` after this call.

    Those to a host that could not be reached are not tried again: each would take some seconds, and this host
    would be late for the others. A program that fails costs its own transfer.
    """
    if order.tool == NCCL_TESTS:  # rank 0 has measured
        return Result(measured=())
    programs = _programs(order, rank)
    begin_s = time.monotonic() + order.timing.lead_s
    found: list[Measured] = []
    errors: dict[int, str] = {}
    for number, slot in enumerate(schedule(len(order.hosts), order.timing)):
        while (left_s := begin_s + slot.start_s - time.monotonic()) > 0 and not is_over():
            time.sleep(min(left_s, _WAIT_S))
        if is_over():
            break
        for destination in [end for source, end in slot.transfers if source == rank]:
            error = errors.get(destination) or (_IS_LATE if left_s < -_LATE_BY_S else None)
            if error is None:
                try:
                    values = _measured(order, programs, destination, is_latency=slot.kind == "latency")
                    found.append(Measured(slot=number, destination=destination, values=values))
                    continue
                except OSError as failed:
                    error = (failed.strerror or str(failed)).lower()
                    if not isinstance(failed, ProgramError):
                        errors[destination] = error
            found.append(Measured(slot=number, destination=destination, error=error))
    return Result(measured=tuple(found))


def _measured(order: Order, programs: Programs, destination: int, *, is_latency: bool) -> tuple[float, ...]:
    """Make one transfer; return GB/s of each window, or microseconds. Raises OSError."""
    host, uses = order.hosts[destination], USES[order.tool]
    if (program := uses.latency if is_latency else uses.rate) is not None:
        return programs.transfer(program, host.address, host.port, order.token)
    if is_latency:
        return latency(host.address, host.port, order.token, order.timing)
    return send(host.address, host.port, order.token, order.timing, order.streams)


def _admit(listener: Listener, order: Order, rank: int) -> None:
    """Let the other hosts of a measurement transfer to this one, of a rank."""
    if USES[order.tool].rate is not None:
        listener.serve = _programs(order, rank).serve
    listener.token = order.token


def _programs(order: Order, rank: int) -> Programs:
    wrap = partial(tethered, signum=signal.SIGKILL)
    return Programs(order.timing, order.streams, order.hosts[rank].rdma, wrap)


def _host(joining: Joining) -> Host:
    """Return a host by what it brought; what is strange of its card is not known."""
    names = ("interface", "rate_gbit_per_s", "mtu_bytes", "tools")
    brought = {name: joining.resources.get(name) for name in names}
    try:
        card = msgspec.convert({"name": "", "address": "", "port": 0, **brought}, Host)
    except msgspec.ValidationError:
        card = Host(name="", address="", port=0)
    return msgspec.structs.replace(card, name=joining.name, address=joining.address, port=joining.port)


def _distinct(hosts: Iterable[Host]) -> list[Host]:
    """Return the hosts with different names: those of the same name with their ranks."""
    hosts = list(hosts)
    names = [host.name for host in hosts]
    return [
        host if names.count(host.name) == 1 else msgspec.structs.replace(host, name=f"{host.name}#{rank}")
        for rank, host in enumerate(hosts)
    ]
