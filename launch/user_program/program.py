"""Runs the user's program on the planned GPUs: its terminal, its signals, its exit code.

The program stays in the launcher's process group and gets its stdin, stdout and stderr, so what reads keys or
draws on the terminal works as without gputopo. If the launcher is killed, the program gets SIGTERM.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gputopo.launch.failure import signal_name
from gputopo.launch.jobs.witness import Witness
from gputopo.launch.supervise.cgroup import oom_kills
from gputopo.launch.supervise.child import Ours, adopting
from gputopo.launch.user_program import leftovers
from gputopo.probes.processes import tethered
from gputopo.values.errors import ExitCode, UsageError

_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_BY_THE_TERMINAL = 0x80  # SI_KERNEL of <bits/siginfo-consts.h>; a signal of another process has 0 or less
# One request for many processes: Slurm, systemd and timeout(1) signal one after another, within a few ms; a
# person takes longer for a second Ctrl-C. Seconds. Ours.
ONE_REQUEST_S = 0.05

Report = Callable[[str], None]


@dataclass(frozen=True)
class Ending:
    """How a program ended. `status`: as subprocess has it, -n for signal n.

    `passed`: the signals that came for it. `out_of_memory`: SIGKILL, while the kernel's count of such kills
    rose. `left`: processes that it left behind, in words. `stopped`: the exit code for which it was ended,
    whatever it ended with: it hung, or the run failed elsewhere (see Stop).
    """

    status: int
    passed: frozenset[int] = frozenset()
    out_of_memory: bool = False
    left: str | None = None
    stopped: int | None = None

    @property
    def exit_code(self) -> int:
        """The program's exit code; 128 + n if signal n ended it; that for which it was stopped."""
        if self.stopped is not None:
            return self.stopped
        return self.status if self.status >= 0 else 128 - self.status


class Stop:
    """Lets another thread than that of `run_program` end the program, as one that hangs.

    `exit_code`: what its run ends with then.
    """

    def __init__(self) -> None:
        self._decided = threading.Lock()
        self.asked = False
        self.exit_code = int(ExitCode.HARDWARE)

    def ask(self, exit_code: int = ExitCode.HARDWARE) -> bool:
        """Ask for the end of the program; False where it has ended by itself."""
        if not self._decided.acquire(blocking=False):
            return False
        self.exit_code = int(exit_code)
        self.asked = True
        # Wakes `run_program`, and is ignored by default should that be over.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGCHLD)
        return True

    def over(self) -> bool:
        """Note that the program has ended; return whether its end was asked for before."""
        return not self._decided.acquire(blocking=False)


def check_program(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise UsageError if there is no such program, or it may not be run."""
    name = command[0]
    if shutil.which(name, path=environment.get("PATH", os.defpath)) is not None:
        return
    if Path(name).is_dir():
        raise UsageError(f"{name} is a folder", "after --, write the command as without gputopo")
    if Path(name).is_file():
        raise UsageError(f"{name} is not executable", f"name what runs it first: -- python {name}")
    raise UsageError(f"there is no program {name}", "after --, write the command as without gputopo")


def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    report: Report = lambda line: None,
    leave_children: bool = False,
    ours: Ours | None = None,
    stop: Stop | None = None,
    on_end: Callable[[Ending], None] = lambda ending: None,
    count_oom_kills: Callable[[], int | None] = oom_kills,
) -> Ending:
    """Run a program to its end.

    SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on, but not those that were sent to the
    whole group, by the terminal or by a process: the program has had them. `report` gets a line for a signal
    that ended the program, and for processes that it left behind: they are ended, or left running with
    `leave_children`. `ours`: children that other threads start meanwhile. `stop`: where one asks for the end
    of a program that hangs: it and its descendants get SIGTERM, and SIGKILL after some seconds; with
    `leave_children` it alone. `on_end` is called as soon as the program has ended, before what it left behind
    is. Raises UsageError if the program is not there. Main thread only.
    """
    check_program(command, environment)
    waited_for = _PASSED_ON | {signal.SIGCHLD}
    at_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # were it ignored, the exit code would be lost
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    kills_before = count_oom_kills()
    ours = Ours() if ours is None else ours
    stop = Stop() if stop is None else stop
    ours.add(*leftovers.children(os.getpid()))
    try:
        with adopting(), Witness() as witness:
            ours.add(witness.pid)
            process = subprocess.Popen(tethered(list(command), signal.SIGTERM), env=dict(environment))
            passed: set[int] = set()
            while not leftovers.reap(ours, process.pid) and not stop.asked:
                got = signal.sigwaitinfo(waited_for)
                if got.si_signo != signal.SIGCHLD:
                    passed.add(got.si_signo)
                    _pass_on(got, process.pid, witness)
            stopped = stop.exit_code if stop.over() else None
            if stopped is not None:
                _end_stopped(process, ours, report, alone=leave_children)
            status = process.wait()
            kills = _difference(kills_before, count_oom_kills())
            killed = -status == signal.SIGKILL and kills > 0 and stopped is None
            ending = Ending(status, frozenset(passed), killed, stopped=stopped)
            on_end(ending)
            if stopped is None and -status not in (0, signal.SIGPIPE, *passed) and status < 0:
                report(_killed(command[0], -status, kills))
            left = _end_leftovers(command[0], ours, report, leave=leave_children)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGCHLD, at_child)
    return replace(ending, left=left)


def _end_stopped(process: subprocess.Popen[bytes], ours: Ours, report: Report, *, alone: bool) -> None:
    """End a program, such as one that hangs; one that is stuck in a driver call is given up."""
    stuck = leftovers.end(ours, program=process.pid, alone=alone)
    _report_stuck(stuck, report)
    if any(one.pid == process.pid for one in stuck):
        process.returncode = -signal.SIGKILL  # there is no end to wait for


def _pass_on(got: signal.struct_siginfo, program: int, witness: Witness) -> None:
    """Send the program a signal that came to the launcher, unless the program had it, too."""
    if got.si_code == _BY_THE_TERMINAL:
        return
    time.sleep(ONE_REQUEST_S)
    while signal.sigtimedwait({got.si_signo}, 0) is not None:
        pass  # the same request once more
    if witness.saw(got.si_signo) and _is_of_our_group(program):
        return
    # Popen.send_signal would reap a program that has ended, and then there is none to wait for.
    with contextlib.suppress(ProcessLookupError):
        os.kill(program, got.si_signo)


def _is_of_our_group(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid) == os.getpgrp()
    return True


def _difference(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else after - before


def _killed(name: str, signum: int, kills: int) -> str:
    words = f"{name} was killed by {signal_name(signum)}"
    if signum == signal.SIGKILL and kills > 0:
        return f"{words}: the kernel's count of out-of-memory kills rose during the run"
    return words


def _end_leftovers(name: str, ours: Ours, report: Report, *, leave: bool) -> str | None:
    """Report and return the processes that the program left behind; end them unless they are to be left."""
    left = leftovers.find(ours)
    if not left:
        return None
    named = ", ".join(map(str, left))
    count = "a process" if len(left) == 1 else f"{len(left)} processes"
    if leave:
        said = f"{name} left {count} running: {named}"
        report(said)
        return said
    report(f"{name} left {count} behind, which gputopo ends (--leave-children does not): {named}")
    _report_stuck(leftovers.end(ours), report)
    return f"{name} left {count} behind: {named}"


def _report_stuck(stuck: Sequence[leftovers.Process], report: Report) -> None:
    if stuck:
        report(f"{', '.join(map(str, stuck))}: not ended even by SIGKILL")
