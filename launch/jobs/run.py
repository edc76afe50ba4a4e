"""Starts a worker, writes down what it tells, and ends it on every way out.

The launcher is the only writer of events.jsonl: RunStarted, what the worker tells, samples, anomalies, the
first failure, RunFinished. Who ends whom, and when, is in `worker_life`. If the launcher itself is killed,
the kernel kills the worker (see `tether`).
"""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gputopo.launch.jobs import batch_search
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.supervise import failure
from gputopo.launch.supervise.child import adopting
from gputopo.launch.supervise.oom import oom_kills
from gputopo.launch.supervise.output import WorkerOutput
from gputopo.launch.supervise.record import Record
from gputopo.launch.supervise.run_folder import EventLog, RunFolder
from gputopo.launch.supervise.sampling import Sampler, sampled
from gputopo.launch.supervise.signals import caught
from gputopo.launch.supervise.worker_life import LIMITS, Limits, WorkerLife
from gputopo.runs.summary import STOPPED_FROM_OUTSIDE
from gputopo.values.errors import InputError
from gputopo.values.events import Event


@dataclass(frozen=True)
class Outcome:
    """What is known after a run. The result is derived from `events`, which is all that was to be written.

    `stopped`: somebody ended it by a signal, be it while smaller batches were tried after its failure.
    """

    exit_code: int
    events: tuple[Event, ...]
    stopped: bool = False


def worker_command(spec_path: Path, events_fd: int) -> Sequence[str]:
    """Give the command of the core's worker. -P: files of the current folder do not shadow packages."""
    return (sys.executable, "-P", "-m", "gputopo.launch.train.worker", str(spec_path), str(events_fd))


def supervise(
    spec: RunSpec,
    folder: RunFolder,
    on_event: Callable[[Event], None],
    *,
    environment: Mapping[str, str],
    command: Callable[[Path, int], Sequence[str]] = worker_command,
    sampler: Sampler | None = None,
    limits: Limits = LIMITS,
    count_oom_kills: Callable[[], int | None] = oom_kills,
    open_log: Callable[[Path], EventLog] = EventLog,
) -> Outcome:
    """Run one worker to its end and give what happened; never leaves a process of its group behind.

    `on_event` gets every event as it is written. `environment`: the worker's, as a whole. `command` gives the
    worker's command line from the path of the spec and the file descriptor for its events.
    Raises InputError if the events file cannot be opened; later failures are in the events.
    """
    try:
        log = open_log(folder.events)
    except OSError as error:
        raise InputError(
            f"cannot write {folder.events}: {error.strerror}",
            "name a folder that you may write to with --output",
        ) from error
    output = WorkerOutput(folder.log)
    record = Record(log, on_event)
    with (
        contextlib.closing(record),
        contextlib.closing(output),
        caught() as signals,
        adopting(),
        sampled(sampler) as samples,
    ):
        stopped = False
        run = WorkerLife(spec, record, output, limits, count_oom_kills)
        record.begin(spec)
        if not record.unwritable:
            run.watch(lambda fd: command(folder.spec, fd), environment, signals, samples)
        if record.failure is not None and record.failure.kind == failure.OUT_OF_MEMORY:

            def work(trial: RunSpec, file: Path, own: Record, printed: WorkerOutput) -> None:
                once = WorkerLife(trial, own, printed, limits, count_oom_kills)
                once.watch(lambda fd: command(file, fd), environment, signals, None)
                nonlocal stopped
                stopped = _is_stopped(own)

            batch_search.find(spec, folder, record, work)
        events = record.finish()
    code = 0 if record.failure is None else record.failure.exit_code
    return Outcome(code, events, stopped or _is_stopped(record))


def _is_stopped(record: Record) -> bool:
    return record.failure is not None and record.failure.kind in STOPPED_FROM_OUTSIDE
