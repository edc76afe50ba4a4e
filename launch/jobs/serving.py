"""A host of rank 1 or above: it joins, serves its devices to rank 0's process, and ends with it.

Where each host trains with a process of its own (`RunSpec.rank`), that runs in the place of a server.
"""

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from gputopo.launch.hosts.messages import HostEvent, HostStart, RunEnd
from gputopo.launch.hosts.rendezvous_client import RendezvousClient
from gputopo.launch.spec.run_spec import Lifecycle, RunSpec
from gputopo.launch.supervise.job import workers
from gputopo.launch.supervise.record import Record
from gputopo.launch.supervise.sampling import EventSource, RunSampler, sampled
from gputopo.launch.supervise.watchdog import HangLimits
from gputopo.launch.supervise.worker_life import WorkerLimits
from gputopo.values import schema
from gputopo.values.run.events import SERVING, Event, Noticed, PhaseBegun, RankFailed

_Event = TypeVar("_Event", bound=Event)

_ENDED = "ended"  # kind of what ends a server when the run is over, or goes on with other servers
# A server prints nothing while it serves, however long that is.
_SERVING = WorkerLimits(patience=HangLimits(min_s=math.inf, phase_s=math.inf, start_s=math.inf), serves=True)


def server_command(spec_path: Path, rank: int, events_fd: int) -> Sequence[str]:
    """Return the command of a host's TensorFlow server or worker. -P: see `run.worker_command`."""
    server = "gputopo.launch.train.server"
    return (sys.executable, "-P", "-m", server, str(spec_path), str(rank), str(events_fd))


def own_spec(spec: RunSpec, rank: int) -> RunSpec:
    """Return the spec for a host of rank 1 or above, of the one that rank 0 has sent.

    Where it trains, it goes on until rank 0 has ended, which reports and saves.
    """
    if spec.rank is None:
        return spec
    saved = spec.lifecycle
    return replace(
        spec,
        rank=rank,
        num_batches=None,
        time_budget_s=None,
        max_batches=None,
        max_error=None,
        min_warmup_s=0.0,
        optimization=replace(spec.optimization, on_nan="warn"),
        lifecycle=Lifecycle(resume=saved.resume, resume_or_start=saved.resume_or_start),
    )


def serve(
    spec: RunSpec,
    file: Path,
    rank: int,
    client: RendezvousClient,
    *,
    environment: dict[str, str],
    log: Path,
    sampler: RunSampler | None,
    on_event: Callable[[Event], None],
) -> RunEnd:
    """Run this host's server or worker until rank 0 says that the run is over, and return what it said.

    Where rank 0 goes on with fewer hosts, the server ends and another one starts. `spec`: that of rank 0;
    `file`: with this host's own. What the servers print goes to `log`; samples, and why one ended if it did,
    to rank 0. Where this host failed or was stopped, that is returned.
    """
    number = 0

    def tell(event: Event) -> None:
        on_event(event)
        if isinstance(event, PhaseBegun) and event.phase == SERVING:
            client.serves(number)
        over = isinstance(event, RankFailed) and event.kind == _ENDED
        if isinstance(event, HostEvent) and not over:
            host = spec.servers[rank].host
            client.put(of_host(event if spec.rank is not None else _of_server(event, host, log), host))

    with (
        workers(environment, limits=_SERVING) as running,
        sampled(sampler) as samples,
    ):
        failed: RankFailed | None = None
        while failed is None or (failed.kind == _ENDED and client.end is None):
            if client.start is not None and client.start.number > number:
                number, spec = client.start.number, _next(client.start, file, rank)
            record = Record(None, tell)
            sources: list[EventSource] = [_ServersEnd(client, number)]
            sources += [] if samples is None else [samples]
            running.run(spec, partial(server_command, file, rank), record, log, sources)
            failed = record.failure
            assert failed is not None, "a server without a failure serves"
    own = failed if spec.rank is not None else _of_server(failed, spec.servers[rank].host, log)
    return client.end or RunEnd(exit_code=own.exit_code, cause=own.cause, hint=own.remedy)


def _next(start: HostStart, file: Path, rank: int) -> RunSpec:
    """Write the spec of another server or worker, and return rank 0's. Raises InputError."""
    spec = schema.decode(bytes(start.spec), RunSpec, origin="rank 0's answer")
    schema.write(file, own_spec(spec, rank))
    return spec


def _of_server(event: _Event, host: str, log: Path) -> _Event:
    """Return the event of a server in words that tell it from rank 0's worker, with its own log."""
    if not isinstance(event, RankFailed):
        return event
    cause = event.cause.replace("the worker", "its TensorFlow server")
    remedy = event.remedy.replace("worker.log in the run folder", f"{log} on {host}")
    return replace(event, cause=cause, remedy=remedy)


def of_host(event: HostEvent, host: str) -> HostEvent:
    """Return the event with the host in a notice, which rank 0 shows beside its own."""
    return replace(event, says=f"host {host}: {event.says}") if isinstance(event, Noticed) else event


class _ServersEnd:
    """The end of the run, or a newer Start than `number`, as an event that ends this host's server."""

    def __init__(self, client: RendezvousClient, number: int) -> None:
        self.ready = client.ready
        self._client = client
        self._number = number

    def take(self) -> Iterator[Event]:
        """Return the end, once it is there."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.ready)
        end, start = self._client.end, self._client.start
        if end is not None or (start is not None and start.number > self._number):
            why, code = (end.cause, end.exit_code) if end is not None else (None, 0)
            why = why or "the run is over"
            yield RankFailed(time_s=0.0, kind=_ENDED, cause=why, remedy="", exit_code=code)
