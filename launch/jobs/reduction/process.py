"""The process that times one reduction, seen from outside: started, listened to, ended on every way out."""

import contextlib
import os
import selectors
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from gputopo.launch.jobs.reduction.spec import Alive, Message, ReductionJob, Refused, Timed
from gputopo.launch.supervise import failure
from gputopo.launch.supervise.child import Child, adopting
from gputopo.launch.supervise.output import WorkerOutput

# A process that tells nothing for this long hangs. Loading TensorFlow from a cold disk takes up to a minute,
# and TensorFlow itself gives a collective up after 60 s.
SILENCE_LIMIT_S = 120.0
_END_LIMIT_S = 10.0  # after SIGKILL; longer: it is stuck in the driver
_PIECE_BYTES = 64 * 1024  # a pipe's default capacity
_PIECES_AT_ONCE = 16  # a pipe holds 1 MiB at most, unless a stranger goes on writing to it

Command = Callable[[ReductionJob, int], Sequence[str]]
"""Gives the command line that does a job and tells its messages through a file descriptor."""


def worker_command(job: ReductionJob, messages: int) -> Sequence[str]:
    """Give the command of the real worker. -P: files of the current folder do not shadow packages."""
    module = "gputopo.launch.jobs.reduction.worker"
    return (sys.executable, "-P", "-m", module, msgspec.json.encode(job).decode(), str(messages))


class ReductionProcess:
    """One worker: what it tells, until it has told the outcome, ended, or been silent for too long."""

    def __init__(
        self, job: ReductionJob, environment: Mapping[str, str], command: Command, limit_s: float
    ) -> None:
        self._job = job
        self._environment = environment
        self._command = command
        self._limit_s = limit_s
        self._rest = b""
        self._next = "its start"
        self._found: Timed | Refused | None = None

    def outcome(self) -> Timed | Refused:
        """Run it to its outcome. Its process group is gone afterwards, on every way out."""
        output = WorkerOutput(Path(os.devnull))
        with contextlib.closing(output), adopting():
            try:
                child = Child(lambda handle: self._command(self._job, handle), self._environment)
            except OSError as error:
                return Refused(says=f"cannot start the process: {error.strerror}")
            with contextlib.closing(child):
                try:
                    in_time = self._listen(child, output)
                finally:
                    status = child.end(within_s=_END_LIMIT_S)
                _drain(child.output, output.take)
                _drain(child.events, self._take)
        return self._found or Refused(says=self._why(status, in_time=in_time, lines=output.last_lines))

    def _listen(self, child: Child, output: WorkerOutput) -> bool:
        """Take what it tells until the outcome or its end (True), or until it was silent too long (False)."""
        with selectors.DefaultSelector() as selector:
            for handle in (child.events, child.output, child.ended):
                selector.register(handle, selectors.EVENT_READ)
            deadline = time.monotonic() + self._limit_s
            while self._found is None:
                ready = [key.fd for key, _ in selector.select(max(0.0, deadline - time.monotonic()))]
                if child.ended in ready:
                    break
                if not ready and time.monotonic() >= deadline:
                    return False
                for handle, take in ((child.events, self._take), (child.output, output.take)):
                    if handle not in ready:
                        continue
                    data = os.read(handle, _PIECE_BYTES)
                    if not data:
                        selector.unregister(handle)
                    take(data)
                if child.events in ready:
                    deadline = time.monotonic() + self._limit_s
        return True

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            message = _message(line)
            if isinstance(message, Alive):
                self._next = message.next
            elif self._found is None:
                self._found = message

    def _why(self, status: int | None, *, in_time: bool, lines: Sequence[str]) -> str:
        said = failure.last_words(lines)
        if not in_time:
            how = f"it hung at {self._next}: nothing came for {self._limit_s:g} s"
        elif status is None:
            how = "it does not end even by SIGKILL: it is stuck in the driver"
        elif status < 0:
            how = f"it was ended by {failure.signal_name(-status)} at {self._next}"
        else:
            how = f"it ended with exit code {status} at {self._next}"
        return f"{how}: {said}" if said else how


def _message(line: bytes) -> Message:
    try:
        found: Message = msgspec.json.decode(line, type=Message)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Refused(says=f"the process told what is no message: {line[:60].decode(errors='replace')!a}")
    return found


def _drain(handle: int, take: Callable[[bytes], None]) -> None:
    with contextlib.suppress(BlockingIOError):
        for _ in range(_PIECES_AT_ONCE):
            take(os.read(handle, _PIECE_BYTES))
