"""Runs the user's program on the planned GPUs: its terminal, its signals, its exit code.

The program stays in the launcher's process group and gets its stdin, stdout and stderr, so what reads keys or
draws on the terminal works as without gputopo. If the launcher is killed, the program gets SIGTERM.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from gputopo.launch.supervise.tether import tethered
from gputopo.values.errors import UsageError

_PASSED_ON = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_BY_THE_TERMINAL = 0x80  # SI_KERNEL of <bits/siginfo-consts.h>; a signal of another process has 0 or less


def check_program(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise UsageError if there is no such program, or it may not be run."""
    name = command[0]
    if shutil.which(name, path=environment.get("PATH", os.defpath)) is not None:
        return
    if Path(name).is_file():
        raise UsageError(f"{name} is not executable", f"name what runs it first: -- python {name}")
    raise UsageError(f"there is no program {name}", "after --, write the command as without gputopo")


def run_program(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program to its end and return its exit code; 128 + n if signal n ended it.

    SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on, but not those that the terminal sends
    to the whole group: the program has had them. Raises UsageError if it is not there. Main thread only.
    """
    check_program(command, environment)
    waited_for = _PASSED_ON | {signal.SIGCHLD}
    at_child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # were it ignored, the exit code would be lost
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    try:
        process = subprocess.Popen(tethered(list(command), signal.SIGTERM), env=dict(environment))
        while not _has_ended(process.pid):
            got = signal.sigwaitinfo(waited_for)
            if got.si_signo != signal.SIGCHLD and got.si_code != _BY_THE_TERMINAL:
                _send(process.pid, got.si_signo)
        status = process.wait()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGCHLD, at_child)
    return status if status >= 0 else 128 - status


def _send(pid: int, signum: int) -> None:
    # Popen.send_signal would reap a program that has ended, and then there is none to wait for.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
