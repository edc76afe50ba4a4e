"""Runs workers for training runs, trials of batch sizes, and measurements.

A job is a spec, a command that runs it and writes events, and a record of what happened. However a job ends,
the record has its first failure with the cause, and no process is left.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gputopo.launch.supervise import signals
from gputopo.launch.supervise.cgroup import oom_kills
from gputopo.launch.supervise.record import Record
from gputopo.launch.supervise.sampling import EventSource
from gputopo.launch.supervise.worker_life import LIMITS, WorkerLife, WorkerLimits
from gputopo.launch.supervise.worker_output import WorkerOutput
from gputopo.launch.supervise.worker_process import Command, adopting
from gputopo.runs import STOPPED_FROM_OUTSIDE
from gputopo.values.run.events import RankFailed
from gputopo.values.run.spec import RunSpec

_LOOK_S = 0.25  # between two checks of what is awaited; not measured


@dataclass
class Workers:
    """Runs workers one after another."""

    environment: Mapping[str, str]
    limits: WorkerLimits
    count_oom_kills: Callable[[], int | None]
    signals: int  # to the launcher (`signals.caught`)
    stopped: RankFailed | None = None  # the failure of the last worker that a signal to the launcher ended

    def run(
        self, spec: RunSpec, command: Command, record: Record, log: Path, sources: Sequence[EventSource] = ()
    ) -> None:
        """Run one worker to its end; record its events and the sources' events, and log its output."""
        with contextlib.closing(WorkerOutput(log)) as output:
            life = WorkerLife(spec, record, output, self.limits, self.count_oom_kills)
            life.watch(command, self.environment, self.signals, sources)
        if record.failure is not None and record.failure.kind in STOPPED_FROM_OUTSIDE:
            self.stopped = record.failure


@contextlib.contextmanager
def workers(
    environment: Mapping[str, str],
    *,
    limits: WorkerLimits = LIMITS,
    count_oom_kills: Callable[[], int | None] = oom_kills,
) -> Iterator[Workers]:
    """Yield an object that runs workers; signals to the launcher end the running worker.

    `environment`: the complete environment of the workers. A signal that comes between two workers ends the
    next one. Use it in the main thread.
    """
    with signals.caught() as came, adopting():
        yield Workers(environment, limits, count_oom_kills, came)
