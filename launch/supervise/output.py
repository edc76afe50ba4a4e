"""Events read line by line from the chunks of a pipe."""

import collections
import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gputopo.values.run.events import (
    BatchTried,
    CheckpointSaved,
    Evaluated,
    Event,
    Exported,
    LossNotFinite,
    MemoryPeak,
    ModelBuilt,
    Noticed,
    PhaseBegun,
    PlacementChecked,
    RankFailed,
    ReplicasCompared,
    Resumed,
    Silent,
    Step,
    Traced,
    WarmupDone,
    decode_line,
)

WORKER_EVENTS = (
    ModelBuilt,
    PlacementChecked,
    WarmupDone,
    Step,
    ReplicasCompared,
    PhaseBegun,
    Silent,
    Noticed,
    Resumed,
    CheckpointSaved,
    Evaluated,
    Exported,
    Traced,
    LossNotFinite,
    MemoryPeak,
    BatchTried,
    RankFailed,
)
MAX_LINE_BYTES = 16 * 1024 * 1024  # a step of a thousand towers is far below


class NotAnEventError(Exception):
    """The worker wrote a line that is none of its events; the message holds its beginning."""


class EventLines:
    """Splits what comes through the pipe into lines and decodes them; an unfinished line waits for more."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> Iterator[Event]:
        """Decode the events that `data` completes. Raises NotAnEventError at the first line that is none."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.strip():
                yield _read(line)
        if len(self._rest) > MAX_LINE_BYTES:
            raise NotAnEventError(_shown(self._rest))

    @property
    def unfinished(self) -> bool:
        """Whether a line was begun and not ended."""
        return bool(self._rest.strip())


def _read(line: bytes) -> Event:
    try:
        event = decode_line(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAnEventError(_shown(line)) from error
    if not isinstance(event, WORKER_EVENTS):
        raise NotAnEventError(_shown(line))
    return event


def _shown(line: bytes) -> str:
    return ascii(line[:60].decode(errors="replace"))


LINES = 20
# What every TensorFlow without a GPU prints as it starts: it explains no failure.
_CHATTER = re.compile(
    rb"All log messages before absl::InitializeLog|oneDNN custom operations are on|"
    rb"Could not find cuda drivers|failed call to cuInit|"
    rb"This TensorFlow binary is optimized to use available CPU instructions|"
    rb"To enable the following instructions"
)
LINE_BYTES = 500  # stored of a line; the file gets all of it
# The first part of the log is for the start and the first error, the last part, at least so long and at most
# twice as long, for the end. A run of a day with a line a second prints less than both. Ours.
FIRST_BYTES, LAST_BYTES = 8 * 2**20, 8 * 2**20


class WorkerOutput:
    """The bytes of the worker's stdout and stderr, which share a pipe. Nothing here can fail a run."""

    def __init__(self, path: Path) -> None:
        """Open the log; without it where the disk refuses."""
        self._lines: collections.deque[bytes] = collections.deque(maxlen=LINES)
        self._open_line = b""
        self._handle: int | None = None
        self._size = 0
        self._left_out = 0
        with contextlib.suppress(OSError):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._size = os.fstat(self._handle).st_size

    def take(self, data: bytes) -> None:
        """Take bytes that the worker printed, in chunks of any size."""
        self._write(data)
        *whole, rest = (self._open_line + data).split(b"\n")
        lines = [line for line in whole if not _CHATTER.search(line)]
        self._lines.extend(line[:LINE_BYTES] for line in lines[-LINES:])
        self._open_line = rest[:LINE_BYTES]

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines, also one that is not ended yet; of a line that was rewritten, its last form."""
        lines = [*self._lines, self._open_line]
        shown = [line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace").rstrip() for line in lines]
        return tuple(line for line in shown if line)[-LINES:]

    def close(self) -> None:
        """Close the log."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.close(self._handle)
            self._handle = None

    def _write(self, data: bytes) -> None:
        if self._handle is None:
            return
        try:
            rest = memoryview(data)
            while rest:
                written = os.write(self._handle, rest)
                self._size += written
                rest = rest[written:]
            if self._size > FIRST_BYTES + 2 * LAST_BYTES:
                self._leave_out_middle(self._handle)
        except OSError:
            self.close()

    def _leave_out_middle(self, handle: int) -> None:
        """Leave the first and the last part, and between them how much there was. Raises OSError."""
        last = os.pread(handle, LAST_BYTES, self._size - LAST_BYTES)
        last = last[last.find(b"\n", 0, LINE_BYTES) + 1 :]  # from the begin of a line, if one is near
        self._left_out += self._size - FIRST_BYTES - len(last)
        kept = (
            b"\n[gputopo: about %d MB of output are left out here]\n" % (self._left_out // 1_000_000) + last
        )
        os.ftruncate(handle, FIRST_BYTES)
        self._size = FIRST_BYTES
        while kept:
            written = os.write(handle, kept)
            self._size += written
            kept = kept[written:]
