"""Time that passes only while a call of the NVML double takes it, however busy this machine is."""

import ctypes
import mmap
import os
import select
import time

_LOOK_S = 0.1


class _Shared(ctypes.Structure):
    _fields_ = (("now_s", ctypes.c_double), ("until_s", ctypes.c_double), ("pid", ctypes.c_long))


class DriverTime:
    """`sleep` is for the double (FakeNvml.sleep); `look` is the `poll` of a child process of gputopo.probes.

    The process that waits for a call of the double makes the time of that call pass by looking. So twelve
    seconds take milliseconds, and a call that takes no time never seems to hang.
    """

    def __init__(self) -> None:
        self._shared = _Shared.from_buffer(mmap.mmap(-1, ctypes.sizeof(_Shared)))

    def sleep(self, seconds: float) -> None:
        """Take this many seconds in a call of the double; inf: never return."""
        shared = self._shared
        shared.pid, shared.until_s = os.getpid(), shared.now_s + seconds
        while shared.now_s < shared.until_s:
            time.sleep(0.0002)

    def look(self, lines: select.poll) -> tuple[bool, float]:
        """Return whether the calling process has sent lines, and the seconds that passed."""
        if lines.poll(0):
            return True, 0.0
        if self._shared.now_s < self._shared.until_s and os.path.exists(f"/proc/{self._shared.pid}"):
            self._shared.now_s += _LOOK_S
            return False, _LOOK_S
        return bool(lines.poll(1)), 0.0
