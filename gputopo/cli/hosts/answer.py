"""What a host answers about itself, in JSON lines: `python -m gputopo.cli.hosts.answer WHAT PEERS [MORE]`.

inspect: its machine, as a recording has it. plan: with what a plan needs besides; PEERS are other hosts, by
one of which it finds its own address; MORE is `pairs` where measured copies count. network: takes part in a
measurement, as lines of stdin order it; MORE is the tool, and `public` if addresses may be public.
"""

import contextlib
import os
import platform
import select
import sys
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

import gputopo
from gputopo.cli.hosts.joining import resources_of
from gputopo.cli.source import machine_from, planned_machine, root_folder
from gputopo.launch.hosts.addresses import own_address, require_private
from gputopo.launch.hosts.messages import Joining, Resources, RunEnd
from gputopo.topology.identities import without_identities
from gputopo.topology.peer_access import with_reasons
from gputopo.values import schema
from gputopo.values.errors import GputopoError, HardwareError


def main(arguments: Sequence[str]) -> int:
    """Answer, and return the exit code: 0 also where the answer is why there is none."""
    what, peers, *more = arguments
    try:
        if what == "network":
            _network(peers.split(","), *more)
        elif what == "plan":
            _say(_planned(peers.split(","), pairs="pairs" in more))
        else:
            _say(_joining(machine=without_identities(with_reasons(machine_from(())))))
    except GputopoError as error:
        unable = RunEnd(exit_code=int(error.exit_code), cause=error.what, hint=error.hint)
        _say(_joining(unable=unable))
    return 0


def _say(answer: msgspec.Struct) -> None:
    sys.stdout.buffer.write(schema.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def _joining(**brought: Any) -> Joining:
    return Joining(rank=0, name=platform.node(), version=gputopo.__version__, **brought)


def _address(peers: Sequence[str]) -> str:
    """Return the address of this host on the network of the others. Raises OSError, UnicodeError."""
    *first, last = peers
    for peer in first:
        with contextlib.suppress(OSError, UnicodeError):
            return own_address(peer, 1)
    return own_address(last, 1)


def _planned(peers: Sequence[str], *, pairs: bool) -> Joining:
    from gputopo.launch.spec.target import why_cpu

    machine = planned_machine((), pairs=pairs)
    brought = None if why_cpu(machine, os.environ, cpu=False) is not None else machine
    try:
        address = _address(peers)
    except (OSError, UnicodeError):
        address = None
    return _joining(
        address=address or platform.node(), machine=brought, resources=resources_of(brought, address)
    )


def _network(peers: Sequence[str], tool: str, *public: str) -> None:
    """Tell where this host listens and what it measures with, and measure what each line of stdin orders."""
    from gputopo.launch.jobs.network import perform
    from gputopo.probes.equipment import interface_of, tools_at
    from gputopo.probes.tcp import Listener

    try:
        address = _address(peers)
        require_private([address], allow_public=bool(public))
        listener = Listener(address)
    except (OSError, UnicodeError) as error:
        raise HardwareError(
            f"cannot listen for the other hosts: {getattr(error, 'strerror', None) or error}",
            "name the hosts by addresses that they have, or by names that all of them know",
        ) from error
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    with listener:
        tools = tools_at(address, tool, root_folder())  # type: ignore[arg-type]
        card = interface_of(address)
        resources = Resources(token=listener.token, tools=tools, **({} if card is None else card._asdict()))
        machine = None if tools.nccl is None else machine_from(())  # by whose ports it is judged
        _say(_joining(address=address, port=listener.port, machine=machine, resources=resources))
        while line := sys.stdin.buffer.readline():
            _say(perform(line, os.environ))


def _end_with_stdin() -> None:
    """End this process, and the programs that it has started, once nobody waits for its answer."""
    gone = select.poll()
    gone.register(0, select.POLLRDHUP)  # and POLLHUP
    gone.poll()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
