"""A program that does not outlive its launcher: `python tether.py SIGNAL PARENT PROGRAM ARGS...`.

The kernel sends SIGNAL to the program when the process PARENT dies, however it dies: a launcher that was
killed with SIGKILL cannot end its worker itself. The setting (PR_SET_PDEATHSIG, prctl(2)) outlives exec, so
this file runs first in the child and then becomes the program. Signals that the launcher blocked are
unblocked. It is run by its path and imports nothing of ours, so that it starts in a few milliseconds.
"""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_CANNOT_RUN, _NOT_FOUND = 126, 127  # the exit codes of a shell


def main(arguments: list[str]) -> int:
    """Set the tether and become the program; returns only the exit code of a failure."""
    signum, parent, program = int(arguments[0]), int(arguments[1]), arguments[2:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # it died before the tether was set
        return 128 + signum
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    try:
        os.execvp(program[0], program)
    except OSError as error:
        with contextlib.suppress(OSError):  # a stderr that is full or closed; a stream would try again
            os.write(2, os.fsencode(f"cannot run {program[0]}: {error.strerror}\n"))
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN


def tethered(program: list[str], signum: int) -> list[str]:
    """Return the command that runs the program tethered to this process.

    The signal comes when the *thread* that started the child ends, so start it from the main thread.
    """
    return [
        sys.executable,
        "-I",
        "-S",
        os.path.abspath(__file__),
        str(int(signum)),
        str(os.getpid()),
        *program,
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
