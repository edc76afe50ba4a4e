"""The named pipe that a program, and all that it starts, reports its steps through."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gputopo.launch.throughput import MAX_REPORT_BYTES, Report, read_report

_AT_ONCE = 65_536  # bytes: a full pipe


class StepPipe:
    """The reader's end. `name`: the pipe, in a folder of this user's own; `handle` becomes readable.

    A pipe keeps nothing on a disk, and a writer that finds it full loses that report and does not wait.
    Raises OSError where none can be made.
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="gputopo-steps-")
        try:
            self.name = Path(self._folder) / "steps"
            os.mkfifo(self.name, 0o600)
            # For reading and writing: so there is no end of file when the last writer has left.
            self.handle = os.open(self.name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._rest = b""

    def take(self) -> Iterator[Report]:
        """Return the reports of one reading; lines that are none are passed over."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.handle, _AT_ONCE)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) <= MAX_REPORT_BYTES else b""
        for line in lines:
            report = read_report(line)
            if report is not None:
                yield report

    def close(self) -> None:
        """Close and remove it."""
        os.close(self.handle)
        shutil.rmtree(self._folder, ignore_errors=True)
