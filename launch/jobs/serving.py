"""A host of rank 1 or above: it joins, serves its devices to rank 0's process, and ends with it.

If each host trains with its own process (`RunSpec.rank`), that worker runs instead of a server.
"""

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from gputopo.launch.hosts.messages import HostEvent, RunEnd
from gputopo.launch.hosts.rendezvous_client import RendezvousClient
from gputopo.launch.supervise import HangLimits, Record, WorkerLimits, workers
from gputopo.launch.supervise.sampling import EventSource, RunSampler, sampled
from gputopo.values.run.events import Event, Noticed, RankFailed
from gputopo.values.run.spec import Lifecycle, RunSpec

_ENDED = "ended"  # the kind of the event that ends a server when the run is over
# A server prints nothing while it serves, so its silence has no limit.
LIMITS = WorkerLimits(patience=HangLimits(min_s=math.inf, phase_s=math.inf, start_s=math.inf), serves=True)


def server_command(spec_path: Path, rank: int, events_fd: int) -> Sequence[str]:
    """Return the command of a host's TensorFlow server or worker. -P: see `run.worker_command`."""
    server = "gputopo.launch.train.server"
    return (sys.executable, "-P", "-m", server, str(spec_path), str(rank), str(events_fd))


def own_spec(spec: RunSpec, rank: int) -> RunSpec:
    """Return the spec for a host of rank 1 or above, from the spec that rank 0 sent.

    If the host trains, it continues until rank 0 has ended, which reports and saves.
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
    """Run this host's server or worker until the run is over, and return the end of the run.

    `spec`: of rank 0; `file`: contains this host's spec. The output of the server goes to `log`. Samples, and
    the cause of a failure, go to rank 0. If this host failed or was stopped, the returned end says so.
    """

    def tell(event: Event) -> None:
        on_event(event)
        if isinstance(event, HostEvent) and not (isinstance(event, RankFailed) and event.kind == _ENDED):
            client.put(_of_host(event, spec, rank, log))

    record = Record(None, tell)
    with workers(environment, limits=LIMITS) as running, sampled(sampler) as samples:
        sources: list[EventSource] = [_RunEnd(client), *([] if samples is None else [samples])]
        running.run(spec, partial(server_command, file, rank), record, log, sources)
    assert record.failure is not None, "a server without a failure serves"
    failed = _of_host(record.failure, spec, rank, log)
    assert isinstance(failed, RankFailed)
    return client.end or RunEnd(exit_code=failed.exit_code, cause=failed.cause, hint=failed.remedy)


def _of_host(event: HostEvent, spec: RunSpec, rank: int, log: Path) -> HostEvent:
    """Return an event whose text has this host, because rank 0 shows it next to its own events."""
    host = spec.servers[rank].host
    if isinstance(event, Noticed):
        return replace(event, says=f"host {host}: {event.says}")
    if isinstance(event, RankFailed) and spec.rank is None:
        return replace(
            event,
            cause=event.cause.replace("the worker", "its TensorFlow server"),
            remedy=event.remedy.replace("worker.log in the run folder", f"{log} on {host}"),
        )
    return event


class _RunEnd:
    """The end of the run as an event, which ends this host's server."""

    def __init__(self, client: RendezvousClient) -> None:
        self.ready = client.ready
        self._client = client

    def take(self) -> Iterator[Event]:
        """Yield the end once the run is over."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.ready)
        if (end := self._client.end) is not None:
            cause = end.cause or "the run is over"
            yield RankFailed(time_s=0.0, kind=_ENDED, cause=cause, remedy="", exit_code=end.exit_code)
