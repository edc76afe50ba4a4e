"""What a worker prints: written to worker.log, with the last lines stored for the report of a failure."""

import collections
import contextlib
import os
import re
from pathlib import Path

LINES = 20
# What every TensorFlow without a GPU prints as it starts: it explains no failure.
_CHATTER = re.compile(
    rb"All log messages before absl::InitializeLog|oneDNN custom operations are on|"
    rb"Could not find cuda drivers|failed call to cuInit|"
    rb"This TensorFlow binary is optimized to use available CPU instructions|"
    rb"To enable the following instructions"
)
LINE_BYTES = 500  # stored of a line; the file gets all of it


class WorkerOutput:
    """The bytes of the worker's stdout and stderr, which share a pipe. Nothing here can fail a run."""

    def __init__(self, path: Path) -> None:
        """Open the log; without it where the disk refuses."""
        self._lines: collections.deque[bytes] = collections.deque(maxlen=LINES)
        self._open_line = b""
        self._handle: int | None = None
        with contextlib.suppress(OSError):
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

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
                rest = rest[os.write(self._handle, rest) :]
        except OSError:
            self.close()
