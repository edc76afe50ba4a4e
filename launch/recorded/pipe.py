"""The named pipe that a program, and all that it starts, reports its steps through."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gputopo.launch.throughput import MAX_REPORT_BYTES, Report, read_report

PIPE_FILE = "steps.pipe"
_AT_ONCE = 65_536  # bytes: a full pipe


class StepPipe:
    """The reader's end. `name`: the pipe, in a folder of this user's own; `handle` becomes readable.

    `folder`: of the run; one of its own is made where there is none, or where that can hold no pipe.
    A pipe keeps nothing on a disk, and a writer that finds it full loses that report and does not wait.
    Raises OSError where none can be made.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._own: str | None = None
        self._rest = b""
        if folder is not None:
            with contextlib.suppress(OSError):
                self._make(folder.absolute())  # the program may change its folder
                return
        self._own = tempfile.mkdtemp(prefix="gputopo-steps-")
        try:
            self._make(Path(self._own))
        except OSError:
            shutil.rmtree(self._own, ignore_errors=True)
            raise

    def _make(self, folder: Path) -> None:
        name = folder / PIPE_FILE
        os.mkfifo(name, 0o600)
        try:
            # For reading and writing: so there is no end of file when the last writer has left.
            self.handle = os.open(name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            name.unlink()
            raise
        self.name = name

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
        with contextlib.suppress(OSError):
            self.name.unlink()
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
