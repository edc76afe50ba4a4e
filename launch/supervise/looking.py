"""Judges a run while it lasts, in a thread of its own: the launcher goes on to take events meanwhile."""

import queue
import threading
import time
from collections.abc import Callable

from gputopo.runs.live import Recent, Reports, Window, judged
from gputopo.runs.verdict.judge import AnomalyCheck, Judgement
from gputopo.values.run.events import Event, Judged, Noticed, RankFailed, Restarted

_Found = tuple[Judgement | Exception, float]


class Looks:
    """The looks at a run: when one is due, a thread judges; what it finds comes with one of the next events.

    A fault of ours in judging ends the looks with a notice, never the training: the end of the run judges
    again, and raises it.
    """

    def __init__(
        self,
        *,
        judge: Callable[[Window], Judgement] = judged,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """`start`: calls a function elsewhere; by default in a thread."""
        self._recent: Recent | None = Recent()
        self._reports = Reports()
        self._judge, self._clock = judge, clock
        self._start = _in_a_thread if start is None else start
        self._found: queue.SimpleQueue[_Found] = queue.SimpleQueue()
        self._step: int | None = None  # of the look that goes on

    def add(self, event: Event) -> tuple[Event, ...]:
        """Add an event of the run, and return what a look has found."""
        if self._recent is None or isinstance(event, Judged):
            return ()
        if isinstance(event, Restarted) and event.fewer is not None:
            self._forget()
        self._recent.add(event)
        if isinstance(event, RankFailed):  # what comes after it is its consequence
            self._recent = None
            return ()
        if self._step is not None:
            return self._taken(self._recent)
        if self._recent.is_due(self._clock()):
            window = self._recent.take(self._clock())
            self._step = window.step
            found = self._found
            self._start(lambda: found.put(self._look(window)))
        return ()

    def _forget(self) -> None:
        """Forget what was found of devices that are others from here on, and a look that goes on."""
        self._reports = Reports()
        self._found = queue.SimpleQueue()
        self._step = None

    def end(self, check: AnomalyCheck) -> tuple[Event, ...]:
        """Return what the verdict over all steps adds to what was reported."""
        self._recent = None
        return self._reports.end(check, time.time())

    def _look(self, window: Window) -> _Found:
        began_s = time.thread_time()
        try:
            return self._judge(window), time.thread_time() - began_s
        except Exception as error:  # noqa: BLE001 (reported by a notice)
            return error, 0.0

    def _taken(self, recent: Recent) -> tuple[Event, ...]:
        try:
            found, seconds = self._found.get_nowait()
        except queue.Empty:
            return ()
        step, self._step = self._step or 0, None
        if isinstance(found, Exception):
            self._recent = None
            kind = type(found).__name__
            says = f"Slow devices are looked for at the end only: judging failed ({kind}: {found})."
            return (Noticed(time_s=time.time(), says=says),)
        recent.took(self._clock(), seconds)
        return self._reports.look(found, step, time.time())


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="verdicts", daemon=True).start()
