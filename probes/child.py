"""A child process for calls into a driver: one that hangs or crashes costs that call, not this program.

The child writes its answer, part by part, into memory that it shares with its parent, and before each call a
line that names it. The memory outlives the child: what was read is never lost with it. A byte in a pipe
reports an answer as complete.
"""

import contextlib
import mmap
import os
import select
import signal
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from gputopo.probes.processes import ended_by, forked, reaped

# NVIDIA, Driver Persistence (docs.nvidia.com/deploy/driver-persistence): without persistence mode the first
# call about a GPU initialises it, which takes 1 to 3 seconds. Three times the longest.
CALL_S = 10.0
# Sixteen GPUs of 3 seconds each; all other calls take less than a second together.
WHOLE_S = 60.0
# How long a killed child is waited for. One in an uninterruptible call cannot end: it is left to init.
_REAP_S = 0.5
# Ours: memory for the driver library. A garbage count of processes must not fill that of the machine.
_LIBRARY_BYTES = 2**30
# 256 GPUs with 36 NVLinks each write 30 MiB. Memory that is not written to is not allocated.
_SHARED_BYTES = 2**26
_LENGTH_BYTES = 8
# First byte of a line: a call, a traceback; others are parts in JSON.
_CALL, _RAISED = b"?", b"!"

StopKind = Literal["hung", "crashed"]


class Stop(NamedTuple):
    """The call that hung or crashed. `gpus`: the indices of those that it was about; `how`: in words.

    `function`: empty where it was no call of a driver.
    """

    kind: StopKind
    function: str
    gpus: tuple[int, ...]
    how: str

    @property
    def text(self) -> str:
        """The call and what became of it: `nvmlDeviceGetName of GPU 3 did not return within 10 s`."""
        numbers = " and ".join(map(str, self.gpus))
        about = f" of GPU{'s' if len(self.gpus) > 1 else ''} {numbers}" if self.gpus else ""
        return f"{self.function or 'the measuring process'}{about} {self.how}"


class Answer(NamedTuple):
    """What the child wrote: parts in JSON, and the calls with their GPUs. `stop`: why it is not complete."""

    parts: list[bytes]
    calls: list[tuple[str, tuple[int, ...]]]
    stop: Stop | None


class Desk:
    """The child's side of it: where its work writes answers and waits for requests."""

    def __init__(self, memory: mmap.mmap, requests: int, done: int) -> None:
        self._memory = memory
        self._requests = requests
        self._done = done
        self._begin()

    def call(self, function: str, gpus: str) -> None:
        """Note the call that comes next. `gpus`: the indices of those that it is about, `3` or `3-5`."""
        self._write(f"?{function} {gpus}\n".encode())

    def put(self, part: object) -> None:
        """Write a part of the answer."""
        self._write(msgspec.json.encode(part) + b"\n")

    def done(self) -> None:
        """Report the answer as complete."""
        os.write(self._done, b".")

    def wait(self) -> bool:
        """Wait for a request and begin the answer to it; False: there are no more."""
        if not os.read(self._requests, 1):
            return False
        self._begin()
        return True

    def raised(self, text: str) -> None:
        """Write the traceback of a fault of ours."""
        self._write(_RAISED + msgspec.json.encode(text) + b"\n")

    def _begin(self) -> None:
        self._end = _LENGTH_BYTES
        self._write(b"")

    def _write(self, line: bytes) -> None:
        begin, self._end = self._end, self._end + len(line)
        self._memory[begin : self._end] = line
        self._memory[:_LENGTH_BYTES] = self._end.to_bytes(_LENGTH_BYTES, "little")


class Child:
    """A fork of this process that runs `work`: it gives one answer by itself, and one for each `request`.

    `work` calls `Desk.done` after each answer. The child is killed when it is closed, and when this process
    ends in whatever way. What the driver prints is dropped. Start it from the main thread, with which it
    ends. Raises OSError where the system allows no more processes.
    """

    def __init__(self, work: Callable[[Desk], None]) -> None:
        self._memory = mmap.mmap(-1, _SHARED_BYTES)
        requests, self._requests = os.pipe()
        self._done, done = os.pipe()
        desk = Desk(self._memory, requests, done)
        try:
            self._pid: int | None = forked(
                lambda: work(desk), desk.raised, (requests, done), data_bytes=_LIBRARY_BYTES
            )
        except OSError:
            os.close(self._requests)
            os.close(self._done)
            raise
        finally:
            os.close(requests)
            os.close(done)
        self._status = 0

    def request(self) -> None:
        """Ask for the next answer."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, as its answer will show
            os.write(self._requests, b"\n")

    def answer(self, whole_s: float | None = None) -> Answer:
        """Wait for the answer: CALL_S at most for a call, `whole_s` (WHOLE_S) for all.

        A child that hangs is killed. Never raises for what a driver does.
        """
        how = self._wait(WHOLE_S if whole_s is None else whole_s)
        if how is not None:
            self.kill()
        parts, calls = self._read()
        if how is None:
            return Answer(parts, calls, None)
        function, gpus = calls[-1] if calls else ("the first call", ())
        if how:
            return Answer(parts, calls, Stop("hung", function, gpus, how))
        return Answer(
            parts, calls, Stop("crashed", function, gpus, f"ended the process with {ended_by(self._status)}")
        )

    def kill(self) -> None:
        """Kill the child."""
        pid, self._pid = self._pid, None
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._status = reaped(pid, _REAP_S) or 0

    def close(self) -> None:
        """Kill the child, and close what it was asked through."""
        self.kill()
        for pipe in (self._requests, self._done):
            os.close(pipe)
        self._memory.close()

    def _wait(self, whole_s: float) -> str | None:
        """Return None for a complete answer, "" for a child that ended, else how it hangs.

        A pause counts for no more than it was meant to last: this process may have been stopped (Ctrl-Z).
        """
        done = select.poll()
        done.register(self._done, select.POLLIN)
        pause_s = min(CALL_S, whole_s) / 20
        idle_s = all_s = 0.0
        written = -1
        while not done.poll(1000 * pause_s):
            all_s += pause_s
            idle_s += pause_s
            if self._length() != written:
                written, idle_s = self._length(), 0.0
            if idle_s >= CALL_S:
                return f"did not return within {CALL_S:g} s"
            if all_s >= whole_s:
                return f"was the last call: the driver did not give all answers within {WHOLE_S:g} s"
        return None if os.read(self._done, 1) else ""

    def _length(self) -> int:
        return int.from_bytes(self._memory[:_LENGTH_BYTES], "little")

    def _read(self) -> tuple[list[bytes], list[tuple[str, tuple[int, ...]]]]:
        """Return the parts and the calls. Raises RuntimeError with the traceback of a fault of ours."""
        parts, calls = [], []
        for line in self._memory[_LENGTH_BYTES : self._length()].split(b"\n")[:-1]:
            if line.startswith(_CALL):
                function, _, gpus = line[1:].decode().partition(" ")
                calls.append((function, tuple(map(int, filter(None, gpus.split("-"))))))
            elif line.startswith(_RAISED):
                raise RuntimeError(f"in the child process:\n{msgspec.json.decode(line[1:])}")
            else:
                parts.append(line)
        return parts, calls
