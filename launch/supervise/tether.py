"""A program that does not outlive its launcher: `python tether.py SIGNAL PARENT PROGRAM ARGS...`.

The kernel sends SIGNAL to the program when the process PARENT dies, however it dies: a launcher that was
killed with SIGKILL cannot end its worker itself. The setting (PR_SET_PDEATHSIG, prctl(2)) outlives exec, so
this file runs first in the child and then becomes the program. Signals that the launcher blocked are
unblocked. It is run by its path and imports nothing of ours, so that it starts in a few milliseconds.

It takes the CPUs and the NUMA node that its environment names (`gputopo.launch.spec.host_place`), as far as
it may: CPUs that it was refused before, and a memory policy that was set before (numactl), stay.
"""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_CANNOT_RUN, _NOT_FOUND = 126, 127  # the exit codes of a shell
_CPUS, _MEMORY_NODE = "GPUTOPO_CPUS", "GPUTOPO_MEMORY_NODE"
# get_mempolicy(2), set_mempolicy(2): their numbers, which libc has no functions for; linux/mempolicy.h.
_SYSCALLS = {"x86_64": (239, 238), "aarch64": (236, 237)}
_MPOL_DEFAULT, _MPOL_PREFERRED = 0, 1
_BITS = 64  # of a word of a node mask


def main(arguments: list[str]) -> int:
    """Set the tether and become the program; returns only the exit code of a failure."""
    signum, parent, program = int(arguments[0]), int(arguments[1]), arguments[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # it died before the tether was set
        return 128 + signum
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    with contextlib.suppress(OSError, ValueError):  # the program runs on other CPUs as well
        _take_cpus(os.environ.get(_CPUS, ""))
    with contextlib.suppress(ValueError):
        _prefer_memory(libc, int(os.environ.get(_MEMORY_NODE, "")))
    try:
        os.execvp(program[0], program)
    except OSError as error:
        with contextlib.suppress(OSError):  # a stderr that is full or closed; a stream would try again
            os.write(2, os.fsencode(f"cannot run {program[0]}: {error.strerror}\n"))
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN


def _take_cpus(listed: str) -> None:
    """Run on the CPUs of a list such as `0-9,20-29` that this process may use, if there are any."""
    cpus: set[int] = set()
    for part in listed.split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    allowed = cpus & os.sched_getaffinity(0)
    if allowed:
        os.sched_setaffinity(0, allowed)


def _prefer_memory(libc: ctypes.CDLL, node: int) -> None:
    """Prefer a NUMA node's memory; a container may forbid it, and then memory comes from the CPUs' node."""
    if os.uname().machine not in _SYSCALLS:
        return
    asks, sets = _SYSCALLS[os.uname().machine]
    mode = ctypes.c_int(-1)
    libc.syscall(asks, ctypes.byref(mode), None, 0, None, 0)
    if mode.value != _MPOL_DEFAULT:
        return
    mask = (ctypes.c_ulong * (node // _BITS + 1))()
    mask[node // _BITS] = 1 << node % _BITS
    libc.syscall(sets, _MPOL_PREFERRED, mask, len(mask) * _BITS + 1)


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
