"""A training run: its worker, its events, and the batch size that fits after out of memory.

Only the launcher writes events.jsonl: RunStarted, the worker's events, samples, anomalies, the first failure,
RunFinished. If the launcher itself is killed, the kernel kills the worker (see `processes`).
"""

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gputopo.launch import failure
from gputopo.launch.jobs import restarting
from gputopo.launch.supervise import EventLog, RunFolder, Workers, workers
from gputopo.launch.supervise.record import NOTHING_KNOWN, Record
from gputopo.launch.supervise.sampling import EventSource, RunSampler, sampled
from gputopo.launch.supervise.worker_life import LIMITS, WorkerLimits
from gputopo.values import schema
from gputopo.values.errors import InputError
from gputopo.values.run.batches import BatchSize, as_typed, batch_words
from gputopo.values.run.events import (
    BatchTried,
    Event,
    Noticed,
    PhaseBegun,
    RankFailed,
    Replanned,
    Restarted,
)
from gputopo.values.run.result import Result
from gputopo.values.run.spec import Lifecycle, RunSpec
from gputopo.values.run.verdict import Known

if TYPE_CHECKING:
    from gputopo.launch.spec.prepare import Fallback

# Time in which a try may start, in seconds. Not measured; chosen because a try of a large batch takes half a
# minute on CPU devices, and no more than ten are needed.
SEARCH_S = 120.0

Display = Callable[[], contextlib.AbstractContextManager[Callable[[Event], None]]]
"""Shows a run while it lasts: the value of its `with` block gets each event."""


def find_batch(
    spec: RunSpec,
    folder: RunFolder,
    record: Record,
    workers: Workers,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Try smaller batches, record each try, and release the record's deferred failure with the result.

    No try starts after `SEARCH_S`; a try that runs then still runs to its end.
    """
    if max(spec.batches) > 1:
        record.add(PhaseBegun(time_s=time.time(), phase="batch search"))
    began = clock()

    def fits(batch_size: BatchSize) -> bool | None:
        left_s = SEARCH_S - (clock() - began)
        if left_s <= 0:
            record.add(Noticed(time_s=time.time(), says=f"the search ends after {SEARCH_S:g} s"))
            return None
        says = f"trying batch size {batch_words(batch_size)} (tries begin for {left_s:.0f} s more)"
        record.add(Noticed(time_s=time.time(), says=says))
        answer = try_batch(spec, batch_size, folder, workers)
        if answer is not None:
            record.add(BatchTried(time_s=time.time(), batch_size=batch_size, fits=answer))
        return answer

    record.release(remedy(spec, *search(spec.batch_size, fits)))


def search(
    batch_size: BatchSize, fits: Callable[[BatchSize], bool | None]
) -> tuple[BatchSize | None, BatchSize | None]:
    """Halve a size until it fits; return that size, None if none fits, and the smallest that does not fit.

    `fits` tries a size, and returns None if the result is unknown, which ends the search.
    """
    failed = None
    while (smaller := halved(batch_size)) != batch_size and (answer := fits(smaller)) is not None:
        if answer:
            return smaller, failed
        batch_size = failed = smaller
    return None, failed


def trial_of(spec: RunSpec, batch_size: BatchSize) -> RunSpec:
    """Return a run of two steps with another batch, which saves nothing."""
    return msgspec.structs.replace(
        spec,
        task="forward" if spec.task == "eval" else spec.task,
        batch_size=batch_size,
        num_batches=2,
        num_warmup_batches=0,
        min_warmup_s=None,
        time_budget_s=None,
        lifecycle=Lifecycle(),
        optimization=msgspec.structs.replace(spec.optimization, on_nan="warn"),
    )


def try_batch(spec: RunSpec, batch_size: BatchSize, folder: RunFolder, workers: Workers) -> bool | None:
    """Try a batch in a separate worker, because a worker that ran out of memory cannot continue.

    None if it failed for another reason, or a signal stopped it.
    """
    trial = trial_of(spec, batch_size)
    name = f"trial-{'-'.join(map(str, batch_size)) if isinstance(batch_size, tuple) else batch_size}"
    file, log = folder.path / f"{name}.json", folder.path / f"{name}.log"
    record = Record(None, lambda event: None)
    try:
        schema.write(file, trial)
        workers.run(trial, partial(worker_command, file), record, log)
    except (InputError, OSError):  # the disk is full: earlier results are still reported
        return None
    finally:
        for left in (file, log):
            with suppress(OSError):
                left.unlink(missing_ok=True)
    if record.failure is None:
        return True
    return False if record.failure.kind == failure.OUT_OF_MEMORY else None


def remedy(spec: RunSpec, fitting: BatchSize | None, failed: BatchSize | None) -> str:
    """Remedy from the search. `fitting`: a batch that fits, or None. `failed`: the smallest that does not."""
    if fitting is not None:
        return f"use --batch-size {as_typed(fitting)}: the largest that fits (found by halving)"
    if failed is None:
        return failure.less_memory(spec)
    if halved(failed) != failed:
        return (
            f"use a --batch-size below {as_typed(failed)}, which does not fit; smaller batches were not tried"
        )
    less = "fewer devices (--num-gpus) or " if len(spec.devices) > 1 and spec.backend == "cpu" else ""
    return f"even --batch-size 1 does not fit: use {less}a smaller model"


@dataclass(frozen=True)
class RunOutcome:
    """The result of a run, and how it ended.

    The result is computed from all events, including events that could not be written.
    """

    exit_code: int
    result: Result
    stopped: bool = False  # a signal ended it, or ended the search for a smaller batch after its failure


def worker_command(spec_path: Path, events_fd: int) -> Sequence[str]:
    """Return the command of the training worker, which reads its spec and writes events to a descriptor.

    -P: files of the current folder do not shadow packages.
    """
    return (sys.executable, "-P", "-m", "gputopo.launch.train.worker", str(spec_path), str(events_fd))


@dataclass(frozen=True, kw_only=True)
class RunJob:
    """A training run to supervise."""

    spec: RunSpec
    folder: RunFolder
    on_event: Callable[[Event], None]  # gets every event when it is recorded
    environment: Mapping[str, str]  # the complete environment of the worker
    sampler: RunSampler | None = None
    limits: WorkerLimits = LIMITS
    finds_batch: bool = True  # try smaller batches after out of memory
    restarts: int = 0  # how often to continue from the latest checkpoint after a failure by chance
    known: Known = NOTHING_KNOWN  # known before the run
    others: EventSource | None = None  # events of the other hosts; a failure of one ends the run
    fallback: "Fallback | None" = None  # used if NCCL fails its test


def supervise(job: RunJob) -> RunOutcome:
    """Run the workers of a job to their end and return the outcome; leaves no process behind.

    Raises InputError if the events file cannot be opened. Later failures are events.
    """
    try:
        log = EventLog(job.folder.events)
    except OSError as error:
        raise InputError(
            f"cannot write {job.folder.events}: {error.strerror}",
            "use a writable folder with --output",
        ) from error
    saved = restarting.SavedSteps()

    def noted(event: Event) -> None:
        saved.add(event)
        job.on_event(event)

    def may_restart(failed: RankFailed) -> bool:
        return job.restarts > 0 and restarting.may_restart(failed)

    def may_replan(failed: RankFailed, phase: str | None) -> bool:
        return job.fallback is not None and restarting.is_of_nccl(failed, phase)

    with (
        contextlib.closing(Record(log, noted, may_restart=may_restart, may_replan=may_replan)) as record,
        workers(job.environment, limits=job.limits) as running,
        sampled(job.sampler) as samples,
    ):
        sources = tuple(source for source in (job.others, samples) if source is not None)
        record.begin(job.spec, job.known)
        if not record.unwritable:
            running.run(job.spec, partial(worker_command, job.folder.spec), record, job.folder.log, sources)
            job = _replanned(job, record, running, sources)
            _restart(job, record, running, sources, saved)
        if job.finds_batch and record.failure is not None and record.failure.kind == failure.OUT_OF_MEMORY:
            find_batch(job.spec, job.folder, record, running)
        record.finish()
    code = 0 if record.failure is None else record.failure.exit_code
    return RunOutcome(code, record.summary.result(), running.stopped is not None)


_UNEXPECTED = "the plan chose NCCL, which does not work here"


def _replanned(job: RunJob, record: Record, running: Workers, sources: Sequence[EventSource]) -> RunJob:
    """Train with the fallback if NCCL failed its test; return the job from then on."""
    failed, fallback = record.replannable, job.fallback
    if failed is None or fallback is None:
        return job
    known = msgspec.structs.replace(job.known, expected=None, unexpected=_UNEXPECTED)
    event = Replanned(
        time_s=time.time(),
        planned=fallback.planned,
        cause=failed.cause,
        choice=fallback.choice,
        spec=msgspec.json.decode(schema.encode(fallback.spec)),  # as a reader of the file sees it
        known=known,
    )
    changed = replace(job, spec=fallback.spec, known=known, fallback=None)
    return changed if _run_again(changed, "without-nccl.json", event, record, running, sources) else job


def _restart(
    job: RunJob,
    record: Record,
    running: Workers,
    sources: Sequence[EventSource],
    saved: restarting.SavedSteps,
) -> None:
    """Continue from the latest checkpoint after each failure by chance, up to `job.restarts` times."""
    for number in range(1, job.restarts + 1):
        failed = record.restartable
        rest = None if failed is None else restarting.continued(job.spec, saved.counted)
        if failed is None or rest is None:
            return
        event = Restarted(
            time_s=time.time(), number=number, of=job.restarts, cause=failed.cause, steps=saved.trained
        )
        saved.begin_again()
        _run_again(replace(job, spec=rest), f"restart-{number}.json", event, record, running, sources)


def _run_again(
    job: RunJob,
    file_name: str,
    event: Event,
    record: Record,
    running: Workers,
    sources: Sequence[EventSource],
) -> bool:
    """Run another worker after a failure, with the event that says so; False if its spec cannot be stored.

    Then the disk is full, and the failure remains.
    """
    file = job.folder.path / file_name
    try:
        schema.write(file, job.spec)
    except InputError:
        return False
    record.restart()
    record.add(event)
    running.run(job.spec, partial(worker_command, file), record, job.folder.log, sources)
    return True


def halved(batch: BatchSize) -> BatchSize:
    """Return half of each batch, rounded down, at least 1."""
    return tuple(max(1, size // 2) for size in batch) if isinstance(batch, tuple) else max(1, batch // 2)
