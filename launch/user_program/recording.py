"""Records samples and reported steps of a program as they come, in separate threads.

The main thread waits for signals (see `program`). These threads block all signals, so that they cannot delay
the program.
"""

import contextlib
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gputopo.launch.failure import gpu_words
from gputopo.launch.supervise import EventLog, HangLimits, Watchdog, process_words, signals
from gputopo.launch.supervise.record import EventRecord
from gputopo.launch.supervise.sampling import EventQueue, RunSampler, sampled
from gputopo.launch.supervise.worker_output import LINES
from gputopo.launch.supervise.worker_process import OwnChildren, process_state
from gputopo.launch.throughput import STACKS_SIGNAL, Report, StepsEnded
from gputopo.launch.user_program.error_output import ErrorOutput, known_cause
from gputopo.launch.user_program.program import STOPPED, ProgramEnd, ProgramStop, descendants, failure_of
from gputopo.launch.user_program.steps import Joined, StepPipe
from gputopo.values.errors import ExitCode
from gputopo.values.run.events import Event, Noticed, RankFailed, Sample, Step
from gputopo.values.run.program import ProgramSpec

# In seconds: how long a process may take to write its stacks, and the pause after which they are complete.
STACKS_S = 1.0
WRITTEN_S = 0.05
_HELD = ("T", "t", "D")  # states of a process that is stopped, or waits for a device: proc(5)


class StallWatch:
    """Follows the reports of a program and requests its end if it hangs. Times: of a monotonic clock.

    `who`: the program, in words. `stacks`: the file for the stacks of its processes, if any. `ours`: children
    of this process that do not belong to the program. `errors`: the program's stderr.
    """

    def __init__(
        self,
        patience: HangLimits,
        who: str,
        stop: ProgramStop,
        ours: OwnChildren,
        errors: ErrorOutput,
        *,
        stacks: Path | None,
        now_s: float,
    ) -> None:
        self._watchdog = Watchdog(patience, now_s, who)
        self._stop, self._ours, self._errors, self._stacks = stop, ours, errors, stacks
        self._notice_s: float | None = now_s + patience.min_s  # when to report that there has been no step
        self._stepping: set[int] = set()  # the ids of processes with steps
        self._sample: Sample | None = None

    def sampled(self, sample: Sample) -> None:
        """Note the state of the GPUs."""
        self._sample = sample

    def reported(self, report: Report, now_s: float) -> None:
        """Note a report of the program."""
        if isinstance(report, StepsEnded):
            self._stepping.discard(report.pid)
            return
        self._notice_s = None
        self._stepping.add(report.pid)
        step = Step(
            time_s=0.0, step=report.step, seconds=report.seconds, images=report.examples, loss=None, marks=()
        )
        self._watchdog.record_event(step, now_s)

    def wait_s(self, now_s: float) -> float | None:
        """Maximum seconds to wait for the next report; None for no limit."""
        if self._stepping:
            return self._watchdog.wait_s(now_s)
        return None if self._notice_s is None else max(0.0, self._notice_s - now_s)

    def end_wait(self, now_s: float) -> None:
        """Note that the wait is over."""
        if self._stepping:
            self._watchdog.end_wait(now_s)

    def look(self, now_s: float) -> Noticed | RankFailed | None:
        """Return the failure of a hung program and request its end, or a notice that there is no step."""
        if self._notice_s is not None and now_s >= self._notice_s:
            return self.unwatched()
        verdict = self._watchdog.verdict(now_s) if self._stepping else None
        if verdict is None:
            return None
        # A process that was killed could not report its end.
        self._stepping &= {process.pid for process in descendants(self._ours)}
        if not self._stepping:
            return None
        pids = sorted(self._stepping)
        states = [(pid, process_state(pid)[0]) for pid in pids]
        words = [f"process {pid} {process_words(state, 0.0)}" for pid, state in states if state in _HELD]
        written = self._stacks is not None and write_stacks(pids, self._stacks)
        self._stepping.clear()
        if not self._stop.ask():
            return None
        lines = self._errors.last_lines
        known, remedy = known_cause(lines) or (None, None)
        if known is not None:
            words.append(f"its stderr reports {known}")
        where = (
            "stacks.log in the run folder has the stacks of its Python threads"
            if written
            else "it wrote no stacks"
        )
        longer = "if a step, an evaluation or a checkpoint may take that long, give more to --stall-timeout"
        return RankFailed(
            time_s=time.time(),
            kind="hung",
            cause="; ".join(filter(None, [verdict, *words, gpu_words(self._sample)])),
            remedy=remedy or f"{where}; {longer}",
            exit_code=int(ExitCode.HARDWARE),
            last_lines=lines[-LINES:],
        )

    def unwatched(self) -> Noticed | None:
        """Return the notice that the program has reported no step, once, and only if that is so."""
        if self._notice_s is None:
            return None
        self._notice_s = None
        says = (
            "No step was reported; --stall-timeout starts with the first reported step (gputopo explain "
            "program)."
        )
        return Noticed(time_s=time.time(), says=says)


def write_stacks(pids: list[int], file: Path) -> bool:
    """Make processes write the stacks of their threads, one after another; return whether one did."""
    written = False
    for pid in filter(_awaits_signal, pids):
        with contextlib.suppress(OSError), file.open("ab") as stacks:
            stacks.write(f"process {pid}\n".encode())
        began = _size(file)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STACKS_SIGNAL)
        written = _grew(file, began) or written
    return written


def _awaits_signal(pid: int) -> bool:
    """Return whether the process handles the signal, which would end it otherwise: SigCgt, proc(5)."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
            caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(caught >> (STACKS_SIGNAL - 1) & 1)


def _grew(file: Path, began: int) -> bool:
    """Wait until a file has grown and stopped growing; return whether it has grown."""
    deadline, last = time.monotonic() + STACKS_S, began
    while time.monotonic() < deadline:
        time.sleep(WRITTEN_S)
        now = _size(file)
        if now == last and now > began:
            break
        last = now
    return last > began


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


class ProgramRecord(EventRecord):
    """The record of a program's run. One thread at a time may add events.

    Unlike a worker, the program continues if the file cannot be written: `on_problem` gets a line.
    """

    def __init__(
        self, log: EventLog | None, on_event: Callable[[Event], None], on_problem: Callable[[str], None]
    ) -> None:
        super().__init__(log, on_event)
        self._on_problem = on_problem
        self._has_failed = False

    def add(self, event: Event) -> None:
        """Record the next event and its hardware findings. Never raises if the file cannot be written."""
        self._has_failed = self._has_failed or isinstance(event, RankFailed)
        self._record(event)
        hardware = self.summary.hardware
        news = hardware.placement.news() if isinstance(event, Sample) and hardware is not None else None
        if news is not None:
            self.add(Noticed(time_s=event.time_s, says=f"{news[0].upper()}{news[1:]}."))

    def finish(self, command: str, ending: ProgramEnd) -> None:
        """Record slow devices and how the program ended, and close the file."""
        self._add_verdict()
        if ending.left is not None:
            self.add(Noticed(time_s=time.time(), says=ending.left))
        failure = failure_of(command, ending, time_s=time.time()) if ending.stopped is None else None
        if failure is not None and not self._has_failed:  # a program that hung has failed already
            self.add(failure)
        stopped = failure is not None and failure.kind in STOPPED.values()
        failed = failure is not None or self._has_failed
        self.add(
            self._finished(
                "interrupted" if stopped else "failed" if failed else "complete",
                ending.exit_code,
            )
        )
        self.close()

    def _lost(self, path: Path, error: OSError) -> None:
        says = f"cannot write {path}: {error.strerror or error}; continuing without recording"
        self.summary.add(Noticed(time_s=time.time(), says=says))
        self._on_problem(says)


# In seconds. The last writes take some ms; a file on a disk that hangs is given up. Not measured.
END_S = 10.0
# A full pipe, and data that came during its reading. Later reports of leftover processes are not awaited.
_READINGS_AT_THE_END = 2


@contextlib.contextmanager
def recorded(
    record: ProgramRecord,
    sampler: RunSampler | None,
    pipe: StepPipe | None,
    spec: ProgramSpec,
    *,
    stall: StallWatch | None = None,
) -> Iterator["Recording"]:
    """Record samples and steps until the end of the context, then everything that has come by then.

    `spec`: of the program. `stall`: checks whether the program hangs. Use it in the main thread. A thread
    that does not end within `END_S` is left behind with its record.
    """
    over, end = os.pipe()
    with contextlib.ExitStack() as stack:
        with signals.blocked(signal.valid_signals()):
            samples = stack.enter_context(sampled(sampler))
            work = Recording(record, samples, pipe, spec, stall, over)
            thread = threading.Thread(target=work.run, name="recording", daemon=True)
            thread.start()
        try:
            yield work
        finally:
            os.close(end)
            thread.join(END_S)
            work.stuck = thread.is_alive()
            if not work.stuck:
                os.close(over)


@dataclass
class Recording:
    """The work of the recording thread.

    `stuck`: the thread could not be ended, so its record must not be used any more.
    """

    record: ProgramRecord
    samples: EventQueue[Sample | Noticed] | None
    pipe: StepPipe | None
    spec: ProgramSpec
    stall: StallWatch | None
    over: int
    stuck: bool = False

    def __post_init__(self) -> None:
        self._joined = Joined(self.spec.towers)

    def run(self) -> None:
        """Record until `over` is readable."""
        waiting = select.poll()
        waiting.register(self.over, select.POLLIN | select.POLLHUP)
        if self.samples is not None:
            waiting.register(self.samples.ready, select.POLLIN)
        if self.pipe is not None:
            waiting.register(self.pipe.handle, select.POLLIN)
        while not self.stuck and self.over not in self._waited(waiting):
            self._take()
            if self.stall is not None and (noticed := self.stall.look(time.monotonic())) is not None:
                self.record.add(noticed)
        for _ in range(_READINGS_AT_THE_END):
            self._take()
        for event in self._joined.finish(time.time()):
            self.record.add(event)
        if self.stall is not None and (unwatched := self.stall.unwatched()) is not None:
            self.record.add(unwatched)

    def _waited(self, waiting: select.poll) -> set[int]:
        """Wait until data has come or the stall check is due; return the readable handles."""
        limit_s = None if self.stall is None else self.stall.wait_s(time.monotonic())
        came = waiting.poll(None if limit_s is None else math.ceil(1000 * limit_s))
        if self.stall is not None:
            self.stall.end_wait(time.monotonic())
        return {handle for handle, _ in came}

    def _take(self) -> None:
        """Take the available data."""
        if self.samples is not None and not self.stuck:  # if stuck, the record is closed
            for event in self.samples.take():
                self.record.add(event)
                if self.stall is not None and isinstance(event, Sample):
                    self.stall.sampled(event)
        if self.pipe is not None and not self.stuck:
            for report in self.pipe.take():
                if self.stall is not None:
                    self.stall.reported(report, time.monotonic())
                for step in self._joined.add(report, time.time()):
                    self.record.add(step)
