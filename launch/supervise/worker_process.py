"""The process of a worker, the pipes to it, and the children that the supervisor has to wait for."""

import ctypes
import os
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from gputopo.probes import kill_group, tethered

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37  # linux/prctl.h

Command = Callable[[int], Sequence[str]]
"""Makes the command line of a worker that writes its events to this file descriptor."""


class WorkerProcess:
    """One worker and the launcher's ends of its three pipes.

    `events`: its event lines. `output`: its stdout and stderr, including output of C++. `ended`: becomes
    readable (end of file) when the worker has ended. All are non-blocking. `peak_bytes`: its peak memory once
    it has been reaped, 0 if unknown. Use it as a context: at the end the whole process group is killed and
    reaped.
    """

    def __init__(self, command: Command, environment: Mapping[str, str]) -> None:
        """Start it. Raises OSError if no process can be started. Main thread only (see `processes`)."""
        self.events, events_in = _pipe()
        self.output, output_in = _pipe()
        self.ended, self._ended_in = _pipe()
        try:
            self._process = subprocess.Popen(
                tethered(list(command(events_in))),
                stdin=subprocess.DEVNULL,
                stdout=output_in,
                stderr=output_in,
                pass_fds=(events_in,),
                start_new_session=True,
                env=dict(environment),
            )
        except OSError:
            for handle in (self.events, self.output, self.ended, self._ended_in):
                os.close(handle)
            raise
        finally:
            os.close(events_in)
            os.close(output_in)
        self.peak_bytes = 0
        self._ending = threading.Thread(target=self._signal_end, name="worker-end", daemon=True)
        self._ending.start()

    @property
    def pid(self) -> int:
        """Its process id, which is also the id of its group and session."""
        return self._process.pid

    def state(self) -> tuple[str, float]:
        """Its state and CPU time (see `process_state`)."""
        return process_state(self.pid)

    def signal(self, signum: int) -> None:
        """Send a signal to the worker only; it may have ended already."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signum)

    def signal_group(self, signum: int) -> None:
        """Send a signal to the worker's whole process group, which may be empty."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signum)

    def end(self, *, within_s: float) -> int | None:
        """Kill the rest of the group, reap it, and return the worker's exit status (-n: signal n).

        None if it does not end within that time: a process in an uninterruptible driver call cannot be ended.
        """
        kill_group(self.pid)
        self._ending.join(within_s)
        if self._ending.is_alive():
            return None
        status = self._reap()
        reaper = threading.Thread(target=self._reap_group, name="worker-reaper", daemon=True)
        reaper.start()
        reaper.join(within_s)
        return status

    def close(self) -> None:
        """Close the launcher's ends of the pipes."""
        for handle in (self.events, self.output, self.ended):
            os.close(handle)

    def _signal_end(self) -> None:
        # WNOWAIT leaves it as a zombie, so that its pid, which is also the id of its group, is not used again
        # before the group has been killed.
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        os.close(self._ended_in)

    def _reap(self) -> int:
        """Reap the worker, which is a zombie, with its resource usage."""
        try:
            _, status, used = os.wait4(self.pid, 0)
        except ChildProcessError:  # SIGCHLD is set to be ignored
            return self._process.wait()
        # Linux also counts the memory before exec, which is the memory of this process.
        self.peak_bytes = used.ru_maxrss * 1024 if used.ru_maxrss > _own_peak_kib() else 0
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode

    def _reap_group(self) -> None:
        # This process has adopted the worker's children when the worker died (see `adopting`).
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-self.pid, 0)


def process_state(pid: int) -> tuple[str, float]:
    """Return the state of a process, the letter of proc(5), and its CPU time in seconds.

    "?" if it has been reaped.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "?", 0.0
    return fields[0].decode(), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class OwnChildren:
    """Children of this process that other code waits for, and all processes in their sessions.

    Threads that start a child hold `starting` until they have added it, so that it is not reaped in between.
    """

    def __init__(self) -> None:
        self.starting = threading.Lock()
        self._pids: set[int] = set()

    def add(self, *pids: int) -> None:
        """Add process ids."""
        self._pids.update(pids)

    def __contains__(self, pid: int) -> bool:
        return pid in self._pids

    def has_session_of(self, pid: int) -> bool:
        """Whether a process belongs to one of them. The leader of its session may have ended."""
        with suppress(OSError):
            return os.getsid(pid) in self._pids
        return False


@contextmanager
def adopting() -> Iterator[None]:
    """Become the parent of orphaned descendants, so that they can be reaped here and not by process 1.

    In a container, process 1 is often a program that never reaps. Linux 3.4; see PR_SET_CHILD_SUBREAPER in
    prctl(2). The earlier setting is restored at the end.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def _pipe() -> tuple[int, int]:
    """A pipe whose read end does not block."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    return reading, writing


def _own_peak_kib() -> int:
    """Peak memory of this process since its exec, in KiB."""
    with (
        suppress(OSError, StopIteration),
        open("/proc/self/status", encoding="ascii", errors="replace") as lines,
    ):
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
