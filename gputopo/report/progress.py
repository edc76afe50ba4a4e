"""What a run shows while it goes: a live display on a terminal, plain lines where the output is piped."""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import median
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gputopo.events import (
    Anomaly,
    Device,
    Event,
    ModelBuilt,
    PlacementChecked,
    RankFailed,
    RunFinished,
    RunStarted,
    Step,
    WarmupDone,
)
from gputopo.report import units
from gputopo.throughput import RunningThroughput

DISPLAY_EVERY = 10  # steps between two plain lines, as in tf_cnn_benchmarks
REDRAWS_PER_SECOND = 4.0
# A device's bar is the median of so many steps: one stalled step does not make it jump.
RECENT_STEPS = 15
BAR_WIDTH = 30

# The worker's first word comes when TensorFlow is there and the model is built.
STARTING, FIRST_STEP = "starting TensorFlow, building the model", "first step (tracing)"
WARMING_UP, TRAINING, ENDING = "warming up", "training", "ending"


class Progress:
    """Shows the events of a run on standard error. A context manager that gives the terminal back.

    On a terminal a display that is redrawn; else one line for each phase, for the first counted step and for
    every `display_every`-th, without control characters. `clock` gives seconds, for how long a phase takes.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        display_every: int = DISPLAY_EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._display_every = display_every
        self._state = RunState(clock)
        self._lock = threading.Lock()  # the display is drawn by a thread of its own
        self._live: Live | None = None

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._console.is_terminal:
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
        """End the display and give the terminal back as it was."""
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def _draw(self) -> RenderableType:
        with self._lock:
            return self._state.renderable()

    def event(self, event: Event) -> None:
        """Take in an event of the run and show what it changes. Cheap: drawing happens at its own pace."""
        with self._lock:
            self._state.add(event)
        if self._live is None:
            for line in self._state.plain_lines(event, self._display_every):
                # Written as it is: no wrapping, no markup, no colours.
                self._console.file.write(line + "\n")
                self._console.file.flush()
        elif isinstance(event, Anomaly | RankFailed):
            self._console.print(Text(_news(event)))


class RunState:
    """Where a run is: its phase, its speed so far, each device's pace in the latest steps."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.running = RunningThroughput()
        self.phase = STARTING
        self._clock = clock
        self._phase_began = clock()
        self._counting_began = 0.0
        self._devices: tuple[Device, ...] = ()
        self._spec: dict[str, Any] = {}
        self._says: tuple[str, ...] = ()
        self._step: Step | None = None
        self._busy_s: dict[int, deque[float]] = {}  # by tower, weights + compute of the latest steps

    def add(self, event: Event) -> None:
        """Take in the next event."""
        self.running.add(event)
        match event:
            case RunStarted():
                self._devices, self._spec, self._says = event.devices, event.spec, event.says
            case ModelBuilt():
                self._enter(FIRST_STEP)
            case PlacementChecked():
                self._enter(WARMING_UP)
            case WarmupDone():
                self._enter(TRAINING)
            case Step():
                self._take_step(event)
            case RunFinished():
                self._enter(ENDING)

    def paces(self) -> list[tuple[Device, float]]:
        """Give each device's pace in the latest counted steps, as a fraction of the best one's."""
        busy = {tower: median(times) for tower, times in self._busy_s.items()}
        usable = {tower: seconds for tower, seconds in busy.items() if seconds > 0}
        if not usable:
            return []
        best = min(usable.values())
        return [(device, best / usable[device.tower]) for device in self._devices if device.tower in usable]

    def fraction(self) -> float | None:
        """Give how much of the counted work is done: of the steps, or of the time; None if not known."""
        if self.phase == ENDING:
            return 1.0
        steps: int | None = self._spec.get("num_batches")
        budget_s: float | None = self._spec.get("time_budget_s")
        most: int | None = self._spec.get("max_batches")
        if self.phase != TRAINING:
            return 0.0
        if steps:
            return min(1.0, self.running.steps / steps)
        if not budget_s:
            return None
        by_time = (self._clock() - self._counting_began) / budget_s
        return min(1.0, max(by_time, self.running.steps / most if most else 0.0))

    def plain_lines(self, event: Event, display_every: int) -> list[str]:
        """Give the lines to print for an event that was just added; none for most."""
        match event:
            case RunStarted():
                return [*event.says, STARTING]
            case ModelBuilt():
                took = f"import {units.seconds(event.import_s)}, build {units.seconds(event.build_s)}"
                return [f"model built: {event.parameters:,} parameters ({took})", FIRST_STEP]
            case PlacementChecked():
                return [f"first step done ({units.seconds(event.first_step_s)})", WARMING_UP]
            case WarmupDone():
                steps = units.counted(event.steps, "step")
                return [f"warm-up done ({steps}, {units.seconds(event.seconds)})", TRAINING]
            case Step() if not event.warmup and (event.step == 1 or event.step % display_every == 0):
                speed = units.images_per_sec(self.running.mean)
                return [f"step {event.step}: {speed} images/sec, loss {units.loss(event.loss)}"]
            case Anomaly() | RankFailed():
                return [_news(event)]
        return []

    def renderable(self) -> RenderableType:
        """Give the display of this moment."""
        elapsed = units.seconds(max(0.0, self._clock() - self._phase_began))
        head = Text.assemble((self.phase, "bold"), f"  {elapsed}", f"  {self._speed_words()}")
        parts: list[RenderableType] = [*(Text(line, style="yellow") for line in self._says), head]
        fraction = self.fraction()
        bars = Table.grid(padding=(0, 1, 0, 0))
        bars.add_row(
            Text("steps"),
            ProgressBar(
                total=None if fraction is None else 1.0,
                completed=fraction or 0.0,
                width=BAR_WIDTH,
                pulse=fraction is None,
            ),
            Text(self._steps_words()),
        )
        for device, pace in self.paces():
            bar = ProgressBar(total=1.0, completed=pace, width=BAR_WIDTH)
            bars.add_row(Text(device.device), bar, Text(f"{100 * pace:.0f} % of the best"))
        return Group(*parts, bars)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self._phase_began = self._clock()
        if phase == TRAINING:
            self._counting_began = self._phase_began

    def _take_step(self, step: Step) -> None:
        self._step = step
        if step.warmup:
            return
        if self.phase != TRAINING:
            self._enter(TRAINING)
        for mark in step.marks:
            times = self._busy_s.setdefault(mark.tower, deque(maxlen=RECENT_STEPS))
            times.append(mark.weights_s + mark.compute_s)

    def _steps_words(self) -> str:
        if self._step is not None and self._step.warmup:
            warmup = self._spec.get("num_warmup_batches")
            return f"warm-up, {-self._step.step} of {warmup} to go" if warmup else "warm-up"
        done = self.running.steps
        if steps := self._spec.get("num_batches"):
            return f"{done} of {steps}"
        if budget_s := self._spec.get("time_budget_s"):
            return f"{done}, for {units.seconds(budget_s)}"
        return str(done)

    def _speed_words(self) -> str:
        if self.running.mean is None:
            return ""
        now, mean = units.images_per_sec(self.running.now), units.images_per_sec(self.running.mean)
        loss = "" if self._step is None else f", loss {units.loss(self._step.loss)}"
        return f"{now} images/sec now, {mean} on average{loss}"


def _news(event: Anomaly | RankFailed) -> str:
    return event.says if isinstance(event, Anomaly) else f"{event.kind}: {event.cause}"
