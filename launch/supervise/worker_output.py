"""The output of a process: its last lines, and a log of limited size."""

import collections
import contextlib
import os
import re
from pathlib import Path

LINES = 20
# Messages of every TensorFlow without a GPU at its start, which explain no failure.
_CHATTER = re.compile(
    rb"All log messages before absl::InitializeLog|oneDNN custom operations are on|"
    rb"Could not find cuda drivers|failed call to cuInit|"
    rb"This TensorFlow binary is optimized to use available CPU instructions|"
    rb"To enable the following instructions"
)
LINE_BYTES = 500  # stored bytes of a line; the file gets the whole line
# The first part of the log has the start and the first error. The last part, one to two times this size, has
# the end. A run of a day with one line per second prints less than both. Not measured.
FIRST_BYTES, LAST_BYTES = 8 * 2**20, 8 * 2**20


class WorkerOutput:
    """The output of a process: its last lines, and a log of it. Errors here never end a run."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        lines: int = LINES,
        first_bytes: int = FIRST_BYTES,
        last_bytes: int = LAST_BYTES,
    ) -> None:
        """Keep the last `lines` lines, and open the log if there is a path that can be opened.

        `first_bytes`, `last_bytes`: of a log that is longer, see the constants.
        """
        self._first_bytes, self._last_bytes = first_bytes, last_bytes
        self._lines: collections.deque[bytes] = collections.deque(maxlen=lines)
        self._open_line = b""
        self._handle: int | None = None
        self._size = 0
        self._left_out = 0
        if path is None:
            return
        with contextlib.suppress(OSError):
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._size = os.fstat(self._handle).st_size

    def take(self, data: bytes) -> None:
        """Take bytes of the output, in chunks of any size."""
        self._write(data)
        *whole, rest = (self._open_line + data).split(b"\n")
        lines = [line for line in whole if not _CHATTER.search(line)]
        self._lines.extend(line[:LINE_BYTES] for line in lines)
        self._open_line = rest[:LINE_BYTES]

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines, including an unfinished one; the last version of lines that were overwritten."""
        lines = [*self._lines, self._open_line]
        shown = [line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace").rstrip() for line in lines]
        return tuple(line for line in shown if line)[-(self._lines.maxlen or 0) :]

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
            if self._size > self._first_bytes + 2 * self._last_bytes:
                self._leave_out_middle(self._handle)
        except OSError:
            self.close()

    def _leave_out_middle(self, handle: int) -> None:
        """Keep the first and the last part, and note the size of the removed part. Raises OSError."""
        last = os.pread(handle, self._last_bytes, self._size - self._last_bytes)
        last = last[last.find(b"\n", 0, LINE_BYTES) + 1 :]  # from the start of a line, if one is near
        self._left_out += self._size - self._first_bytes - len(last)
        kept = (
            b"\n[gputopo: about %d MB of output are left out here]\n" % (self._left_out // 1_000_000) + last
        )
        os.ftruncate(handle, self._first_bytes)
        self._size = self._first_bytes
        while kept:
            written = os.write(handle, kept)
            self._size += written
            kept = kept[written:]
