"""Runs the user's program on the planned GPUs: terminal, signals, exit code, and leftover processes.

The program stays in the launcher's process group and gets its stdin and stdout, so that keyboard input and
terminal output work as without gputopo. For its stderr see `error_output`. If the launcher is killed by
SIGKILL, the kernel kills the program's main process, whatever signals that ignores. The launcher becomes the
parent of the processes that the program leaves behind (see `supervise.worker_process.adopting`), including
processes with their own session.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from gputopo.launch.failure import signal_name
from gputopo.launch.jobs.claims import held_handles
from gputopo.launch.supervise import signals
from gputopo.launch.supervise.cgroup import oom_kills
from gputopo.launch.supervise.worker_output import LINES
from gputopo.launch.supervise.worker_process import OwnChildren, adopting
from gputopo.launch.user_program.error_output import ErrorOutput, known_cause
from gputopo.probes import tethered
from gputopo.values.errors import ExitCode, UsageError
from gputopo.values.run.events import RankFailed

_STOPS_WAITING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (*_STOPS_WAITING, signal.SIGUSR1, signal.SIGUSR2)
# In seconds, not measured on hardware. LEFT_S is for processes that end by themselves after the program, such
# as the resource tracker of multiprocessing, which takes some ms on an idle host.
LEFT_S = 2.0
ONE_REQUEST_S = 0.05  # Slurm, systemd and timeout(1) signal many processes one after another, within a few ms
TERM_S = 5.0  # between SIGTERM and SIGKILL of leftover processes
KILL_S = 10.0  # until a killed process is reported as stuck in a driver call
MAX_COMMAND = 60  # characters of a command that are shown

Say = Callable[[str], None]


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended."""

    status: int  # as in subprocess, -n for signal n
    passed: frozenset[int] = frozenset()  # signals for the program
    out_of_memory: bool = False  # SIGKILL, and the kernel's count of out-of-memory kills rose
    last_lines: tuple[str, ...] = ()  # of its stderr, if it can be read
    left: str | None = None  # leftover processes, in words
    stopped: int | None = None  # exit code if it was ended because it hung

    @property
    def exit_code(self) -> int:
        """The program's exit code; 128 + n if signal n ended it; `stopped` if it was ended for hanging."""
        if self.stopped is not None:
            return self.stopped
        return self.status if self.status >= 0 else 128 - self.status


# The kind of failure by the signal to the program, as for a worker.
STOPPED = {2: "interrupted", 15: "terminated", 1: "terminated", 3: "terminated"}
_OWN_OUTPUT = "its own output shows why"


def failure_of(command: str, ending: ProgramEnd, *, time_s: float) -> RankFailed | None:
    """Return why a program failed; None if it succeeded."""
    if ending.status == 0:
        return None
    name = PurePath(command).name
    came = sorted(ending.passed & STOPPED.keys())
    signum = -ending.status if ending.status < 0 else None
    sent = None if signum is None else signal_name(signum)
    if came:
        by = ", ".join(map(signal_name, came))
        kind, cause, remedy = STOPPED[came[0]], f"{name} was stopped by {by}", "start it again"
    elif ending.out_of_memory:
        kind = "out_of_memory"
        cause = f"{name} was killed by SIGKILL: the kernel's count of out-of-memory kills rose during the run"
        remedy = "use smaller batches, or keep less in memory"
    elif signum is not None:
        kind, cause = "killed", f"{name} was killed by {sent}"
        remedy = "find out who sent it: the program itself, the batch system, an administrator, `dmesg`"
    else:
        kind, cause, remedy = "error", f"{name} ended with exit code {ending.status}", _OWN_OUTPUT
    known = None if came or ending.out_of_memory else known_cause(ending.last_lines)
    if known is not None:
        cause, remedy = f"{cause}: {known[0]}", known[1] or remedy
    return RankFailed(
        time_s=time_s,
        kind=kind,
        cause=cause,
        remedy=remedy,
        exit_code=ending.exit_code or int(ExitCode.HARDWARE),
        signal=sent,
        last_lines=ending.last_lines[-LINES:],
    )


def failure_lines(failure: RankFailed) -> Iterator[str]:
    """Yield the lines about a failure for the end of a run; none for SIGPIPE, as after `| head`."""
    if failure.kind != "hung" and failure.signal != "SIGPIPE":  # a hang was shown when it was noticed
        yield failure.cause
        if failure.remedy != _OWN_OUTPUT:
            yield failure.remedy


class ProgramStop:
    """Lets another thread end the program of `run_to_end`, for example because it hangs."""

    def __init__(self) -> None:
        self._decided = threading.Lock()
        self.asked = False

    def ask(self) -> bool:
        """Request the end of the program; False if it has ended by itself."""
        if not self._decided.acquire(blocking=False):
            return False
        self.asked = True
        # Wakes `run_to_end`. If that is over, SIGCHLD is ignored by default.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGCHLD)
        return True

    def over(self) -> bool:
        """Note that the program has ended; return whether its end was requested before."""
        return not self._decided.acquire(blocking=False)


def check_program(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise UsageError if there is no such program, or it cannot be executed."""
    name = command[0]
    if shutil.which(name, path=environment.get("PATH", os.defpath)) is not None:
        return
    if Path(name).is_dir():
        raise UsageError(
            f"{name} is a folder",
            "put the full command after --, exactly as you would run it without gputopo",
        )
    if Path(name).is_file():
        raise UsageError(f"{name} is not executable", f"put the interpreter first: -- python {name}")
    raise UsageError(
        f"there is no program {name}",
        "put the full command after --, exactly as you would run it without gputopo",
    )


def run_to_end(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    report: Say = lambda line: None,
    ours: OwnChildren | None = None,
    stop: ProgramStop | None = None,
    errors: ErrorOutput | None = None,
    term_s: float = TERM_S,
    left_s: float = LEFT_S,
) -> ProgramEnd:
    """Run a program to its end. Main thread only. Raises UsageError if there is no such program.

    SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on, unless they were sent to the whole
    group, by the terminal or by a process: the program has then received them. `report`: gets a line about
    leftover processes, which are ended. `ours`: children that other threads start meanwhile. `stop`: requests
    the end of a program that hangs. The program and its descendants then get SIGTERM, and SIGKILL after some
    seconds. `errors`: the program's stderr. `term_s`: seconds from SIGTERM to SIGKILL. `left_s`:
    seconds in which leftover processes may end by themselves.
    """
    check_program(command, environment)
    kills_before = oom_kills()
    ours = OwnChildren() if ours is None else ours
    stop = ProgramStop() if stop is None else stop
    errors = ErrorOutput() if errors is None else errors
    ours.add(*_children(os.getpid()))
    with signals.caught(*_PASSED_ON, signal.SIGCHLD) as came, adopting():
        with signals.blocked(_PASSED_ON):  # for the witness, and for the child until it runs the program
            witness = _Witness(ours)
            process = subprocess.Popen(
                tethered(list(command)),
                env=dict(environment),
                pass_fds=held_handles(os.environ),  # processes that outlive this one keep its claims of GPUs
                stdout=errors.stdout,
                stderr=errors.stderr,
            )
        with contextlib.closing(witness), contextlib.closing(errors):
            errors.program_started()
            passed = _passed_on(process.pid, witness, came, ours, stop)
            stopped = int(ExitCode.HARDWARE) if stop.over() else None
            if stopped is not None:
                stuck = end_descendants(ours, came, term_s=term_s, program=process.pid)
                _report_stuck(stuck, report)
                if any(left_process.pid == process.pid for left_process in stuck):
                    process.returncode = -signal.SIGKILL  # it will not end, so do not wait
            status = process.wait()
            errors.program_ended(came)
            kills_after = oom_kills()
            kills = 0 if kills_before is None or kills_after is None else kills_after - kills_before
            killed = -status == signal.SIGKILL and kills > 0 and stopped is None
            ending = ProgramEnd(status, frozenset(passed), killed, errors.last_lines, stopped=stopped)
            return replace(ending, left=_end_leftovers(command[0], ours, came, report, term_s, left_s))


def _passed_on(
    program: int, witness: "_Witness", came: int, ours: OwnChildren, stop: ProgramStop
) -> set[int]:
    """Pass signals on until the program ends or its end is requested; return the signals for the program."""
    passed: set[int] = set()
    while not stop.asked:
        _reap(ours, program)
        if os.waitid(os.P_PID, program, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        numbers = _waited(came, None)
        if set(numbers) & {*_PASSED_ON}:
            time.sleep(ONE_REQUEST_S)
            numbers += signals.take(came)
        for number in dict.fromkeys(number for number in numbers if number != signal.SIGCHLD):
            passed.add(number)
            if witness.saw(number) and _is_of_our_group(program):
                continue
            # Popen.send_signal would reap a program that has ended, and later waits for it would fail.
            with contextlib.suppress(ProcessLookupError):
                os.kill(program, number)
    return passed


class _Witness:
    """Detects whether a signal was sent to the whole process group.

    kill(2) gives a process the same information for a signal to the process and for a signal to its group. A
    batch system may also signal each process of a job separately. The witness is a member of the group that
    inherits the blocked signals: a signal that is pending there was sent to the group. It ends when the pipe
    that it reads is closed.
    """

    def __init__(self, ours: OwnChildren) -> None:
        self._ours = ours
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._ours.add(self._process.pid)

    def saw(self, number: int) -> bool:
        """Return whether it got this signal since it last returned True; False if it was killed."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text()
        except OSError:
            return False
        pending = next(line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd:"))
        if not int(pending, 16) >> (number - 1) & 1:
            return False
        self.close()
        with signals.blocked(_PASSED_ON):  # the pending signal cannot be removed, but a new witness has none
            self._start()
        return True

    def close(self) -> None:
        """End the witness."""
        self._process.kill()
        self._process.communicate()


def _is_of_our_group(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid) == os.getpgrp()
    return True


def _end_leftovers(
    name: str, ours: OwnChildren, came: int, report: Say, term_s: float, left_s: float
) -> str | None:
    """Report, end and return leftover processes of the program that do not end by themselves."""
    deadline = time.monotonic() + left_s
    while left := descendants(ours):
        numbers = _waited(came, deadline - time.monotonic())
        _reap(ours, None)
        if not numbers or {*numbers}.intersection(_STOPS_WAITING):
            break
    if not left:
        return None
    named = ", ".join(map(str, left))
    count = "a process" if len(left) == 1 else f"{len(left)} processes"
    report(f"{name} left {count} running, which gputopo ends: {named}")
    _report_stuck(end_descendants(ours, came, term_s=term_s), report)
    return f"{name} left {count} behind: {named}"


def _report_stuck(stuck: Sequence["Descendant"], report: Say) -> None:
    if stuck:
        report(f"{', '.join(map(str, stuck))}: not ended even by SIGKILL")


@dataclass(frozen=True)
class Descendant:
    """A process of the program: its id and its shortened command line."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.command})"


def descendants(ours: OwnChildren) -> tuple[Descendant, ...]:
    """Return the running descendants of this process, without `ours` and their descendants."""
    running: list[Descendant] = []
    with ours.starting:
        waiting = [pid for pid in _children(os.getpid()) if pid not in ours and not ours.has_session_of(pid)]
    while waiting:
        pid = waiting.pop(0)
        waiting += _children(pid)
        command = _command(pid)
        if command is not None:
            running.append(Descendant(pid, command))
    return tuple(running)


def end_descendants(
    ours: OwnChildren,
    came: int,
    *,
    term_s: float = TERM_S,
    kill_s: float = KILL_S,
    program: int | None = None,
) -> tuple[Descendant, ...]:
    """Send SIGTERM to descendants, and SIGKILL after `term_s` or a signal; return those that still run.

    `came`: the pipe of signals to this process, including SIGCHLD. `program`: the process that its own waiter
    reaps.
    """
    for signum, limit_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        asked: set[int] = set()
        deadline = time.monotonic() + limit_s
        while left := descendants(ours):
            for process in left:
                if process.pid not in asked:  # also for processes that were started meanwhile
                    asked.add(process.pid)
                    _send(process.pid, signum)
            numbers = _waited(came, deadline - time.monotonic())
            _reap(ours, program)
            if not numbers or (signum == signal.SIGTERM and set(numbers) & {*_STOPS_WAITING}):
                break
        if not left:
            _reap(ours, program)  # orphans that have ended; init may take its time
            return ()
    return descendants(ours)


def _waited(came: int, seconds: float | None) -> list[int]:
    """Wait up to `seconds` for signals and return them."""
    select.select([came], [], [], None if seconds is None else max(seconds, 0.0))
    return signals.take(came)


def _children(pid: int) -> list[int]:
    """Return the process ids of the children of a process, oldest first; empty if it has ended.

    Source: /proc/PID/task/TID/children. The command: `ps --ppid PID`.
    """
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (thread / "children").read_text().split())
    return sorted(children)


def _reap(ours: OwnChildren, program: int | None) -> None:
    with ours.starting:
        for pid in _children(os.getpid()):
            if pid != program and pid not in ours:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def _send(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)
        os.kill(pid, signal.SIGCONT)  # a stopped process would not end by SIGTERM


def _command(pid: int) -> str | None:
    """Return the command line of a process; None if it has ended, even if it is a zombie."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        name = Path(f"/proc/{pid}/comm").read_bytes().rstrip(b"\n")
    except OSError:
        return None
    if state in (b"Z", b"X"):
        return None
    line = (b" ".join(words) or name).decode(errors="replace")
    return line if len(line) <= MAX_COMMAND else f"{line[: MAX_COMMAND - 1]}…"
