"""A program of the user on several hosts: the variables by which it finds the others, and how it ends on all.

One process a host: that which gputopo starts there. What the user or the starter has set stands. Each host
records its own program; the hosts tell one another only how it has ended.
"""

import json
import os
import select
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from types import TracebackType
from typing import Self

import msgspec

from gputopo.launch.failure import UNREACHABLE, signal_name
from gputopo.launch.hosts import starters
from gputopo.launch.hosts.allocation import Allocation
from gputopo.launch.hosts.messages import RunEnd
from gputopo.launch.hosts.rendezvous_client import RendezvousClient
from gputopo.launch.hosts.rendezvous_server import RendezvousServer
from gputopo.launch.supervise import signals
from gputopo.launch.user_program.program import STOPPED, ProgramEnd, ProgramStop, failure_of
from gputopo.planner.network import rdma_ports
from gputopo.values.errors import ExitCode, UsageError
from gputopo.values.machine import Machine
from gputopo.values.run.events import Event, RankFailed, RunFinished

TF_CONFIG = "TF_CONFIG"
# Of PyTorch and what reads the same; torchrun has its options in PET_*.
_RANK, _ADDRESS = ("RANK", "WORLD_SIZE"), ("MASTER_ADDR", "MASTER_PORT")
_OF_PROGRAMS = (TF_CONFIG, "WORLD_SIZE", "PET_NNODES")  # sources that a program reads itself
_INTERFACE, _HCA = "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA"


def cluster_variables(workers: Sequence[str], index: int, master: tuple[str, int]) -> dict[str, str]:
    """Return the variables of host `index` of a program.

    `workers`: an address with a free port of each host that takes part, by rank; `master`: another one of
    rank 0.
    """
    name, port = master
    config = {"cluster": {"worker": list(workers)}, "task": {"type": "worker", "index": index}}
    return {
        TF_CONFIG: json.dumps(config),
        "RANK": str(index),
        "WORLD_SIZE": str(len(workers)),
        "MASTER_ADDR": name,
        "MASTER_PORT": str(port),
    }


def unset(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of the variables that are to be set: not given yet.

    A rank and a size count together, as numbers of the same processes.
    """
    given = {name for name, text in environ.items() if text.strip()}
    if given.intersection(_RANK):
        given |= {*_RANK}
    return {name: text for name, text in variables.items() if name not in given}


def require_all(environ: Mapping[str, str], hosts: int, taking_part: int) -> None:
    """Raise UsageError where the starter has named more hosts to the program than take part.

    It would wait for those that are not started.
    """
    named = next((one for one in starters.claims(environ) if one.source in _OF_PROGRAMS), None)
    if named is not None and taking_part < hosts:
        raise UsageError(
            f"the plan takes {taking_part} of {hosts} hosts, and the program waits for all of {named.source}",
            f"request GPUs of all hosts, or {named.remove}",
        )


def rendezvous_beside(allocation: Allocation, environ: Mapping[str, str]) -> Allocation:
    """Return the hosts with the port at which they meet: that of rank 0, or the next one not the program's.

    Its own are the ports of TF_CONFIG and MASTER_PORT, which all hosts have alike.
    """
    named = starters.tf_config(environ)
    masters = (*starters.master(environ), *starters.master(environ, "PET_MASTER"))
    taken = {host.port for host in (*(() if named is None else named.hosts), *masters)}
    port = allocation.port
    free = next(number for number in range(port, port + len(taken) + 1) if number not in taken)
    leader, *others = allocation.hosts
    hosts = (msgspec.structs.replace(leader, port=free), *others)
    return msgspec.structs.replace(allocation, hosts=hosts)


def nccl_variables(interface: str | None, machine: Machine | None, gpus: Sequence[int]) -> dict[str, str]:
    """Return what NCCL is to use between hosts, where that is known; `=` names exactly these.

    `interface`: that of this host's address on rank 0's network. The RDMA ports are those that are active, of
    the cards nearest to each of the GPUs.
    """
    found = {} if interface is None else {_INTERFACE: f"={interface}"}
    near = rdma_ports(machine, gpus) if machine is not None else ()
    ports = ",".join(f"{port.rdma_device}:{port.rdma_port or 1}" for port, _ in near)
    return {**found, **({_HCA: f"={ports}"} if ports else {})}


STOPPED_WELL = "stopped"  # status of a program that has ended well by a signal, which ends the run on rank 0
End = RankFailed | RunFinished
"""How the program of a host has ended; RunFinished: well."""


class Company:
    """This host's part in the run of a program on several; a context manager, for the main thread.

    `command`: the program; `stop`: of that on this host.
    """

    def __init__(self, command: str, stop: ProgramStop, over: int) -> None:
        """`over`: a file descriptor that is readable once the run is over."""
        self._command, self._stop, self._over = command, stop, over

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        pass

    def event(self, event: Event) -> None:
        """Take note of an event of this host: a program that hangs has failed."""
        if isinstance(event, RankFailed):
            self._tell(event)

    def ended(self, ending: ProgramEnd) -> None:
        """Take note that this host's program has ended: what it was stopped for is known already."""
        if ending.stopped is None:
            status = STOPPED_WELL if ending.passed & STOPPED.keys() else "complete"
            well = RunFinished(time_s=time.time(), status=status, exit_code=0, wall_s=0.0)
            self._tell(failure_of(self._command, ending, time_s=time.time()) or well)

    def wait(self) -> RankFailed | None:
        """Wait until the run is over, and return why it failed; a signal is a failure of this host."""
        with signals.caught() as came:
            while self._over not in select.select((self._over, came), (), ())[0]:
                for number in signals.take(came):
                    self._tell(_stopped_by(number, PurePath(self._command).name))
        return self._failure()

    def _tell(self, end: End) -> None:
        """Have rank 0 know how the program of this host has ended."""
        raise NotImplementedError

    def _failure(self) -> RankFailed | None:
        raise NotImplementedError


class Leading(Company):
    """Rank 0's part: the first failure that it hears of ends the run on all hosts.

    `ranks`: of the hosts that take part; `name`: of rank 0.
    """

    def __init__(
        self, server: RendezvousServer, ranks: Iterable[int], name: str, command: str, stop: ProgramStop
    ) -> None:
        super().__init__(command, stop, os.eventfd(0, os.EFD_CLOEXEC))
        self._server, self._name = server, name
        self._running = set(ranks)
        self._end: RunEnd | None = None
        self._failed: RankFailed | None = None
        self._decides = threading.Lock()

    def __enter__(self) -> Self:
        self._server.call_with_events(self._add)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        with self._decides:  # where it is left by an error, the server tells the others
            self._end = self._end or RunEnd(exit_code=int(ExitCode.BUG))
        os.close(self._over)

    def wait(self) -> RankFailed | None:
        """As of `Company`; all hosts that are there have heard of the end then."""
        failed = super().wait()
        assert self._end is not None
        self._server.end(self._end)
        return failed

    def _tell(self, end: End) -> None:
        if isinstance(end, RankFailed):
            end = msgspec.structs.replace(end, cause=f"host {self._name} (rank 0): {end.cause}")
        self._add(end)

    def _failure(self) -> RankFailed | None:
        return self._failed

    def _add(self, event: Event) -> None:
        """Take note of an event of any host, in any thread."""
        if not isinstance(event, RankFailed | RunFinished):
            return
        with self._decides:
            ended_before = event.rank not in self._running
            self._running.discard(event.rank)
            if self._end is not None:
                return
            if isinstance(event, RunFinished):
                if self._running and (event.rank or event.status != STOPPED_WELL):
                    return
                self._end = RunEnd(exit_code=0)
            elif event.kind == UNREACHABLE and ended_before:
                return
            else:
                self._failed = event
                self._end = RunEnd(exit_code=event.exit_code, cause=event.cause, hint=event.remedy)
                self._stop.ask(event.exit_code)
            self._server.tell_end(self._end)
            os.eventfd_write(self._over, 1)


class Following(Company):
    """The part of a host of rank 1 or above: it reports to rank 0, and ends when the run is over there."""

    def __init__(self, client: RendezvousClient, command: str, stop: ProgramStop) -> None:
        super().__init__(command, stop, client.ready)
        self._client = client

    def __enter__(self) -> Self:
        self._client.call_at_end(lambda end: self._stop.ask(end.exit_code))
        return self

    def _tell(self, end: End) -> None:
        self._client.put(end)

    def _failure(self) -> RankFailed | None:
        end = self._client.end
        if end is None or end.cause is None:
            return None
        kind = STOPPED.get(end.exit_code - 128, "error")
        return RankFailed(
            time_s=time.time(), kind=kind, cause=end.cause, remedy=end.hint, exit_code=end.exit_code
        )


def _stopped_by(number: int, name: str) -> RankFailed:
    """Return the failure of a host to which a signal came after its program had ended."""
    signal = signal_name(number)
    return RankFailed(
        time_s=time.time(),
        kind=STOPPED.get(number, "terminated"),
        cause=f"the run of {name} was stopped by {signal}",
        remedy="start it again",
        exit_code=128 + number,
        signal=signal,
    )
