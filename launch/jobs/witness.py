"""Whether a signal was sent to the whole process group: `python witness.py`, which a Witness starts and asks.

kill(2) reports the same to a process whether the signal was for it alone or for its group, and a batch system
may signal each process of a job by itself. The witness is a member of the launcher's group that blocks every
signal: what is pending there, too, was sent to all. It is run by its path and imports nothing of ours, so
that it starts in a few milliseconds; what comes before that is pending as well, since the mask is inherited.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from types import TracebackType
from typing import Self

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Witness:
    """The process that is asked. A context manager that ends it.

    Start it from the main thread (see `probes.processes`), with the signals blocked that are asked for.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def saw(self, signum: int) -> bool:
        """Return whether it was sent this signal since it was asked last; False if it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(bytes((signum,)))
            return self._process.stdout.read(1) == b"y"
        except BrokenPipeError:
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def main(parent: int) -> int:
    """Answer each signal number that is read with y or n, to the end of the input."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    while asked := os.read(0, 1):
        came = signal.sigtimedwait({asked[0]}, 0) is not None
        with contextlib.suppress(BrokenPipeError):
            os.write(1, b"y" if came else b"n")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
