"""The network between the hosts of an allocation: each measures its part of the schedule, rank 0 collects."""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from gputopo.copies.network import (
    Host,
    Measured,
    Order,
    Result,
    Timing,
    bandwidth_of,
    schedule,
)
from gputopo.launch.hosts.gathering.guest import Guest, Telling
from gputopo.launch.hosts.gathering.meeting import Meeting
from gputopo.launch.hosts.gathering.messages import End, Joining, Refused, Start, Unused
from gputopo.probes.network.tcp import Listener, latency, send
from gputopo.values import schema
from gputopo.values.bandwidth import Bandwidth
from gputopo.values.errors import ExitCode, HardwareError, UsageError

_WAIT_S = 0.1  # between two looks at whether all is over, while a slot has not begun. Ours.
_LATE_BY_S = 1.0  # after which a slot is over, or disturbs others. Ours.
_IS_LATE = "left out: a transfer before it took too long"
_LATE_S = 15.0  # for results after the last slot: a transfer that fails takes 5 s. Ours.


def lead(
    meeting: Meeting, own: Host, joined: Mapping[int, Joining], timing: Timing, listener: Listener
) -> Bandwidth:
    """Have all hosts measure, take part as rank 0, and return what they measured.

    `joined`: what the meeting's `wait` returned. The meeting is not ended.
    """
    hosts = [own, *(_host(one) for _, one in sorted(joined.items()))]
    order = Order(hosts=tuple(_distinct(hosts)), token=secrets.token_hex(16), timing=timing)
    listener.token = order.token
    body = msgspec.Raw(schema.encode(order))
    meeting.answer({rank: Start(spec=body) for rank in joined})
    results = {0: measure(order, 0, lambda: False)}
    for rank, text in meeting.results(_LATE_S).items():
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            results[rank] = msgspec.json.decode(text, type=Result)
    absent = {rank: "it did not report its result" for rank in range(len(hosts)) if rank not in results}
    return bandwidth_of(order, results, absent)


def take_part(guest: Guest, joining: Joining, listener: Listener, join_timeout_s: float) -> End:
    """Join rank 0, measure what it asks for, and return what it reports at the end. Raises GputopoError."""
    reply = guest.join(joining, join_timeout_s)
    if isinstance(reply, Refused):
        kind = HardwareError if reply.exit_code == ExitCode.HARDWARE else UsageError
        raise kind(reply.what, reply.hint)
    if isinstance(reply, Unused):
        return End(exit_code=int(ExitCode.OK))
    order = schema.decode(bytes(reply.spec), Order, origin="rank 0's answer")
    listener.token = order.token
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
    would be late for the others.
    """
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
            if error is not None:
                one = Measured(slot=number, destination=destination, error=error)
            else:
                one = _measured(order, number, destination, is_latency=slot.kind == "latency")
            if one.error is not None and one.error != _IS_LATE:
                errors[destination] = one.error
            found.append(one)
    return Result(measured=tuple(found))


def _measured(order: Order, slot: int, destination: int, *, is_latency: bool) -> Measured:
    host = order.hosts[destination]
    try:
        if is_latency:
            values = latency(host.address, host.port, order.token, order.timing)
        else:
            values = send(host.address, host.port, order.token, order.timing, order.streams)
    except OSError as error:
        return Measured(slot=slot, destination=destination, error=(error.strerror or str(error)).lower())
    return Measured(slot=slot, destination=destination, values=values)


def _host(joining: Joining) -> Host:
    """Return a host by what it brought; what is strange of its card is not known."""
    of_card = {name: joining.resources.get(name) for name in ("interface", "rate_gbit_per_s", "mtu_bytes")}
    try:
        card = msgspec.convert({"name": "", "address": "", "port": 0, **of_card}, Host)
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
