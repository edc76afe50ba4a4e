"""Records beside a program, in threads of their own: samples and reported steps, as they come.

The main thread waits for signals (see `gputopo.launch.jobs.program`), so these threads take none, and nothing
of what they do can hold the program.
"""

import contextlib
import math
import os
import select
import signal
import threading
import time
from collections.abc import Iterator, Sequence

from gputopo.launch.recorded.joined import Joined
from gputopo.launch.recorded.pipe import StepPipe
from gputopo.launch.recorded.record import ProgramRecord
from gputopo.launch.recorded.stall import StallWatch
from gputopo.launch.supervise.sampling import EventQueue, EventSource, Sampler, sampled
from gputopo.values.run.events import Sample

# What is still to be written at the end takes some ms; a file on a disk that hangs is given up. Ours.
END_S = 10.0
# A full pipe, and what came while it was read: what processes that were left behind go on to report is not
# waited for.
_READINGS_AT_THE_END = 2
# Signals for a group of processes that a process of ours, such as the watch, must not end by.
_FOR_THE_PROGRAM = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT}


@contextlib.contextmanager
def signals_blocked(*, all_of_them: bool = True) -> Iterator[None]:
    """Block signals for what is started in the context: threads and processes inherit that.

    Not `all_of_them`: those that a program may be sent with its group, and Ctrl-C still ends the context.
    """
    numbers = signal.valid_signals() if all_of_them else _FOR_THE_PROGRAM
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def recording(
    record: ProgramRecord,
    sampler: Sampler | None,
    pipe: StepPipe | None,
    *,
    devices: int,
    stall: StallWatch | None = None,
    others: Sequence[EventSource] = (),
) -> Iterator["Recording"]:
    """Record samples and steps until the end of the context, then all that has come by then.

    `stall`: what looks whether the program hangs. `others`: of events of other hosts. Use it in the main
    thread. A thread that does not end within `END_S` is left behind with its record.
    """
    over, end = os.pipe()
    state = Recording()
    with contextlib.ExitStack() as stack:
        with signals_blocked():
            samples = stack.enter_context(sampled(sampler))
            work = _Work(record, samples, pipe, Joined(devices), stall, others, over, state)
            thread = threading.Thread(target=work.run, name="recording", daemon=True)
            thread.start()
        try:
            yield state
        finally:
            os.close(end)
            thread.join(END_S)
            state.stuck = thread.is_alive()
            if not state.stuck:
                os.close(over)


class Recording:
    """`stuck`: the thread could not be ended: its record must not be touched any more."""

    stuck = False


class _Work:
    """The work of the recording thread."""

    def __init__(
        self,
        record: ProgramRecord,
        samples: EventQueue | None,
        pipe: StepPipe | None,
        joined: Joined,
        stall: StallWatch | None,
        others: Sequence[EventSource],
        over: int,
        state: Recording,
    ) -> None:
        self._record = record
        self._samples = samples
        self._pipe = pipe
        self._joined = joined
        self._stall = stall
        self._others = others
        self._over = over
        self._state = state

    def run(self) -> None:
        """Record until `over` is readable."""
        waiting = select.poll()
        waiting.register(self._over, select.POLLIN | select.POLLHUP)
        for handle in self._handles():
            waiting.register(handle, select.POLLIN)
        while not self._state.stuck and self._over not in self._waited(waiting):
            self._take()
            if self._stall is not None and (found := self._stall.look(time.monotonic())) is not None:
                self._record.add(found)
        for _ in range(_READINGS_AT_THE_END):
            self._take()
        for event in self._joined.finish(time.time()):
            self._record.add(event)
        if self._stall is not None and (unwatched := self._stall.unwatched()) is not None:
            self._record.add(unwatched)

    def _waited(self, waiting: select.poll) -> set[int]:
        """Wait until something has come, or the stall is to be looked for; return the handles with news."""
        limit_s = None if self._stall is None else self._stall.wait_s(time.monotonic())
        came = waiting.poll(None if limit_s is None else math.ceil(1000 * limit_s))
        if self._stall is not None:
            self._stall.end_wait(time.monotonic())
        return {handle for handle, _ in came}

    def _handles(self) -> Iterator[int]:
        if self._samples is not None:
            yield self._samples.ready
        if self._pipe is not None:
            yield self._pipe.handle
        for source in self._others:
            yield source.ready

    def _take(self) -> None:
        """Record what has come."""
        if self._samples is not None and not self._state.stuck:  # then it is closed
            for event in self._samples.take():
                self._record.add(event)
                if self._stall is not None and isinstance(event, Sample):
                    self._stall.sampled(event)
        for source in self._others if not self._state.stuck else ():
            for event in source.take():
                self._record.add(event)
        if self._pipe is not None and not self._state.stuck:
            for report in self._pipe.take():
                if self._stall is not None:
                    self._stall.reported(report, time.monotonic())
                for step in self._joined.add(report, time.time()):
                    self._record.add(step)
