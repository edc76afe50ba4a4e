"""Processes that a program started and left behind: found, named, and ended.

The launcher is their parent once theirs has ended (see `supervise.child.adopting`), also of those that made a
session of their own. Blocked signals are awaited here, so that nothing is polled.
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from gputopo.launch.supervise.child import Ours

# Between SIGTERM and SIGKILL, as for a worker of ours; then until one is given up as stuck in a driver call.
# Seconds. Ours.
TERM_S = 5.0
KILL_S = 10.0
MAX_COMMAND = 60  # characters of a command that are shown. Ours.
_STOPS_WAITING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True)
class Process:
    """A process that was left: its id and its command line, cut to a few words."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.command})"


def reap(ours: Ours, program: int) -> bool:
    """Reap orphans that have ended; return whether the program has, which is left to its own waiter."""
    _reap_all(ours, program)
    return os.waitid(os.P_PID, program, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def find(ours: Ours) -> tuple[Process, ...]:
    """Return the descendants of this process that have not ended, without `ours` and theirs."""
    found: list[Process] = []
    with ours.starting:
        waiting = [pid for pid in children(os.getpid()) if pid not in ours and not ours.has_session_of(pid)]
    while waiting:
        pid = waiting.pop(0)
        waiting += children(pid)
        command = _command(pid)
        if command is not None:
            found.append(Process(pid, command))
    return tuple(found)


def end(
    ours: Ours,
    *,
    term_s: float = TERM_S,
    kill_s: float = KILL_S,
    program: int | None = None,
    alone: bool = False,
) -> tuple[Process, ...]:
    """Send SIGTERM to what is left, SIGKILL after `term_s` or at a signal to this process; return what stays.

    `program`: one of them that is left to its own waiter to be reaped; `alone`: it only is ended.
    SIGCHLD and the signals that are to shorten the wait must be blocked. Main thread only.
    """

    def still_there() -> tuple[Process, ...]:
        return tuple(one for one in find(ours) if one.pid == program or not alone)

    for signum, limit_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        asked: set[int] = set()
        deadline = time.monotonic() + limit_s
        while left := still_there():
            for process in left:
                if process.pid not in asked:  # one that was started meanwhile is asked, too
                    asked.add(process.pid)
                    _send(process.pid, signum)
            seconds = deadline - time.monotonic()
            got = signal.sigtimedwait({signal.SIGCHLD, *_STOPS_WAITING}, max(seconds, 0))
            _reap_all(ours, program)
            if got is None or (got.si_signo in _STOPS_WAITING and signum == signal.SIGTERM):
                break
        if not left:
            _reap_all(ours, program)  # those that ended without being waited for; init may take its time
            return ()
    return still_there()


def children(pid: int) -> list[int]:
    """Return the process ids of the children of a process, oldest first; empty if it has ended.

    Source: /proc/PID/task/TID/children. The command: `ps --ppid PID`.
    """
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return sorted(found)


def _reap_all(ours: Ours, program: int | None = None) -> None:
    with ours.starting:
        for pid in children(os.getpid()):
            if pid != program and pid not in ours:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)


def _send(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)
        os.kill(pid, signal.SIGCONT)  # one that is stopped would not end by SIGTERM


def _command(pid: int) -> str | None:
    """Return the command line of a process; None if it has ended, be it as a zombie."""
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
