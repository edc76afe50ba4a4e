"""The progress of a session: a line that is redrawn on a terminal; elsewhere a few lines."""

import os
import shutil
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from gputopo.report import drop_unwritten

if TYPE_CHECKING:
    from gputopo.probes import SessionProgress

_PLAIN_STEPS = 4  # lines without a terminal: one for each quarter of the jobs


class ProgressLine:
    """Display of a session's progress: a context manager that clears its line at the end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._quarter = -1

    def __enter__(self) -> Self:
        """Start the display."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the line."""
        if self._live:
            self._write("\r\x1b[K")

    def show(self, progress: "SessionProgress") -> None:
        """Show the progress of the session."""
        if self._live:
            width = max(shutil.get_terminal_size().columns - 1, 20)
            self._write(f"\r{progress_in_words(progress)[:width]}\x1b[K")
            return
        quarter = _PLAIN_STEPS * progress.done // max(progress.total, 1)
        if quarter > self._quarter:
            self._quarter = quarter
            self._write(f"gputopo: {progress_in_words(progress)}\n")

    def _write(self, text: str) -> None:
        # A failed write to stderr does not end the measurement.
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            drop_unwritten(self._stream, error)
            self._live, self._quarter = False, _PLAIN_STEPS


def progress_in_words(progress: "SessionProgress") -> str:
    """Return `measuring 12 of 87, about 21.0 s left: h2d host -> gpu:0`."""
    from gputopo.report import seconds

    left = "" if progress.seconds_left is None else f", about {seconds(progress.seconds_left)} left"
    number = min(progress.done + 1, progress.total)
    return f"measuring {number} of {progress.total}{left}: {progress.now}"
