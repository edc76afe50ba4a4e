"""`gputopo bandwidth --network`: the network between hosts, each of which runs the same command."""

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from gputopo.cli.hosts.meeting import address_of, card_of, joining, meeting_of, name_of
from gputopo.cli.printing import note, show_error
from gputopo.copies.nccl_hosts import LIMIT_S
from gputopo.copies.network import (
    FULL,
    NCCL_TESTS,
    PROBE,
    QUICK,
    USES,
    NetworkHost,
    Timing,
    ToolChoice,
    seconds_of,
)
from gputopo.launch.hosts.allocation import Allocation, HostOptions, find
from gputopo.values.errors import HardwareError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gputopo.copies.network import Order
    from gputopo.launch.hosts.addresses import Bindable
    from gputopo.launch.hosts.rendezvous_server import RendezvousServer
    from gputopo.probes.tcp import Listener
    from gputopo.values.bandwidth import Bandwidth, Level

PORT = 2223  # where the hosts meet unless rank 0 has a port: beside that of a training


def measure_network(
    hosts: HostOptions, level: "Level | None", tool: ToolChoice, report: "Callable[[Bandwidth], int]"
) -> int:
    """Measure between all hosts, and return the exit code. `report` prints on rank 0, and returns it there.

    Raises GputopoError.
    """
    found = find(hosts, os.environ)
    if found is None:
        raise UsageError(
            "--network is between hosts, and no others are named",
            "start the command on each host by srun or mpirun, or add --hosts LIST --node-rank N on each",
        )
    timing = FULL if level == "full" else QUICK
    asked = {"network": True, "full": level == "full", "network_tool": tool}
    if found.rank == 0:
        return _lead(found, hosts, timing, asked, report)
    return _take_part(found, hosts, asked)


def _lead(
    allocation: Allocation,
    hosts: HostOptions,
    timing: Timing,
    asked: dict[str, Any],
    report: "Callable[[Bandwidth], int]",
) -> int:
    from gputopo.launch.hosts.addresses import own_address, places_to_listen
    from gputopo.launch.hosts.messages import RunEnd
    from gputopo.launch.jobs.network import order_of

    leader = allocation.leader
    assert leader.name is not None, "rank 0 has a name"
    places = places_to_listen(leader.name, allow_public=hosts.allow_public_address)
    with meeting_of(allocation, hosts, asked, PORT) as meeting, _listening(places) as listener:
        joined = meeting.wait(hosts.join_timeout)
        brought = _brought(own_address(joined[1].address, joined[1].port), asked["network_tool"])
        own = NetworkHost(name=name_of(allocation), address=leader.name, port=listener.port, **brought)
        order_by = partial(order_of, own, joined, timing, asked["network_tool"])
        measured = _measured(meeting, listener, order_by)
        code = report(measured)
        meeting.end(RunEnd(exit_code=int(code)))
    return code


def _measured(
    meeting: "RendezvousServer", listener: "Listener", order_by: "Callable[..., Order]"
) -> "Bandwidth":
    """Measure by the tool of the order, or the next one where that measures nothing. Raises HardwareError."""
    from gputopo.launch.jobs.network import hold, lead, measure_by_nccl

    order = order_by()
    hosts = len(order.hosts)
    if order.tool == NCCL_TESTS:
        note(
            f"measuring between {hosts} hosts by {NCCL_TESTS}: at most {LIMIT_S:g} s for each round of pairs"
        )
        found = measure_by_nccl(order, os.environ)
        if not isinstance(found, str):
            hold(meeting, order)
            return found
        order = order_by(failed={NCCL_TESTS: found})
    seconds, by = seconds_of(hosts, order.timing), USES[order.tool].rate or PROBE
    note(f"measuring between {hosts} hosts by {by}: {seconds:.0f} s")
    return lead(meeting, order, listener)


def _take_part(allocation: Allocation, hosts: HostOptions, asked: dict[str, Any]) -> int:
    from gputopo.launch.hosts.rendezvous_client import RendezvousClient
    from gputopo.launch.jobs.network import take_part

    leader = allocation.leader
    assert leader.name is not None, "rank 0 has a name"
    address = address_of(allocation, hosts)
    note(f"{allocation.source}: rank {allocation.rank} of {allocation.size} hosts, joining {leader.name}")
    with _listening([_bindable(address)]) as listener:
        brought = _brought(address, asked["network_tool"])
        bringing = joining(allocation, None, asked, address=address, port=listener.port, resources=brought)
        guest = RendezvousClient(allocation.rank, leader.name, leader.port or PORT)
        end = take_part(guest, bringing, listener, hosts.join_timeout)
    if end.cause is None:
        note(f"the measurement is over, exit code {end.exit_code}: its result is on rank 0")
    else:
        show_error(end.cause, end.hint)
    return end.exit_code


def _listening(places: "list[Bindable]") -> "Listener":
    """Listen at the first place that this host has, at a free port. Raises HardwareError."""
    from gputopo.probes.tcp import Listener

    refused: OSError | None = None
    for family, address in places:
        try:
            return Listener(family, address)
        except OSError as error:
            refused = refused or error
    raise HardwareError(
        f"cannot listen for the other hosts: {refused and refused.strerror}",
        "name this host by an address that it has",
    ) from refused


def _bindable(address: str) -> "Bindable":
    import socket

    return (socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def _brought(address: str, asked: ToolChoice) -> dict[str, Any]:
    """Return the fields of a Host about the interface that has an address, and what can measure there."""
    from gputopo.cli.source import root_folder
    from gputopo.probes.equipment import tools_at

    return {**card_of(address), "tools": tools_at(address, asked, root_folder())}
