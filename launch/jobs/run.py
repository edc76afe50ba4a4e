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
from gputopo.launch.supervise.record import NOTHING_KNOWN, Record
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


@dataclass(frozen=True, kw_only=True)
class RunJob:
    """A training run to supervise."""

    spec: RunSpec
    folder: RunFolder
    on_event: Callable[[Event], None]  # gets every event as it is written
    environment: Mapping[str, str]  # the worker's, as a whole
    command: batch_search.WorkerCommand = worker_command
    sampler: Sampler | None = None
    limits: Limits = LIMITS
    count_oom_kills: Callable[[], int | None] = oom_kills
    open_log: Callable[[Path], EventLog] = EventLog
    finds_batch: bool = True  # smaller batches are tried after out of memory
    restarts: int = 0  # how often a worker goes on from the latest checkpoint after a failure by chance
    known: Known = NOTHING_KNOWN  # before the run
    others: EventSource | None = None  # events of the other hosts: a failure among them ends the run,
    group: Regrouping | None = None  # unless it goes on with the hosts that are left


def supervise(job: RunJob) -> Outcome:
    """Run the workers of a job to their end and return what happened; leaves no process of them behind.

    Raises InputError if the events file cannot be opened; later failures are in the events.
    """
    try:
        log = job.open_log(job.folder.events)
    except OSError as error:
        raise InputError(
            f"cannot write {job.folder.events}: {error.strerror}",
            "name a folder that you may write to with --output",
        ) from error
    saved = restarting.SavedSteps()

    def noted(event: Event) -> None:
        saved.add(event)
        job.on_event(event)

    def may_restart(failed: RankFailed) -> bool:
        loses = job.group is not None and job.group.may_lose and restarting.is_loss(failed)
        return job.restarts > 0 and (restarting.may_restart(failed) or loses)

    with (
        contextlib.closing(Record(log, noted, may_restart=may_restart)) as record,
        workers(job.environment, limits=job.limits, count_oom_kills=job.count_oom_kills) as running,
        sampled(job.sampler) as samples,
    ):
        sources = tuple(one for one in (job.others, samples) if one is not None)
        record.begin(job.spec, job.known)
        if not record.unwritable:
            running.run(job.spec, partial(job.command, job.folder.spec), record, job.folder.log, sources)
            _restart(job, record, running, sources, saved)
        if job.finds_batch and record.failure is not None and record.failure.kind == failure.OUT_OF_MEMORY:
            batch_search.find(job.spec, job.folder, record, running, job.command)
        record.finish()
    code = 0 if record.failure is None else record.failure.exit_code
    return Outcome(code, record.summary.result(), running.stopped is not None)


def _restart(
    job: RunJob,
    record: Record,
    running: Workers,
    sources: Sequence[EventSource],
    saved: restarting.SavedSteps,
) -> None:
    """Go on from the latest checkpoint after each failure by chance, `job.restarts` times at most."""
    current, known = job.spec, job.known
    for number in range(1, job.restarts + 1):
        failed = record.restartable
        if failed is None:
            return
        rest, cause = restarting.continued(job.spec, saved.counted), failed.cause
        if job.group is not None:
            if failed.rank:
                record.add(PhaseBegun(time_s=time.time(), phase=REGROUPING))
            wait = partial(running.wait, current, record, sources)
            rest, cause = job.group.rest(job.spec, failed, saved.counted, wait, record.note)
        if rest is None:
            return
        file = job.folder.path / f"restart-{number}.json"
        fewer = restarting.fewer_of(current, rest, known)
        current, known = rest, known if fewer is None else fewer.known
        with contextlib.suppress(InputError):  # a full disk: the failure stands
            schema.write(file, rest)
            record.restart()
            record.add(
                Restarted(
                    time_s=time.time(),
                    number=number,
                    of=job.restarts,
                    cause=cause,
                    steps=saved.trained,
                    fewer=fewer,
                )
            )
            saved.begin_again()
            running.run(rest, partial(job.command, file), record, job.folder.log, sources)
