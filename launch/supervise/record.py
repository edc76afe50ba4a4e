"""The record of a run: writes events to the events file, sums them up, and passes them on."""

import contextlib
import platform
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

import gputopo
from gputopo.launch import failure
from gputopo.launch.supervise.run_folder import EventLog
from gputopo.runs import STOPPED_FROM_OUTSIDE, Judgement, RecentSteps, Reports, Summary
from gputopo.values import schema
from gputopo.values.run.events import (
    Event,
    Judged,
    Noticed,
    PhaseBegun,
    RankFailed,
    Resumed,
    RunFinished,
    RunStarted,
    Step,
)
from gputopo.values.run.program import ProgramSpec
from gputopo.values.run.spec import RunSpec
from gputopo.values.run.verdict import Known

NOTHING_KNOWN = Known()
_Found = tuple[Judgement | Exception, float]


class Looks:
    """Checks for slow devices during a run: a thread judges, and a later event returns its findings.

    If the judging raises an error, these checks end with a notice, but the training continues. The check at
    the end of the run raises the error again.
    """

    def __init__(
        self,
        summary: Summary,
        *,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """`summary`: of the run. `start`: calls a function elsewhere, by default in a thread."""
        self._recent: RecentSteps | None = RecentSteps(summary)
        self._reports = Reports()
        self._clock = clock
        self._start = _in_a_thread if start is None else start
        self._found: queue.SimpleQueue[_Found] = queue.SimpleQueue()
        self._step: int | None = None  # of the running check, None if there is none

    def add(self, event: Event) -> tuple[Event, ...]:
        """Note an event that the summary has, and return the findings of a finished check."""
        if self._recent is None or isinstance(event, Judged):
            return ()
        self._recent.add(event)
        if isinstance(event, RankFailed):  # later events are consequences of the failure
            self._recent = None
            return ()
        if self._step is not None:
            return self._taken(self._recent)
        if self._recent.is_due(self._clock()):
            judge, self._step = self._recent.take(self._clock())
            checks = self._found
            self._start(lambda: checks.put(self._look(judge)))
        return ()

    def end(self, judgement: Judgement) -> tuple[Event, ...]:
        """Return what the verdict over all steps adds to the earlier reports."""
        self._recent = None
        return self._reports.end(judgement, time.time())

    def _look(self, judge: Callable[[], Judgement]) -> _Found:
        began_s = time.thread_time()
        try:
            return judge(), time.thread_time() - began_s
        except Exception as error:  # noqa: BLE001 (reported by a notice)
            return error, 0.0

    def _taken(self, recent: RecentSteps) -> tuple[Event, ...]:
        try:
            judged, seconds = self._found.get_nowait()
        except queue.Empty:
            return ()
        step, self._step = self._step or 0, None
        if isinstance(judged, Exception):
            self._recent = None
            kind = type(judged).__name__
            says = f"Slow devices are only searched at the end, because judging failed ({kind}: {judged})."
            return (Noticed(time_s=time.time(), says=says),)
        recent.took(self._clock(), seconds)
        return self._reports.look(judged, step, time.time())


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="verdicts", daemon=True).start()


def started(spec: RunSpec | ProgramSpec, known: Known) -> RunStarted:
    """Return the event for the start of a run, now and on this host."""
    return RunStarted(
        time_s=time.time(),
        host=platform.node(),
        spec=msgspec.json.decode(schema.encode(spec)),  # as a reader of the file sees it
        devices=spec.devices,
        backend=spec.backend,
        rehearsal_of=spec.rehearsal_of,
        versions={"gputopo": gputopo.__version__, "python": platform.python_version(), **spec.versions},
        says=spec.says,
        known=known,
    )


class EventRecord:
    """The events of a run: written to the file while that is possible, summed up, and passed on.

    Events are not stored, so that a run of any length uses the same memory. `log`: None for no file.
    """

    def __init__(self, log: EventLog | None, on_event: Callable[[Event], None]) -> None:
        self.summary = Summary()
        self._log = log
        self._on_event = on_event
        self._looks = Looks(self.summary)
        self._began = time.monotonic()

    def add(self, event: Event) -> None:
        """Record the next event."""
        self._record(event)

    def begin(self, spec: RunSpec | ProgramSpec, known: Known = NOTHING_KNOWN) -> None:
        """Record the start of the run."""
        self.add(started(spec, known))

    def close(self) -> None:
        """Close the file."""
        log, self._log = self._log, None
        if log is not None:
            try:
                log.close()
            except OSError as error:  # an error of a network disk
                self._lost(log.path, error)

    def _lost(self, path: Path, error: OSError) -> None:
        """Report that the file can no longer be written."""
        raise NotImplementedError

    def _record(self, event: Event) -> None:
        self.summary.add(event)
        log, lost = self._log, None
        if log is not None:
            try:
                log.write(event)
            except OSError as error:
                self._log, lost = None, error
                with contextlib.suppress(OSError):
                    log.close()
        self._on_event(event)
        if log is not None and lost is not None:
            self._lost(log.path, lost)
        for finding in self._looks.add(event):
            self.add(finding)

    def _add_verdict(self) -> None:
        """Check for slow devices over all steps."""
        for finding in self._looks.end(self.summary.judgement()):
            self.add(finding)

    def _finished(self, status: str, exit_code: int) -> RunFinished:
        wall_s = time.monotonic() - self._began
        return RunFinished(time_s=time.time(), status=status, exit_code=exit_code, wall_s=wall_s)


class Record(EventRecord):
    """The record of a run by workers.

    `has_steps`: a step was recorded. `resumed`: steps in the checkpoint with which training starts. `phase`:
    the latest phase of the worker. `failure`: the first failure.
    """

    def __init__(
        self,
        log: EventLog | None,
        on_event: Callable[[Event], None],
        *,
        may_restart: Callable[[RankFailed], bool] = lambda failed: False,
        may_replan: Callable[[RankFailed, str | None], bool] = lambda failed, phase: False,
    ) -> None:
        """`may_restart`, `may_replan`: whether a failure after a step, or in a phase, is deferred."""
        super().__init__(log, on_event)
        self._may_restart = may_restart
        self._may_replan = may_replan
        self.has_steps = False
        self.resumed = 0
        self.phase: str | None = None
        self._last: Event | None = None
        self.failure: RankFailed | None = None
        self._deferred: RankFailed | None = None

    @property
    def unwritable(self) -> bool:
        """Whether the file can no longer be written. Later events are only in the summary."""
        return self.failure is not None and self.failure.kind == "disk_full"

    def add(self, event: Event) -> None:
        """Record an event. Only the first failure is recorded; later failures are ignored.

        A failure for lack of memory is deferred until a fitting batch is known: see `release`. A failure
        after which another worker may continue is deferred until that is decided: see `restart`.
        """
        if isinstance(event, RankFailed):
            # A user who ends a run does not want it to continue after a failure just before.
            ends = event.kind in STOPPED_FROM_OUTSIDE and not event.rank and self._goes_on
            if self.failure is not None and not ends:
                return
            self.failure, self._deferred = event, None
            if event.kind == failure.OUT_OF_MEMORY or self._goes_on:
                self._deferred = event
                return
        self._record(event)

    @property
    def restartable(self) -> RankFailed | None:
        """The failure after which another worker may continue."""
        failed = self.failure
        return failed if failed is not None and self.has_steps and self._may_restart(failed) else None

    @property
    def replannable(self) -> RankFailed | None:
        """The failure after which another worker may train with another placement."""
        failed = self.failure
        return failed if failed is not None and self._may_replan(failed, self.phase) else None

    @property
    def _goes_on(self) -> bool:
        return self.restartable is not None or self.replannable is not None

    def restart(self) -> None:
        """Clear the deferred failure, because another worker continues."""
        self.failure = self._deferred = None
        self.has_steps = False
        self.phase = None

    def note(self, says: str) -> None:
        """Record a remark for the reader of the result."""
        self.add(Noticed(time_s=time.time(), says=says))

    def release(self, remedy: str | None = None) -> None:
        """Record the deferred failure, if there is one. `remedy`: replaces its remedy."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            self.failure = deferred if remedy is None else msgspec.structs.replace(deferred, remedy=remedy)
            self._record(self.failure)

    def _record(self, event: Event) -> None:
        self._last = event
        self.has_steps = self.has_steps or isinstance(event, Step)
        self.resumed = event.steps if isinstance(event, Resumed) else self.resumed
        self.phase = event.phase if isinstance(event, PhaseBegun) else self.phase
        super()._record(event)

    def _lost(self, path: Path, error: OSError) -> None:
        self.add(failure.unwritable(path, error, time_s=time.time()))

    def finish(self) -> None:
        """Check for slow devices, record how the run ended, and close the file."""
        self.release()
        self._add_verdict()
        self._add_end()
        self.close()
        if isinstance(self._last, RankFailed):  # the disk was full when the run finished
            self._add_end()

    def _add_end(self) -> None:
        failed = self.failure
        status = "complete" if failed is None else "failed"
        if failed is not None and failed.kind in STOPPED_FROM_OUTSIDE:
            status = "interrupted"
        self.add(self._finished(status, 0 if failed is None else failed.exit_code))
