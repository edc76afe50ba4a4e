"""A child process that streams what it finds out, and whose driver calls are watched.

The child writes lines into a pipe, which outlive it, and notes each driver call in memory that it shares with
its parent: one that hangs or crashes is known by name, and costs no more than itself.
"""

import contextlib
import mmap
import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from gputopo.probes.child import CALL_S, Stop
from gputopo.probes.processes import ended_by, forked, reaped

_RAISED = b"!"  # first byte of a line that is the traceback of a fault of ours
_SLOT_BYTES = 256
_COUNT_BYTES = 8
_READ_BYTES = 2**16
# How often the calls are looked at. A pause counts for no more, so that Ctrl-Z is no hang.
_PAUSE_S = 0.1


class Limits(NamedTuple):
    """Seconds without any news after which the child is given up.

    `start_s`: of a call that may initialise GPUs: sixteen of 3 s each (see `child.WHOLE_S`). `call_s`: of any
    other call of CUDA: the engine's patience and 512 MiB at 50 MB/s from pageable memory are 16 s; twice
    that. `nvml_s`: of one of NVML. `quiet_s`: while no call is in progress; host memory of many NUMA nodes
    takes minutes. `end_s`: for the end of a child that is asked to end; `reap_s`: of one that was killed.
    """

    start_s: float = 60.0
    call_s: float = 30.0
    nvml_s: float = CALL_S
    quiet_s: float = 600.0
    end_s: float = 10.0
    reap_s: float = 2.0

    def of(self, function: str) -> float:
        """Return the limit of a call, `""` for none."""
        if not function:
            return self.quiet_s
        if function in _STARTS:
            return self.start_s
        return self.nvml_s if function.startswith("nvml") else self.call_s


_STARTS = {"cuInit", "cuDevicePrimaryCtxRetain"}


class CallSlot:
    """The driver call in progress, in shared memory: for one thread of the child."""

    def __init__(self, memory: mmap.mmap, place: int) -> None:
        self._memory = memory
        self._begin = place * _SLOT_BYTES
        self._text = self._begin + _COUNT_BYTES
        self._count = 0

    def begin(self, function: str, gpus: str = "") -> None:
        """Note the call that comes next. `gpus`: the indices of those that it is about, `3` or `3-5`."""
        line = f"{function} {gpus}\n".encode()[: _SLOT_BYTES - _COUNT_BYTES]
        self._memory[self._text : self._text + len(line)] = line
        self._advance()

    def end(self) -> None:
        """Note that it returned."""
        self._memory[self._text] = 10  # a newline
        self._advance()

    def read(self) -> tuple[int, str, tuple[int, ...]]:
        """Return the number of changes, the function in progress ("": none) and its GPUs."""
        whole = self._memory[self._begin : self._begin + _SLOT_BYTES]
        text = whole[_COUNT_BYTES:].partition(b"\n")[0].decode(errors="replace")
        function, _, gpus = text.strip("\0").partition(" ")
        numbers = tuple(int(one) for one in gpus.split("-") if one.isdecimal())
        return int.from_bytes(whole[:_COUNT_BYTES], "little"), function, numbers

    def _advance(self) -> None:
        self._count += 1
        self._memory[self._begin : self._text] = self._count.to_bytes(_COUNT_BYTES, "little")


class Feed:
    """The child's side: lines for the parent, and a slot for the calls of each driver library."""

    def __init__(self, memory: mmap.mmap, lines: int) -> None:
        self.cuda, self.nvml = CallSlot(memory, 0), CallSlot(memory, 1)
        self._lines = lines

    def put(self, value: object) -> None:
        """Write a line."""
        self._write(msgspec.json.encode(value) + b"\n")

    def raised(self, text: str) -> None:
        """Write the traceback of a fault of ours."""
        self._write(_RAISED + msgspec.json.encode(text) + b"\n")

    def _write(self, line: bytes) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # no half of a line
        try:
            while line:
                line = line[os.write(self._lines, line) :]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class StreamingChild:
    """A fork of this process that runs `work`. `lines` yields what it puts; `stop`: why there is no more.

    SIGUSR1 is a keyboard interrupt to the child (`interrupt`). It is killed when it is closed (`with`), and
    when this process ends in whatever way. `abandoned`: it was killed and does not end, since it is in an
    uninterruptible call. What the driver prints is dropped. Start it from the main thread. Raises OSError
    where the system allows no more processes.
    """

    def __init__(self, work: Callable[[Feed], None], limits: Limits) -> None:
        self.stop: Stop | None = None
        self.abandoned: int | None = None
        self._limits = limits
        self._memory = mmap.mmap(-1, 2 * _SLOT_BYTES)
        self._slots = (CallSlot(self._memory, 0), CallSlot(self._memory, 1))
        self._lines, lines = os.pipe()
        self._buffer = b""
        feed = Feed(self._memory, lines)

        def begin() -> None:
            with contextlib.suppress(KeyboardInterrupt):
                signal.signal(signal.SIGUSR1, signal.default_int_handler)
                work(feed)

        try:
            self._pid: int | None = forked(begin, feed.raised, (lines,))
        except OSError:
            os.close(self._lines)
            raise
        finally:
            os.close(lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kill()
        os.close(self._lines)
        self._memory.close()

    def interrupt(self) -> None:
        """Ask the child to end early."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGUSR1)

    def lines(self) -> Iterator[bytes]:
        """Yield its lines, and an empty one at each pause, until it ends or is given up: `stop`.

        Raises RuntimeError with the traceback of a fault of ours.
        """
        ready = select.poll()
        ready.register(self._lines, select.POLLIN)
        seen = [slot.read() for slot in self._slots]
        idle_s = 0.0
        while self._pid is not None:
            if ready.poll(1000 * _PAUSE_S):
                idle_s = 0.0
                if not (read := os.read(self._lines, _READ_BYTES)):
                    return self._ended()
                *lines, self._buffer = (self._buffer + read).split(b"\n")
                for line in lines:
                    if line.startswith(_RAISED):
                        text = msgspec.json.decode(line[1:], type=str)
                        raise RuntimeError(f"in the child process:\n{text}")
                    yield line
                continue
            idle_s += _PAUSE_S
            now = [slot.read() for slot in self._slots]
            if now != seen:
                seen, idle_s = now, 0.0
            functions = [function for _, function, _ in now if function] or [""]
            limit_s = min(map(self._limits.of, functions))
            if idle_s >= limit_s:
                return self._hung(limit_s)
            yield b""
        return None

    def finish(self) -> None:
        """Wait a little for the child to end by itself, then kill it."""
        if self._pid is not None and reaped(self._pid, self._limits.end_s) is not None:
            self._pid = None
        self._kill()

    def _call(self) -> tuple[str, tuple[int, ...]]:
        """Return the call in progress and its GPUs, that of CUDA first."""
        found = ((function, gpus) for _, function, gpus in (slot.read() for slot in self._slots) if function)
        return next(found, ("", ()))

    def _ended(self) -> None:
        """Note how a child ended that closed its pipe."""
        assert self._pid is not None
        status = reaped(self._pid, self._limits.end_s)
        if status is None:
            return self._hung(self._limits.end_s)
        self._pid = None
        function, gpus = self._call()
        how = f"ended the process with {ended_by(status)}"
        self.stop = Stop("crashed", function, gpus, how if function else how.replace("the process ", ""))
        return None

    def _hung(self, limit_s: float) -> None:
        function, gpus = self._call()
        how = "did not return within" if function else "made no progress for"
        self.stop = Stop("hung", function, gpus, f"{how} {limit_s:g} s")
        self._kill()

    def _kill(self) -> None:
        pid, self._pid = self._pid, None
        if pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if reaped(pid, self._limits.reap_s) is None:
            self.abandoned = pid


def state_of(pid: int) -> str:
    """Return the state of a process as ps has it: `D` for an uninterruptible call; "" for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
