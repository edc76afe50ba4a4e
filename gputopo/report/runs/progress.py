"""The progress of a run: a live display on a terminal, plain lines where the output is piped."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gputopo.report.runs.display import Display
from gputopo.report.runs.news import news
from gputopo.report.runs.state import RunState
from gputopo.values.run.events import Event, RunStarted

REDRAW_S = 0.25


class Progress:
    """Shows the events of a run on standard error. A context manager that restores the terminal.

    On a terminal a display that is redrawn below the lines that stay; else, and with TERM=dumb, one line for
    each phase, for the first counted step and for every `display_every`-th (None: one every PLAIN_S seconds),
    without control characters. `clock`: seconds, for the duration of a phase.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        display_every: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._display_every = display_every
        self._state = RunState(clock)
        # The display is drawn by another thread. Rich draws without a lock: two at a time leave a line twice.
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._over = threading.Event()
        self._drawing: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start the display."""
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            # Lines for standard output go past the display only if both are the same screen.
            self._live = Live(
                Display(self._state),
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._live.__enter__()
            self._drawing = threading.Thread(
                target=self._draw, args=(self._live,), name="display", daemon=True
            )
            self._drawing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the display and restore the terminal."""
        self._over.set()
        if self._drawing is not None:
            self._drawing.join()
            self._drawing = None
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def _draw(self, live: Live) -> None:
        """Draw until the end: the work of the thread. A terminal that is gone ends it."""
        with contextlib.suppress(OSError):
            while not self._over.wait(REDRAW_S):
                with self._lock:
                    live.refresh()

    def event(self, event: Event) -> None:
        """Add an event of the run and show what it changes. Cheap: drawing is done by another thread."""
        with self._lock:
            self._add(event)

    def _add(self, event: Event) -> None:
        self._state.add(event)
        if self._live is None:
            for line in self._state.plain_lines(event, self._display_every):
                # Written as it is: no wrapping, no markup, no colours.
                self._console.file.write(line + "\n")
                self._console.file.flush()
        elif isinstance(event, RunStarted):
            for message in event.says:
                self._console.print(Text(message))
        elif (latest := news(event, self._state.devices)) is not None:
            self._console.print(Text(latest))
