"""The progress of a run: a live display on a terminal, or plain lines if the output is piped."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gputopo.report.layout import ANOMALY_STYLE
from gputopo.report.runs.state import NOT_RELIABLE, RunState, news
from gputopo.report.stderr import drop_unwritten, redirect_to_null
from gputopo.report.units import seconds
from gputopo.values.run.events import Event, RunStarted

_GAP = "  "


class Display:
    """Phase and speed, the verdict so far, a progress bar; for each device a bar and its sensors."""

    def __init__(self, state: RunState) -> None:
        self._state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        state, width = self._state, options.max_width
        if state.busy is not None and state.running.steps:
            yield _cut(Text(f"{NOT_RELIABLE}: {state.busy}", ANOMALY_STYLE))
        now = "".join(f"{_GAP}{words}" for words in (seconds(state.phase_s), state.speed_words()) if words)
        yield _cut(Text.assemble((state.phase, "bold"), now))
        if verdict := state.verdict_words():
            yield _cut(Text(f"verdict: {verdict}", ANOMALY_STYLE if state.is_slow else ""))
        paces = state.paces()
        labels = ["steps", *(device.label for device, _ in paces)]
        bar_width = min(30, max(8, width // 4))
        room = width - max(map(len, labels)) - bar_width - len(_GAP)
        bars = Table.grid(padding=(0, 1, 0, 0))
        for _ in range(3):
            bars.add_column(no_wrap=True, overflow="ellipsis")
        fraction = state.fraction()
        steps = ProgressBar(
            total=None if fraction is None else 1.0,
            completed=fraction or 0.0,
            width=bar_width,
            pulse=fraction is None,
        )
        bars.add_row(Text("steps"), steps, Text(state.steps_words()))
        for device, pace in paces:
            bar = ProgressBar(total=1.0, completed=pace, width=bar_width)
            words = f"{100 * pace:.0f}%" + (" of the best" if width >= 100 else "")
            for fact in state.sensors(device):  # as many as fit, the most important ones first
                if len(words) + len(_GAP) + len(fact) > room:
                    break
                words += _GAP + fact
            bars.add_row(Text(device.label), bar, Text(words))
        yield bars


def _cut(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


REDRAW_S = 0.25


class Progress:
    """Shows the events of a run on standard error. A context manager that restores the terminal.

    A terminal has a display that is redrawn below the permanent lines. Otherwise, and with TERM=dumb, there
    is one line without control characters for each phase, for the first counted step, and for every
    `display_every`-th step (None: one every PLAIN_S seconds). `messages`: permanent lines above the display.
    `clock`: seconds, for the duration of a phase.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        display_every: int | None = None,
        messages: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._display_every = display_every
        self._messages = messages
        self._state = RunState(clock)
        # Another thread draws the display. Rich does not lock: two simultaneous draws leave a line twice.
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._over = threading.Event()
        self._drawing: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start the display."""
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            # Lines for standard output pass through the display only if both are on the same terminal.
            self._live = Live(
                Display(self._state),
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._live.__enter__()
            self._drawing = threading.Thread(target=self._keep_drawing, name="display", daemon=True)
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

    def _keep_drawing(self) -> None:
        """Draw until the end, in a thread. Stops if the terminal is gone."""
        with contextlib.suppress(OSError):
            while not self._over.wait(REDRAW_S):
                self.draw()

    def draw(self) -> None:
        """Draw the display, if there is one."""
        with self._lock:
            if self._live is not None:
                self._live.refresh()

    def event(self, event: Event) -> None:
        """Add an event of the run and show the change. Fast, because another thread draws.

        If writing fails (a full disk, a lost terminal), progress goes to /dev/null from then on. Raises
        BrokenPipeError if the reader has closed the pipe, which ends the command.
        """
        try:
            with self._lock:
                self._add(event)
        except BrokenPipeError:
            raise
        except OSError as error:
            drop_unwritten(sys.stderr, error)
            redirect_to_null(sys.stderr)

    def _add(self, event: Event) -> None:
        self._state.add(event)
        if self._live is None:
            for line in self._state.plain_lines(event, self._display_every):
                # Written unchanged: no wrapping, no markup, no colours.
                self._console.file.write(line + "\n")
                self._console.file.flush()
        elif not self._messages:
            return
        elif isinstance(event, RunStarted):
            for message in event.says:
                self._console.print(Text(message))
        elif (latest := news(event, self._state.devices)) is not None:
            self._console.print(Text(latest))
