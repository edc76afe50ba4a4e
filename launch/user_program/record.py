"""The record of a program's run: its events, in the file as long as it can be written, and summed up.

Other than a worker's, the program goes on whatever becomes of the file: it is reported once.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import PurePath

from gputopo.launch.failure import signal_name
from gputopo.launch.spec.program_spec import ProgramSpec
from gputopo.launch.supervise.record import Looks, started
from gputopo.launch.supervise.run_folder import EventLog
from gputopo.launch.user_program.program import Ending
from gputopo.runs.summary import Summary
from gputopo.values.errors import ExitCode
from gputopo.values.run.events import Event, Noticed, RankFailed, RunFinished, Sample
from gputopo.values.run.verdict import Known

# The kind of failure by the signal that came for the program, as for a worker.
STOPPED = {2: "interrupted", 15: "terminated", 1: "terminated", 3: "terminated"}


class ProgramRecord:
    """The events of a program's run. `log` None: there is no file. `on_event` gets every event.

    `on_problem` gets a line where the file can no longer be written. One thread at a time may add events.
    """

    def __init__(
        self, log: EventLog | None, on_event: Callable[[Event], None], on_problem: Callable[[str], None]
    ) -> None:
        self.summary = Summary()
        self._looks = Looks()
        self._log = log
        self._on_event = on_event
        self._on_problem = on_problem
        self._has_failed = False
        self._began = time.monotonic()

    def add(self, event: Event) -> None:
        """Add the next event. Never raises for the file."""
        self.summary.add(event)
        self._has_failed = self._has_failed or isinstance(event, RankFailed)
        if self._log is not None:
            try:
                self._log.write(event)
            except OSError as error:
                self._lose(self._log, error)
        self._on_event(event)
        for found in self._looks.add(event):
            self.add(found)
        hardware = self.summary.hardware
        news = hardware.news() if isinstance(event, Sample) and hardware is not None else None
        if news is not None:
            self.add(Noticed(time_s=event.time_s, says=f"{news[0].upper()}{news[1:]}."))

    def begin(self, spec: ProgramSpec) -> None:
        """Record that the program is about to start."""
        self.add(started(spec, Known()))

    def finish(self, command: str, ending: Ending, elsewhere: RankFailed | None = None) -> None:
        """Record slow devices and how the program ended, and close the file.

        `elsewhere`: what ended the run of several hosts, be it on another one.
        """
        for found in self._looks.end(self.summary.judgement()):
            self.add(found)
        if ending.left is not None:
            self.add(Noticed(time_s=time.time(), says=ending.left))
        failure = elsewhere
        if failure is None and ending.stopped is None:
            failure = failure_of(command, ending, time_s=time.time())
        if failure is not None and not self._has_failed:  # one that hung has failed then
            self.add(failure)
        stopped = failure is not None and failure.kind in STOPPED.values()
        failed = failure is not None or self._has_failed
        self.add(
            RunFinished(
                time_s=time.time(),
                status="interrupted" if stopped else "failed" if failed else "complete",
                exit_code=ending.exit_code if elsewhere is None else elsewhere.exit_code,
                wall_s=time.monotonic() - self._began,
            )
        )
        self.close()

    def close(self) -> None:
        """Close the file."""
        log, self._log = self._log, None
        if log is not None:
            try:
                log.close()
            except OSError as error:
                self._report(log, error)

    def _lose(self, log: EventLog, error: OSError) -> None:
        self._log = None
        with contextlib.suppress(OSError):
            log.close()
        self._report(log, error)

    def _report(self, log: EventLog, error: OSError) -> None:
        says = f"cannot write {log.path}: {error.strerror or error}; the program goes on without"
        self.summary.add(Noticed(time_s=time.time(), says=says))
        self._on_problem(says)


def failure_of(command: str, ending: Ending, *, time_s: float) -> RankFailed | None:
    """Return why a program did not end as it should; None where it did. Pure."""
    if ending.status == 0:
        return None
    name = PurePath(command).name
    came = next((STOPPED[number] for number in sorted(ending.passed) if number in STOPPED), None)
    signum = -ending.status if ending.status < 0 else None
    sent = None if signum is None else signal_name(signum)
    if came is not None:
        by = ", ".join(signal_name(number) for number in sorted(ending.passed) if number in STOPPED)
        kind, cause, remedy = came, f"{name} was stopped by {by}", "start it again"
    elif ending.out_of_memory:
        kind, cause = "out_of_memory", f"{name} was killed by SIGKILL: the kernel had no memory left"
        remedy = "make its batches, or what it holds in memory, smaller"
    elif signum is not None:
        kind, cause = "killed", f"{name} was killed by {sent}"
        remedy = "look for who sent it: the program itself, the batch system, an administrator, `dmesg`"
    else:
        kind, cause = "error", f"{name} ended with exit code {ending.status}"
        remedy = "its own output shows why"
    exit_code = ending.exit_code or int(ExitCode.HARDWARE)
    return RankFailed(time_s=time_s, kind=kind, cause=cause, remedy=remedy, exit_code=exit_code, signal=sent)
