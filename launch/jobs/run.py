"""A training run: its worker, what happened in it, and after out of memory the batch size that fits.

The launcher is the only writer of events.jsonl: RunStarted, the worker's events, samples, anomalies, the
first failure, RunFinished. If the launcher itself is killed, the kernel kills the worker (see `processes`).
"""

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gputopo.launch import failure
from gputopo.launch.jobs import batch_search, restarting
from gputopo.launch.jobs.restarting import Regrouping
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.supervise.cgroup import oom_kills
from gputopo.launch.supervise.job import Workers, workers
from gputopo.launch.supervise.record import Record
from gputopo.launch.supervise.run_folder import EventLog, RunFolder
from gputopo.launch.supervise.sampling import EventSource, Sampler, sampled
from gputopo.launch.supervise.worker_life import LIMITS, Limits
from gputopo.values import schema
from gputopo.values.errors import InputError
from gputopo.values.run.events import REGROUPING, Event, PhaseBegun, RankFailed, Restarted
from gputopo.values.run.result import Result
from gputopo.values.run.verdict import Known


@dataclass(frozen=True)
class Outcome:
    """What is known after a run. The result is derived from its events, those that could not be written too.

    `stopped`: a signal ended it, be it while smaller batches were tried after its failure.
    """

    exit_code: int
    result: Result
    stopped: bool = False


def worker_command(spec_path: Path, events_fd: int) -> Sequence[str]:
    """Return the command of the training worker. -P: files of the current folder do not shadow packages."""
    return (sys.executable, "-P", "-m", "gputopo.launch.train.worker", str(spec_path), str(events_fd))


def supervise(
    spec: RunSpec,
    folder: RunFolder,
    on_event: Callable[[Event], None],
    *,
    environment: Mapping[str, str],
    command: batch_search.WorkerCommand = worker_command,
    sampler: Sampler | None = None,
    limits: Limits = LIMITS,
    count_oom_kills: Callable[[], int | None] = oom_kills,
    open_log: Callable[[Path], EventLog] = EventLog,
    finds_batch: bool = True,
    restarts: int = 0,
    known: Known | None = None,
    others: EventSource | None = None,
    group: Regrouping | None = None,
) -> Outcome:
    """Run one worker to its end and return what happened; leaves no process of its group behind.

    `on_event` gets every event as it is written. `environment`: the worker's, as a whole. `command` makes the
    worker's command line from the path of the spec and the file descriptor for its events. `finds_batch`:
    smaller batches are tried after out of memory. `restarts`: how often another worker goes on from the
    latest checkpoint where one failed by chance after a step (see `restarting`). `known`: before the run.
    `others`: events of the other hosts of the run; a failure among them ends it, unless it goes on with those
    that are left: `group`.
    Raises InputError if the events file cannot be opened; later failures are in the events.
    """
    try:
        log = open_log(folder.events)
    except OSError as error:
        raise InputError(
            f"cannot write {folder.events}: {error.strerror}",
            "name a folder that you may write to with --output",
        ) from error
    kept = restarting.Kept()

    def noted(event: Event) -> None:
        kept.add(event)
        on_event(event)

    def may_restart(failed: RankFailed) -> bool:
        goes_on = restarting.may_restart(failed) or (
            group is not None and group.may_lose and restarting.is_loss(failed)
        )
        return restarts > 0 and goes_on

    with (
        contextlib.closing(Record(log, noted, may_restart=may_restart)) as record,
        workers(environment, limits=limits, count_oom_kills=count_oom_kills) as running,
        sampled(sampler) as samples,
    ):
        sources = tuple(one for one in (others, samples) if one is not None)
        record.begin(spec, known or Known())
        if not record.unwritable:
            work = _Work(spec, folder, command, record, running, sources)
            work.run(spec, folder.spec)
            _restart(work, kept, restarts, known or Known(), group)
        if finds_batch and record.failure is not None and record.failure.kind == failure.OUT_OF_MEMORY:
            batch_search.find(spec, folder, record, running, command)
        record.finish()
    code = 0 if record.failure is None else record.failure.exit_code
    return Outcome(code, record.summary.result(), running.stopped is not None)


@dataclass(frozen=True)
class _Work:
    """A run's workers, one after the other, in one record. `spec`: as the run began."""

    spec: RunSpec
    folder: RunFolder
    command: batch_search.WorkerCommand
    record: Record
    running: Workers
    sources: tuple[EventSource, ...]

    def run(self, spec: RunSpec, file: Path) -> None:
        """Run a worker to its end; `file` holds its spec."""
        self.running.run(spec, partial(self.command, file), self.record, self.folder.log, self.sources)


def _restart(
    work: _Work, kept: restarting.Kept, restarts: int, known: Known, group: Regrouping | None
) -> None:
    """Go on from the latest checkpoint after each failure by chance, this often at most."""
    record, current = work.record, work.spec
    for number in range(1, restarts + 1):
        failed = record.restartable
        if failed is None:
            return
        wait = partial(work.running.wait, current, record, work.sources)
        rest, cause = restarting.continued(work.spec, kept.counted), failed.cause
        if group is not None:
            if failed.rank:
                record.add(PhaseBegun(time_s=time.time(), phase=REGROUPING))
            rest, cause = group.rest(work.spec, failed, kept.counted, wait, record.note)
        if rest is None:
            return
        file = work.folder.path / f"restart-{number}.json"
        fewer = restarting.fewer_of(current, rest, known)
        current, known = rest, known if fewer is None else fewer.known
        with contextlib.suppress(InputError):  # a full disk: the failure stands
            schema.write(file, rest)
            record.restart()
            record.add(
                Restarted(
                    time_s=time.time(),
                    number=number,
                    of=restarts,
                    cause=cause,
                    steps=kept.trained,
                    fewer=fewer,
                )
            )
            kept.begin_again()
            work.run(rest, file)
