"""How the hosts of a run connect: their addresses, the secret, and the data that each host sends."""

import os
import platform
import time
from collections.abc import Sequence
from typing import Any

import gputopo
from gputopo.launch.hosts.addresses import own_address, require_private
from gputopo.launch.hosts.agent import is_driven
from gputopo.launch.hosts.allocation import Allocation
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.hosts.messages import EXCUSE_S, RETRY_S, Joining, Reply, RunEnd
from gputopo.launch.hosts.options import HostOptions
from gputopo.launch.hosts.rendezvous_client import LeaderGoneError, RendezvousClient
from gputopo.launch.hosts.rendezvous_server import RendezvousServer
from gputopo.launch.hosts.secret import take_secret
from gputopo.launch.supervise.run_folder import runs_home
from gputopo.report import note, show_error
from gputopo.values.errors import GputopoError, HardwareError


def _secret(hosts: HostOptions) -> bytes:
    """Return the secret of this job. Raises UsageError, HardwareError."""
    if hosts.insecure:
        note("--insecure: anyone who can connect to rank 0's port can take part in this run")
    return take_secret(os.environ, runs_home(os.environ).parent, insecure=hosts.insecure)


def rendezvous_of(allocation: Allocation, hosts: HostOptions, asked: dict[str, Any]) -> RendezvousServer:
    """Return the rendezvous server of rank 0. `asked`: the options that must be the same on all hosts."""
    server = RendezvousServer(
        [host.name for host in allocation.hosts],
        allocation.port,
        _secret(hosts),
        job=allocation.job,
        asked=asked,
        allow_public=hosts.allow_public_address,
        note=note,
    )
    note(
        f"{allocation.source}: {allocation.size} hosts, rank 0 is {allocation.leader.name}, "
        f"port {server.port}"
    )
    return server


def joining(allocation: Allocation, **brought: Any) -> Joining:
    """Return the joining message of this host with extra fields. A listed name is used, but not an IP."""
    host = allocation.hosts[allocation.rank]
    return Joining(
        rank=allocation.rank,
        name=platform.node() if host.name is None or host.is_ip else host.name,
        version=gputopo.__version__,
        job=allocation.job,
        leader=HostAddress(allocation.leader.name, allocation.port),
        **brought,
    )


def address_of(allocation: Allocation, hosts: HostOptions) -> str:
    """Return the address of this host, which has rank 1 or above, on the network of rank 0.

    A name that cannot be resolved yet, such as the name of a pod that has not started, is tried again until
    the join timeout. Raises HardwareError if rank 0 cannot be resolved, and UsageError for a public address.
    """
    leader, address = str(allocation.leader.name), None
    deadline_s, has_waited = time.monotonic() + hosts.join_timeout, False
    while address is None:
        try:
            address = own_address(leader, allocation.port)
        except (OSError, UnicodeError) as error:
            what = f"rank 0 is {leader}, which this host cannot resolve"
            why = getattr(error, "strerror", None) or error
            if isinstance(error, UnicodeError) or time.monotonic() >= deadline_s:
                hint = "use its IP address, or a name that all hosts can resolve"
                raise HardwareError(f"{what}: {why}", hint) from error
            if not has_waited:
                note(f"{what} yet: {why}; retrying for {hosts.join_timeout:g} s")
            has_waited = True
            time.sleep(RETRY_S)
    require_private([address], allow_public=hosts.allow_public_address)
    return address


def join(allocation: Allocation, hosts: HostOptions, bringing: Joining) -> tuple[RendezvousClient, Reply]:
    """Join rank 0; return the connection and the reply. Raises HardwareError if rank 0 cannot be reached.

    If rank 0 does not need this host, refuses it, or ends with an error, that is printed. Under a driver,
    only rank 0 prints the error, so that the user sees it once.
    """
    name = allocation.leader.name
    note(f"{allocation.source}: rank {allocation.rank} of {allocation.size} hosts, joining {name}")
    client = _client(allocation, hosts)
    reply = client.join(bringing, hosts.join_timeout)
    if isinstance(reply, RunEnd) and not reply.exit_code:
        note(f"this host is not needed: {reply.cause}")
    elif isinstance(reply, RunEnd):
        if not is_driven(os.environ):
            show_error(reply.error.what, reply.hint)
        client.outlast()
    return client, reply


def _client(allocation: Allocation, hosts: HostOptions) -> RendezvousClient:
    return RendezvousClient(str(allocation.leader.name), allocation.port, _secret(hosts))


def excuse(allocation: Allocation, hosts: HostOptions, error: GputopoError) -> int:
    """Print why this host, of rank 1 or above, cannot join, report it to rank 0, and return the exit code.

    On rank 0, the error is raised instead. Under a driver, this host prints the error only if rank 0 could
    not be told about it, so that the user sees it once.
    """
    if allocation.rank == 0:
        raise error
    driven = is_driven(os.environ)
    if not driven:
        show_error(error.what, error.hint)
    unable = RunEnd(exit_code=int(error.exit_code), cause=error.what, hint=error.hint)
    try:
        client = _client(allocation, hosts)
        client.join(joining(allocation, unable=unable), EXCUSE_S)
        client.outlast()
    except GputopoError as failed:
        if driven and not isinstance(failed, LeaderGoneError):  # rank 0 has heard of it
            show_error(error.what, error.hint)
    return int(error.exit_code)


def address_of_leader(joined: Sequence[Joining]) -> str | None:
    """Return the address of rank 0, this host, on the other hosts' network, or None if it is unknown."""
    try:
        return own_address(joined[0].address, joined[0].port)
    except (OSError, UnicodeError):
        return None
