"""What a host reports about itself, in JSON: `python -m gputopo.launch.hosts.answer WHAT PEERS [MORE]`.

- inspect: its machine, as in a recording.
- plan: the same with what a plan needs in addition. PEERS are hosts; the route to one of them gives this host
  its own address. MORE is `pairs` if measured copies are used.
- network: the same with the tools that can measure the network. MORE is `public` if addresses may be public.
"""

import contextlib
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any

import gputopo
from gputopo.launch.hosts.addresses import is_this_host, own_address, require_private
from gputopo.launch.hosts.messages import Joining, Resources, RunEnd
from gputopo.launch.source import machine_from, planned_machine, root_folder
from gputopo.topology import with_p2p_reasons, without_identities
from gputopo.values import schema
from gputopo.values.errors import GputopoError, HardwareError
from gputopo.values.machine import Machine


def resources_of(machine: Machine | None, address: str | None) -> Resources:
    """Return what a plan needs besides the machine. `address`: of this host on the network of the hosts."""
    from gputopo.launch.jobs.claims import claimed_by_others, claims_folder
    from gputopo.launch.supervise import usable_cpus
    from gputopo.probes import interface_of

    card = None if address is None else interface_of(address)
    return Resources(
        environ={name: text for name, text in os.environ.items() if name.startswith("CUDA_")},
        claimed={} if machine is None else claimed_by_others(machine, claims_folder(os.environ)),
        cores=len(usable_cpus().cpus),
        **({} if card is None else card._asdict()),
    )


def main(arguments: Sequence[str]) -> int:
    """Print the answer and return the exit code: 0 also if the answer is an error."""
    what, peers, *more = arguments
    try:
        if what == "network":
            answer = _network(peers.split(","), *more)
        elif what == "plan":
            answer = _planned(peers.split(","), pairs="pairs" in more)
        else:
            answer = _joining(machine=without_identities(with_p2p_reasons(machine_from(()))))
    except GputopoError as error:
        unable = RunEnd(exit_code=int(error.exit_code), cause=error.what, hint=error.hint)
        answer = _joining(unable=unable)
    sys.stdout.buffer.write(schema.encode(answer) + b"\n")
    sys.stdout.buffer.flush()
    return 0


def _joining(**brought: Any) -> Joining:
    name = os.environ.get("SLURMD_NODENAME", platform.node())
    return Joining(rank=0, name=name, version=gputopo.__version__, **brought)


def _address(peers: Sequence[str]) -> str:
    """Return the address of this host on the network to the others. Raises OSError, UnicodeError."""
    *first, last = sorted(peers, key=is_this_host)
    for peer in first:
        with contextlib.suppress(OSError, UnicodeError):
            return own_address(peer, 1)
    return own_address(last, 1)


def _planned(peers: Sequence[str], *, pairs: bool) -> Joining:
    from gputopo.launch.site import Site

    machine = planned_machine((), pairs=pairs)
    brought = None if Site(machine).why_cpu is not None else machine
    try:
        address = _address(peers)
    except (OSError, UnicodeError):
        address = None
    return _joining(
        address=address or platform.node(), machine=brought, resources=resources_of(brought, address)
    )


def _network(peers: Sequence[str], *public: str) -> Joining:
    """Return the address at which other hosts reach this one, and the tools that can measure the network."""
    from gputopo.launch.jobs.network_tools import network_programs
    from gputopo.probes import interface_of, listed_gpus

    try:
        address = _address(peers)
    except (OSError, UnicodeError) as error:
        raise HardwareError(
            f"cannot find the other hosts: {getattr(error, 'strerror', None) or error}",
            "use addresses of the hosts, or names that all hosts can resolve",
        ) from error
    require_private([address], allow_public=bool(public))
    card = interface_of(address)
    interface = {} if card is None else card._asdict()
    resources = Resources(programs=network_programs(), gpus=len(listed_gpus(root_folder())), **interface)
    return _joining(address=address, machine=without_identities(machine_from(())), resources=resources)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
