"""What commands that run on several hosts at once share: where they meet, and what each brings there."""

import platform
from typing import TYPE_CHECKING, Any

import gputopo
from gputopo.cli.printing import note
from gputopo.launch.hosts.allocation import Allocation
from gputopo.launch.hosts.options import HostOptions
from gputopo.values.errors import ExitCode, HardwareError, UsageError

if TYPE_CHECKING:
    from gputopo.launch.hosts.gathering.guest import Guest
    from gputopo.launch.hosts.gathering.meeting import Meeting
    from gputopo.launch.hosts.gathering.messages import Joining, Reply
    from gputopo.values.machine import Machine

# Where the launchers meet, unless an address has a port: that of the examples of TensorFlow's clusters.
PORT = 2222


def meeting_of(
    allocation: Allocation, hosts: HostOptions, asked: dict[str, Any], port: int = PORT
) -> "Meeting":
    """Return the meeting that rank 0 holds. `asked`: what all hosts must have been asked for alike."""
    from gputopo.launch.hosts.gathering.meeting import Meeting

    found = Meeting(
        [host.name for host in allocation.hosts],
        allocation.leader.port or port,
        job=allocation.job,
        asked=_alike(allocation, asked),
        allow_public=hosts.allow_public_address,
    )
    note(
        f"{allocation.source}: {allocation.size} hosts, rank 0 is {allocation.leader.name}, port {found.port}"
    )
    return found


def _alike(allocation: Allocation, asked: dict[str, Any]) -> dict[str, Any]:
    """Return what all hosts must have alike: what was asked for, and the number of hosts of any source."""
    return {**asked, "num_hosts": allocation.size}


def name_of(allocation: Allocation) -> str:
    """Return what this host is called: as it was named, or by its own host name."""
    own = allocation.hosts[allocation.rank]
    return platform.node() if own.name is None or own.is_ip else own.name


def joining(
    allocation: Allocation,
    machine: "Machine | None",
    asked: dict[str, Any],
    *,
    address: str = "",
    port: int = 0,
    resources: dict[str, Any] | None = None,
) -> "Joining":
    """Return what a host brings. `address`, `port`: of its TensorFlow server, if it is to have one."""
    from gputopo.launch.hosts.gathering.messages import Joining

    return Joining(
        rank=allocation.rank,
        name=name_of(allocation),
        version=gputopo.__version__,
        address=address,
        port=port,
        job=allocation.job,
        machine=machine,
        asked=_alike(allocation, asked),
        resources=resources or {},
    )


def address_of(allocation: Allocation, hosts: HostOptions) -> str:
    """Return the address of this host, of rank 1 or above, on the network of rank 0.

    Raises HardwareError for a rank 0 that cannot be found, UsageError for a public address.
    """
    from gputopo.launch.hosts.gathering.addresses import require_private
    from gputopo.launch.jobs.hosts.serving import own_address

    leader = allocation.leader
    assert leader.name is not None, "rank 0 has a name"
    try:
        address = own_address(leader.name, leader.port or PORT)
    except (OSError, UnicodeError) as error:
        raise HardwareError(
            f"rank 0 is {leader.name}, which this host cannot find: {error}",
            "name it by its IP address, or by a name that all hosts know",
        ) from error
    require_private([address], allow_public=hosts.allow_public_address)
    return address


def join(allocation: Allocation, hosts: HostOptions, bringing: "Joining") -> "tuple[Guest, Reply]":
    """Join rank 0, and return the connection and its reply. Raises UsageError, HardwareError if refused."""
    from gputopo.launch.hosts.gathering.guest import Guest
    from gputopo.launch.hosts.gathering.messages import Refused

    leader = allocation.leader
    assert leader.name is not None, "rank 0 has a name"
    note(f"{allocation.source}: rank {allocation.rank} of {allocation.size} hosts, joining {leader.name}")
    guest = Guest(allocation.rank, leader.name, leader.port or PORT)
    reply = guest.join(bringing, hosts.join_timeout)
    if isinstance(reply, Refused):
        kind = HardwareError if reply.exit_code == ExitCode.HARDWARE else UsageError
        raise kind(reply.what, reply.hint)
    return guest, reply


def card_of(address: str) -> dict[str, Any]:
    """Return the facts of the interface that has an address: name, rate and MTU; none where none has."""
    from gputopo.probes.network.interface import interface_of

    found = interface_of(address)
    if found is None:
        return {}
    return {
        "interface": found.name,
        "rate_gbit_per_s": found.rate_gbit_per_s,
        "mtu_bytes": found.mtu_bytes,
    }
