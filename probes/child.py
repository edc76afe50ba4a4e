"""A child process for calls into a driver: a call that hangs or crashes does not take this program with it.

The child writes its answers as lines into a pipe. Before each call, it writes the name of the call to memory
that it shares with its parent. So the parent knows which call hung or crashed, and keeps what was read
before.
"""

import contextlib
import fcntl
import mmap
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple, Self

import msgspec

from gputopo.probes.processes import ended_by, forked, reaped
from gputopo.values.schema import as_text

# Calls that may initialise GPUs. Without persistence mode the driver initialises a GPU again for each
# program: 1 to 3 s per GPU (docs.nvidia.com/deploy/driver-persistence). Over 25 s and 30 s were reported for
# eight A100 (Azure/AgentBaker#2829, Azure/aks-gpu#105), and one call may take all of it: twice that.
START_S = 60.0
_STARTING = (
    "cuInit",
    "cuDevicePrimaryCtxRetain",
    "nvmlInit",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
)
# Limit for any other NVML call, which takes milliseconds. Not measured; chosen because a busy driver may be
# slow.
CALL_S = 10.0
# Limit for all NVML calls together: nvmlInit, the count and the handle of the first GPU, and for each GPU ten
# times the 3 s of NVIDIA's page.
WHOLE_S, WHOLE_GPU_S = 3 * START_S, 30.0
# Memory for the driver library. Not measured; chosen because a wrong process count must not fill the
# machine's memory.
_LIBRARY_BYTES = 2**30
_SLOT_BYTES = 256
_COUNT_BYTES = 8
_READ_BYTES = 2**16
_PIPE_BYTES = 2**20  # linux/pipe(7): the limit for users; 16 GPUs write less, so the child does not wait
# How often the calls are checked. A check never counts for more time, so Ctrl-Z does not look like a hang.
_LOOK_S = 0.1
_DONE = b"."  # a line: the answer is complete
_RAISED = b"!"  # first byte of a line that is the traceback of an exception; others are JSON

StopKind = Literal["hung", "crashed"]


class DriverStop(NamedTuple):
    """The call that hung or crashed."""

    kind: StopKind
    function: str  # empty if it was not a driver call
    gpus: tuple[int, ...]  # the GPUs that the call was about
    how: str  # `did not return within 10 s`

    @property
    def text(self) -> str:
        """The call and how it ended: `nvmlDeviceGetName of GPU 3 did not return within 10 s`."""
        numbers = " and ".join(map(str, self.gpus))
        about = f" of GPU{'s' if len(self.gpus) > 1 else ''} {numbers}" if self.gpus else ""
        return f"{self.function or 'the measuring process'}{about} {self.how}"


class CallLimits(NamedTuple):
    """Seconds without a new call or line after which a child is killed."""

    start_s: float = START_S  # for a call that may initialise GPUs
    # For any other CUDA call: the engine's own wait and 512 MiB at 50 MB/s from pageable memory take 16 s.
    call_s: float = 30.0
    nvml_s: float = CALL_S
    quiet_s: float = 600.0  # while no call is in progress; host memory of many NUMA nodes takes minutes
    end_s: float = 10.0  # for the end of a child that is asked to end
    reap_s: float = 2.0  # for a killed child to end; it cannot end in an uninterruptible call

    def of(self, function: str) -> float:
        """Return the limit of a call. `""` is no call in progress."""
        if not function:
            return self.quiet_s
        if is_starting(function):
            return self.start_s
        return self.nvml_s if function.startswith("nvml") else self.call_s


NVML_LIMITS = CallLimits(quiet_s=CALL_S, reap_s=0.5)


def is_starting(function: str) -> bool:
    """Return whether a call may initialise GPUs, which takes seconds."""
    return function in _STARTING


def whole_s(gpus: int) -> float:
    """Return the seconds that all NVML answers about this number of GPUs may take together."""
    return WHOLE_S + gpus * WHOLE_GPU_S


class TimeLimit:
    """Seconds that the driver's answers may take together. The limit can be raised while they are read."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.passed_s = 0.0


# Waits for lines; returns whether there are any, and the seconds to count for the wait.
Poll = Callable[[select.poll], tuple[bool, float]]


def look(lines: select.poll) -> tuple[bool, float]:
    """Wait briefly for lines. Return whether there are any, and the seconds to count for the wait."""
    began_s = time.monotonic()
    has_lines = bool(lines.poll(1000 * _LOOK_S))
    return has_lines, min(time.monotonic() - began_s, _LOOK_S)


class CallSlot:
    """The driver call in progress in one thread of the child, in shared memory."""

    def __init__(self, memory: mmap.mmap, place: int) -> None:
        self._memory = memory
        self._begin = place * _SLOT_BYTES
        self._text = self._begin + _COUNT_BYTES
        self._changes = 0

    def begin(self, function: str, gpus: str = "") -> None:
        """Note the next call. `gpus`: the indices of the GPUs that it is about, `3` or `3-5`."""
        line = f"{function} {gpus}\n".encode()[: _SLOT_BYTES - _COUNT_BYTES]
        self._memory[self._text : self._text + len(line)] = line
        self._advance()

    def end(self) -> None:
        """Note that the call returned."""
        self._memory[self._text] = 10  # a newline
        self._advance()

    def changes(self) -> bytes:
        """Return a count that changes with each call."""
        return self._memory[self._begin : self._text]

    def read(self) -> tuple[str, tuple[int, ...]]:
        """Return the function in progress ("": none) and the GPUs that it is about."""
        text = self._memory[self._text : self._begin + _SLOT_BYTES].partition(b"\n")[0]
        function, _, gpus = text.decode(errors="replace").strip("\0").partition(" ")
        return function, tuple(int(gpu) for gpu in gpus.split("-") if gpu.isdecimal())

    def _advance(self) -> None:
        self._changes += 1
        self._memory[self._begin : self._text] = self._changes.to_bytes(_COUNT_BYTES, "little")


class Channel:
    """The child's side: lines for the parent, its requests, and a slot for the calls of each library."""

    def __init__(self, memory: mmap.mmap, lines: int, requests: int) -> None:
        self.cuda, self.nvml = CallSlot(memory, 0), CallSlot(memory, 1)
        self._lines, self._requests = lines, requests

    def put(self, value: object) -> None:
        """Write a line."""
        self._write(msgspec.json.encode(value, enc_hook=as_text))

    def done(self) -> None:
        """Report an answer as complete."""
        self.nvml.end()
        self._write(_DONE)

    def wait(self) -> bool:
        """Wait for a request; return False if there are no more."""
        return bool(os.read(self._requests, 1))

    def raised(self, text: str) -> None:
        """Write the traceback of an exception."""
        self._write(_RAISED + msgspec.json.encode(text))

    def _write(self, line: bytes) -> None:
        left = line + b"\n"
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # never write only part of a line
        try:
            while left:
                left = left[os.write(self._lines, left) :]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class DriverChild:
    """A fork of this process that runs `work`; what the driver prints is dropped.

    It sends one answer without a request and one for each `request` (`answer`), or lines until it ends
    (`lines`). SIGUSR1 is a keyboard interrupt to it (`interrupt`). It is killed when it is closed (`with`),
    and when this process ends in whatever way. Start it from the main thread. Raises OSError if the system
    allows no more processes. `limits`: None for a child that asks NVML, whose memory is limited as well.
    `poll`: waits for the child's lines; None: with the clock of this machine. `pid`: its process id, None
    after its end.
    """

    def __init__(
        self, work: Callable[[Channel], None], limits: CallLimits | None = None, poll: Poll | None = None
    ) -> None:
        self.stop: DriverStop | None = None  # why there is no more to read
        self.abandoned: int | None = None  # the process id, if it was killed and does not end
        self._limits = limits or NVML_LIMITS
        self._poll = poll or look
        self._memory = mmap.mmap(-1, 2 * _SLOT_BYTES)
        self._slots = (CallSlot(self._memory, 0), CallSlot(self._memory, 1))
        self._lines, lines = os.pipe()
        requests, self._requests = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(lines, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._read = b""
        self._queue: list[bytes] = []
        channel = Channel(self._memory, lines, requests)

        def begin() -> None:
            with contextlib.suppress(KeyboardInterrupt):
                signal.signal(signal.SIGUSR1, signal.default_int_handler)
                work(channel)

        try:
            data_bytes = _LIBRARY_BYTES if limits is None else None
            self.pid: int | None = forked(begin, channel.raised, (lines, requests), data_bytes)
        except OSError:
            os.close(self._lines)
            os.close(self._requests)
            raise
        finally:
            os.close(lines)
            os.close(requests)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the child, and close the pipes and the shared memory."""
        self.kill()
        os.close(self._lines)
        os.close(self._requests)
        self._memory.close()

    def request(self) -> None:
        """Request the next answer."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, as its answer will show
            os.write(self._requests, b"\n")

    def interrupt(self) -> None:
        """Ask the child to end early."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGUSR1)

    def call(self) -> tuple[str, tuple[int, ...]]:
        """Return the call in progress ("": none) and the GPUs that it is about: CUDA's, or else NVML's."""
        return next((call for slot in self._slots if (call := slot.read())[0]), ("", ()))

    def answer(self, limit_s: float = inf) -> list[bytes]:
        """Return the lines of an answer. Stops after `limit_s` seconds, and at a call that hangs or crashes.

        Never raises for what a driver does.
        """
        return [line for line in self.parts(TimeLimit(limit_s)) if line]

    def parts(self, limit: TimeLimit) -> Iterator[bytes]:
        """Yield the lines of an answer as they come, and an empty one at each pause; see `answer`."""
        for line in self.lines(limit):
            if line == _DONE:
                break
            yield line

    def lines(self, limit: TimeLimit | None = None) -> Iterator[bytes]:
        """Yield the child's lines, and an empty one at each pause, until it ends or is killed (`stop`).

        Raises RuntimeError with the traceback of an exception in the child.
        """
        limit = limit or TimeLimit(inf)
        ready = select.poll()
        ready.register(self._lines, select.POLLIN)
        seen = [(slot.changes(), slot.read()) for slot in self._slots]
        idle_s = 0.0
        while self.pid is not None:
            has_lines, passed_s = self._poll(ready)
            idle_s += passed_s
            limit.passed_s += passed_s
            if has_lines:
                idle_s = 0.0
                if not (read := os.read(self._lines, _READ_BYTES)):
                    return self._ended()
                *lines, self._read = (self._read + read).split(b"\n")
                self._queue += lines
                while self._queue:
                    line = self._queue.pop(0)
                    if line.startswith(_RAISED):
                        text = msgspec.json.decode(line[1:], type=str)
                        raise RuntimeError(f"in the child process:\n{text}")
                    yield line
            else:
                # The limit belongs to the call that was seen. The next call may start at any time, and the
                # time of the call before must not count for it.
                now = [(slot.changes(), slot.read()) for slot in self._slots]
                if now != seen:
                    seen, idle_s = now, 0.0
                functions = [function for _, (function, _) in now if function] or [""]
                limit_s = min(map(self._limits.of, functions))
                if idle_s >= limit_s:
                    how = "did not return within" if functions[0] else "made no progress for"
                    return self._hung(f"{how} {limit_s:g} s")
                yield b""
            if limit.passed_s >= limit.limit_s:
                return self._hung(
                    f"was the last call: the driver did not give all answers within {limit.limit_s:g} s"
                )
        return None

    def finish(self) -> None:
        """Wait briefly for the child to end by itself, then kill it."""
        if self.pid is not None and reaped(self.pid, self._limits.end_s) is not None:
            self.pid = None
        self.kill()

    def kill(self) -> None:
        """Kill the child."""
        pid, self.pid = self.pid, None
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if reaped(pid, self._limits.reap_s) is None:
            self.abandoned = pid

    def _ended(self) -> None:
        """Note how the child ended after it closed its pipe."""
        if self.pid is None:  # killed by another thread
            return
        status = reaped(self.pid, self._limits.end_s)
        if status is None:
            self._hung(f"did not return within {self._limits.end_s:g} s")
            return
        self.pid = None
        function, gpus = self.call()
        how = f"ended {'the process ' if function else ''}with {ended_by(status)}"
        self.stop = DriverStop("crashed", function, gpus, how)

    def _hung(self, how: str) -> None:
        self.stop = DriverStop("hung", *self.call(), how)
        self.kill()


def state_of(pid: int) -> str:
    """Return the state of a process as ps prints it, such as `D` (uninterruptible); "" without a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
