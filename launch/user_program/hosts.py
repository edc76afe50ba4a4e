"""The variables by which a program on several hosts finds the others, and its network. Pure.

One process a host: that which gputopo starts there. What the user or the starter has set stands.
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
from gputopo.launch.hosts.members import SILENT
from gputopo.launch.hosts.messages import SILENT_S, RunEnd
from gputopo.launch.hosts.rendezvous_client import RendezvousClient
from gputopo.launch.hosts.rendezvous_server import RendezvousServer
from gputopo.launch.jobs.serving import of_host
from gputopo.launch.supervise import signals
from gputopo.launch.supervise.sampling import EventQueue, EventSource
from gputopo.launch.throughput import Report
from gputopo.launch.user_program.program import STOPPED, ProgramEnd, ProgramStop, failure_of
from gputopo.launch.user_program.steps import Batch, StepsReported
from gputopo.planner.network import rdma_ports
from gputopo.values.errors import UsageError
from gputopo.values.machine import Machine
from gputopo.values.run.events import Event, Noticed, RankFailed, RunFinished, Sample

TF_CONFIG = "TF_CONFIG"
# Of PyTorch and what reads the same; torchrun has its options in PET_*.
_RANK, _ADDRESS = ("RANK", "WORLD_SIZE"), ("MASTER_ADDR", "MASTER_PORT")
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
    named = starters.tf_config(environ) or starters.torch(environ)
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


# For an earlier failure of another host, which reports it at once and is heard of each second; not measured
SETTLE_S = 1.5
_LOOK_S = 0.25  # between two looks at what is awaited then; not measured


class ProgramEnds:
    """How the programs have ended so far, by the ranks that have one. Pure."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._running = set(ranks)
        self._failures: list[tuple[float, RankFailed]] = []

    def ended(self, rank: int, failure: RankFailed | None = None) -> None:
        """Note that a program has ended, or that its host no longer answers, which is none once it has."""
        if failure is not None and (rank in self._running or failure.kind != UNREACHABLE):
            late_s = SILENT_S if failure.cause.endswith(SILENT) else 0.0
            self._failures.append((failure.time_s - late_s, failure))
        self._running.discard(rank)

    @property
    def running(self) -> frozenset[int]:
        """The ranks whose programs have not ended."""
        return frozenset(self._running)

    @property
    def first(self) -> RankFailed | None:
        """The failure that came first; a host is gone from its last word on.

        Signals to several hosts, as of scancel, are of the job: no host is named then.
        """
        if not self._failures:
            return None
        first = min(self._failures, key=lambda one: one[0])[1]
        stopped = {one.rank for _, one in self._failures if one.kind in STOPPED.values()}
        if first.kind not in STOPPED.values() or len(stopped) < 2:
            return first
        return msgspec.structs.replace(first, rank=0, cause=first.cause.rpartition(": ")[2])


class Leading:
    """Rank 0's view of the programs of all hosts. `ranks`: of those that take part; `name`: of rank 0.

    `command`: its own program. `stop`: of that one.
    """

    def __init__(
        self, server: RendezvousServer, ranks: Iterable[int], name: str, command: str, stop: ProgramStop
    ) -> None:
        self._server, self._name, self._command, self._stop = server, name, command, stop
        self._endings = ProgramEnds(ranks)
        self._recorded: EventQueue[Event] = EventQueue()
        self.sources: Sequence[EventSource] = (self._recorded,)
        self.steps: EventQueue[StepsReported] | None = server.steps
        self._changed: EventQueue[Event] = EventQueue()  # what this host's own threads note
        self._over = os.eventfd(0)
        self._failed_s: float | None = None  # when the first failure was learned: of a monotonic clock
        self._was_left = False
        self._tells_end = True
        self._chosen: RankFailed | None = None
        self._thread = threading.Thread(target=self._watch, name="programs", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._tells_end = error is None  # else the server does, with the reason
        self._changed.put(_LEFT)
        self._thread.join()
        self._changed.close()
        self._recorded.close()
        os.close(self._over)

    def event(self, event: Event) -> None:
        """A program that hangs is a failure of this host."""
        if isinstance(event, RankFailed) and event.rank == 0:
            self._changed.put(event)

    def reported(self, time_s: float, report: Report) -> None:
        """What the program on rank 0 reports is recorded here, and of no concern to the others."""

    def ended(self, ending: ProgramEnd) -> None:
        """Take note of the end: what it was stopped for is known already."""
        if ending.stopped is not None:
            return
        failure = failure_of(self._command, ending, time_s=time.time())
        if failure is not None:
            failure = msgspec.structs.replace(failure, cause=f"host {self._name} (rank 0): {failure.cause}")
        asked = any(number in STOPPED for number in ending.passed)
        self._changed.put(failure or (_LEFT if asked else _finished(ending)))

    def wait(self) -> RankFailed | None:
        """Wait; a signal ends the programs that still run."""
        name = PurePath(self._command).name
        with signals.caught() as came:
            while self._over not in _ready((self._over, came)):
                for number in signals.take(came):
                    self._changed.put(_stopped_by(number, f"{name} was stopped on the other hosts"))
        return self._chosen

    def _watch(self) -> None:
        try:
            while not self._is_over():
                waits = self._failed_s is not None
                _ready((self._changed.ready, self._server.events.ready), _LOOK_S if waits else None)
                for event in (*self._changed.take(), *self._server.events.take()):
                    self._take(event)
            failed = self._chosen
            if failed is not None:
                self._stop.ask(failed.exit_code)
            if self._tells_end:
                self._server.end(_end_of(failed))
        finally:  # also where that fails: who waits for the end must not wait for ever
            os.eventfd_write(self._over, 1)

    def _take(self, event: Event) -> None:
        if event is _LEFT:
            self._was_left = True
        elif isinstance(event, RankFailed):
            self._endings.ended(event.rank, event)
            self._failed_s = self._failed_s or (time.monotonic() if self._endings.first else None)
        elif isinstance(event, RunFinished):
            self._endings.ended(event.rank)
        else:
            self._recorded.put(event)

    def _is_over(self) -> bool:
        """Decide; a failure only when every host that runs was heard of since, or is known to be gone."""
        if self._failed_s is not None:
            quiet = self._server.quiet(SETTLE_S) & self._endings.running
            if time.monotonic() - self._failed_s < SETTLE_S or quiet:
                return False
            self._chosen = self._endings.first
            return True
        return self._was_left or not self._endings.running


class Following:
    """A host of rank 1 or above: it reports to rank 0, and ends its program when the run is over there.

    `host`: its name in notices.
    """

    sources: Sequence[EventSource] = ()
    steps: EventQueue[StepsReported] | None = None

    def __init__(self, client: RendezvousClient, host: str, command: str, stop: ProgramStop) -> None:
        self._host, self._command, self._stop = host, command, stop
        self._reports = Batch()
        self._client = client
        client.also = self._reports.take
        self._has_failed = False
        self._left = os.eventfd(0)
        self._thread = threading.Thread(target=self._end_with_run, name="the end", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        os.eventfd_write(self._left, 1)
        self._thread.join()
        os.close(self._left)

    @property
    def end(self) -> RunEnd | None:
        """What rank 0 said at the end of the run."""
        return self._client.end

    def event(self, event: Event) -> None:
        """Report samples, notices, and that the program hangs."""
        if isinstance(event, Sample | Noticed):
            self._client.put(of_host(event, self._host))
        elif isinstance(event, RankFailed) and self.end is None:
            self._fail(event)

    def reported(self, time_s: float, report: Report) -> None:
        """Report it to rank 0, too, with what else has come in a second."""
        self._reports.add(time_s, report)

    def ended(self, ending: ProgramEnd) -> None:
        """Report the end, at once where it is a failure."""
        if ending.stopped is not None:
            return
        failure = failure_of(self._command, ending, time_s=time.time())
        if failure is not None:
            self._fail(failure)
        else:
            self._client.put(_finished(ending))

    def wait(self) -> RankFailed | None:
        """Wait; a signal is reported as a failure of this host."""
        with signals.caught() as came:
            while self.end is None and self._client.ready not in _ready((self._client.ready, came)):
                for number in signals.take(came):
                    self._fail(_stopped_by(number, "this host was stopped"))
        end = self.end
        if end is None or end.cause is None:
            return None
        return RankFailed(
            time_s=time.time(), kind="terminated", cause=end.cause, remedy=end.hint, exit_code=end.exit_code
        )

    def _fail(self, failure: RankFailed) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._client.put(failure)

    def _end_with_run(self) -> None:
        if self._client.ready in _ready((self._client.ready, self._left)) and self.end is not None:
            self._stop.ask(self.end.exit_code)


# Rank 0's program has ended as it was asked to: the run is over.
_LEFT = Noticed(time_s=0.0, says="")


def _finished(ending: ProgramEnd) -> RunFinished:
    return RunFinished(time_s=time.time(), status="complete", exit_code=ending.exit_code, wall_s=0.0)


def _stopped_by(number: int, what: str) -> RankFailed:
    name = signal_name(number)
    return RankFailed(
        time_s=time.time(),
        kind=STOPPED.get(number, "terminated"),
        cause=f"{what} by {name}",
        remedy="start it again",
        exit_code=128 + number,
        signal=name,
    )


def _end_of(failed: RankFailed | None) -> RunEnd:
    if failed is None:
        return RunEnd(exit_code=0)
    return RunEnd(exit_code=failed.exit_code, cause=failed.cause, hint=failed.remedy)


def _ready(handles: Iterable[int], limit_s: float | None = None) -> set[int]:
    return set(select.select(tuple(handles), (), (), limit_s)[0])
