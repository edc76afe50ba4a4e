"""The progress of a run: a live display on a terminal, plain lines where the output is piped."""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gputopo.report import units
from gputopo.report.runs.news import news
from gputopo.report.runs.state import RunState
from gputopo.values.run.events import Event, RunStarted

REDRAWS_PER_SECOND = 4.0
BAR_WIDTH = 30


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
        self._lock = threading.Lock()  # the display is drawn by another thread
        self._live: Live | None = None

    def __enter__(self) -> Self:
        """Start the display."""
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            # Lines for standard output go past the display only if both are the same screen.
            self._live = Live(
                console=self._console,
                get_renderable=self._draw,
                refresh_per_second=REDRAWS_PER_SECOND,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
            )
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the display and restore the terminal."""
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def _draw(self) -> RenderableType:
        with self._lock:
            return display(self._state)

    def event(self, event: Event) -> None:
        """Add an event of the run and show what it changes. Cheap: drawing is done by another thread."""
        with self._lock:
            self._state.add(event)
        if self._live is None:
            for line in self._state.plain_lines(event, self._display_every):
                # Written as it is: no wrapping, no markup, no colours.
                self._console.file.write(line + "\n")
                self._console.file.flush()
        elif isinstance(event, RunStarted):
            for message in event.says:
                self._console.print(Text(message))
        elif (latest := news(event)) is not None:
            self._console.print(Text(latest))


def display(state: RunState) -> RenderableType:
    """Return what a terminal shows of a run: phase and speed, a bar of the steps and of each device."""
    head = Text.assemble((state.phase, "bold"), f"  {units.seconds(state.phase_s)}  {state.speed_words()}")
    fraction = state.fraction()
    bars = Table.grid(padding=(0, 1, 0, 0))
    steps = ProgressBar(
        total=None if fraction is None else 1.0,
        completed=fraction or 0.0,
        width=BAR_WIDTH,
        pulse=fraction is None,
    )
    bars.add_row(Text("steps"), steps, Text(state.steps_words()))
    if verdict := state.verdict_words():
        head = Text.assemble(head, "\n", verdict)
    for device, pace in state.paces():
        bar = ProgressBar(total=1.0, completed=pace, width=BAR_WIDTH)
        words = f"{100 * pace:.0f} % of the best  {state.sensors_words(device)}"
        bars.add_row(Text(device.device), bar, Text(words.rstrip()))
    return Group(head, bars)
