"""The state of a run from its events so far: its phase, its speed, each device's pace."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from gputopo.reference import clock_event_words, decode_clock_events
from gputopo.report import units
from gputopo.report.units import counted, pcie_link, three_figures
from gputopo.values.index_ranges import index_ranges
from gputopo.values.run.batches import batch_words
from gputopo.values.run.events import (
    Anomaly,
    AnomalyOver,
    BatchTried,
    CheckpointSaved,
    Device,
    Evaluated,
    Event,
    Exported,
    GpuSample,
    Judged,
    LossNotFinite,
    ModelBuilt,
    Noticed,
    PhaseBegun,
    PlacementChecked,
    RankFailed,
    Replanned,
    Restarted,
    Resumed,
    RunFinished,
    RunStarted,
    Sample,
    Silent,
    Standing,
    Step,
    Traced,
    WarmupDone,
)
from gputopo.values.run.hosts import HostLoads, host_name, whole_hosts
from gputopo.values.run.speed import RunningThroughput, time_left_s
from gputopo.values.run.verdict import EVEN_PERCENT, SLOW
from gputopo.values.words import at_most, percent

PLAIN_S = 5.0  # seconds between two plain lines of steps, unless their number is set
# A device's bar is the median of this many steps, so that one stalled step does not make it jump.
RECENT_STEPS = 15

# The worker sends its first event after it has imported TensorFlow and built the model.
STARTING, FIRST_STEP = "starting TensorFlow, building the model", "first step (tracing)"
MIN_LEFT_S = 1.0  # a shorter remaining time is not shown
MIN_STEPS_FOR_AN_END = 2  # counting starts at the end of the warm-up, so the first step has no pace
# Why single devices have no verdict if they share cores, unless one is proven to be slow.
NOT_JUDGED = "CPU devices share the cores: differences between them are not judged"
NOT_RELIABLE = "NOT RELIABLE"
WARMING_UP, TRAINING, ENDING = "warming up", "training", "ending"
MAX_SEEN = 50.0  # percent: a coarser resolution is not shown
# Phases of the worker during which no step is expected, as in `gputopo.values.run.events.PhaseBegun`.
SLOW_PHASES = ("comparison", "evaluation", "export", "end", "batch search")


class RunState:
    """The state of a run: its phase, its speed so far, each device's pace in the latest steps."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.running = RunningThroughput()
        self.phase = STARTING
        self._clock = clock
        self._phase_began = clock()
        self._counting_began = 0.0
        self._last_step: int | None = None  # global step, if the run counts global steps
        self.devices: tuple[Device, ...] = ()
        self._spec: dict[str, Any] = {}
        self._line_s: float | None = None  # when the last line for a step was returned
        self._step: Step | None = None
        self._loss_is_lost = False  # and a line said so
        self._gpus: dict[tuple[int, int], GpuSample] = {}  # by rank and GPU: the latest value of each fact
        self._hosts = HostLoads()
        self._judged: Judged | None = None
        self._busy_s: dict[int, deque[float]] = {}  # by tower: weights + compute of the latest steps

    def add(self, event: Event) -> None:
        """Add the next event."""
        self.running.add(event)
        match event:
            case RunStarted():
                self.devices, self._spec = event.devices, event.spec
                self._hosts = HostLoads()
            case Restarted():
                self._enter(STARTING)
            case Replanned():
                self._spec = event.spec
                self._enter(STARTING)
            case ModelBuilt():
                self._enter(FIRST_STEP)
            case PlacementChecked():
                self._enter(WARMING_UP)
            case WarmupDone():
                self._hosts.begin()
                self._enter(TRAINING)
            case Step():
                self._take_step(event)
            case Sample():
                self._hosts.add(event)
                for gpu in event.gpus:
                    place = event.rank, gpu.gpu
                    self._gpus[place] = gpu if gpu.silent else gpu.with_earlier(self._gpus.get(place))
            case Judged():
                self._judged = event
            case PhaseBegun() if event.phase in SLOW_PHASES:
                self._enter(event.phase)
            case LossNotFinite():
                self._loss_is_lost = True
            case RunFinished():
                self._enter(ENDING)

    def paces(self) -> list[tuple[Device, float]]:
        """Return each device's pace in the latest counted steps, as a fraction of the best one's."""
        busy_s = {tower: s for tower, times in self._busy_s.items() if (s := median(times)) > 0}
        best = min(busy_s.values(), default=0.0)
        return [(device, best / busy_s[device.tower]) for device in self.devices if device.tower in busy_s]

    def verdict_words(self) -> str:
        """Return the verdict so far, from the latest steps; empty before steps are counted."""
        if self.phase != TRAINING or len(self.devices) < 2 or self._spec.get("task") == "input":
            return ""
        devices = () if self._judged is None else self._judged.devices
        slow = list(_slow_words(self.devices, [device for device in devices if device.word == SLOW]))
        if self._judged is not None and self._judged.run is not None:
            slow.append("all devices slower than before")
        if slow:
            return ", ".join(slow)
        if share_cores(self.devices):
            return NOT_JUDGED
        if (looks := self._looks_slow()) is not None:
            return looks
        if self._judged is None:
            return "too few steps for a verdict"
        known = [device.percent for device in devices if device.percent is not None]
        if len(known) < len(devices) or max(known) > MAX_SEEN:
            return "no slow device so far"
        return f"no slow device above {at_most(max(known))}%"

    def _looks_slow(self) -> str | None:
        """Return by how much the slowest device seems to be too slow; None if it is not much."""
        paces = self.paces()
        if not paces or len({device.gpu_name for device in self.devices}) > 1:
            return None
        if isinstance(self._spec.get("batch_size"), list):
            return None  # a device with a larger batch may take longer
        device, pace = min(paces, key=lambda entry: entry[1])
        under = 100 * (1 - pace)
        if under <= EVEN_PERCENT:
            return None
        return f"{device.label} looks {percent(under)}% slower; not significant so far"

    @property
    def busy(self) -> str | None:
        """Return what other programs do to the host that makes the speed unreliable; None if nothing."""
        loads = self._hosts.summaries(self.devices).values()
        return next((load.busy for load in loads if load.busy is not None), None)

    @property
    def is_slow(self) -> bool:
        """Whether the verdict so far is that one or all devices are slow."""
        judged = self._judged
        return judged is not None and (judged.run is not None or any(d.word == SLOW for d in judged.devices))

    def sensors(self, device: Device) -> list[str]:
        """Return what a device's GPU reported last, most important first; empty if nothing."""
        last = self._gpus.get((device.rank, -1 if device.gpu is None else device.gpu))
        if last is None:
            return []
        if last.lost:
            return ["lost"]
        facts = (
            ("{} MHz", last.graphics_mhz),
            (
                " ".join(clock_event_words(decode_clock_events(max(0, last.throttle_mask or 0)), short=True)),
                last.throttle_mask,
            ),
            ("{} C", last.temperature_c),
            ("{:.0f} W", last.power_w),
            ("PCIe {}", pcie_link(last.pcie_gen, last.pcie_width)),
        )
        return [pattern.format(value) for pattern, value in facts if pattern and value is not None]

    def fraction(self) -> float | None:
        """Return the share of the counted steps, or of the time, that is done; None if unknown."""
        if self.phase == ENDING:
            return 1.0
        if self.phase != TRAINING:
            return 0.0
        took, left = self._clock() - self._counting_began, self.left_s()
        return None if left is None else took / (took + left) if took + left > 0 else 1.0

    def plain_lines(self, event: Event, display_every: int | None) -> list[str]:
        """Return the lines to print for an event that was just added; empty for most events."""
        match event:
            case RunStarted():
                return [*event.says, STARTING]
            case ModelBuilt():
                took = f"import {units.seconds(event.import_s)}, build {units.seconds(event.build_s)}"
                return [f"model built: {event.parameters:,} parameters ({took})", FIRST_STEP]
            case PlacementChecked():
                return [f"first step done ({units.seconds(event.first_step_s)})", WARMING_UP]
            case WarmupDone():
                steps = counted(event.steps, "step")
                return [f"warm-up done ({steps}, {units.seconds(event.seconds)})", TRAINING]
            case Step() if not event.warmup and self._is_due(event.step, display_every):
                speed = f"{three_figures(self.running.mean)} images/sec"
                doubt = "" if self.busy is None else f", {NOT_RELIABLE}: {self.busy}"
                return [f"step {event.step}: {speed}{self._loss(event)}{self._left()}{doubt}"]
        line = news(event, self.devices)
        return [] if line is None else [line]

    def _is_due(self, number: int, display_every: int | None) -> bool:
        """Return whether a counted step gets its own line."""
        if display_every is not None:
            return number == 1 or number % display_every == 0
        now = self._clock()
        if self._line_s is not None and now - self._line_s < PLAIN_S:
            return False
        self._line_s = now
        return True

    def _left(self) -> str:
        left = self.left_s()
        if left is None or left < MIN_LEFT_S:
            return ""
        # Counting may end once the speed is known.
        ends_early = self._spec.get("num_batches") is None and self._spec.get("max_error") is not None
        return f", {'at most ' if ends_early else ''}{units.seconds(left)} left"

    def left_s(self) -> float | None:
        """Return the seconds until the last counted step, at the pace so far; None if unknown.

        If a run ends once its speed is known, this is an upper bound.
        """
        done = 0 if self._step is None else self._step.step
        if self.phase != TRAINING or done < MIN_STEPS_FOR_AN_END:
            return None
        took, left = self._clock() - self._counting_began, []
        if (steps := self._steps_left(done)) is not None:
            left.append(steps * (took / done))
        budget_s: float | None = self._spec.get("time_budget_s")
        if budget_s is not None and self._spec.get("num_batches") is None:
            left.append(time_left_s(budget_s, self._spec.get("max_error"), done, took))
        return max(0.0, min(left)) if left else None

    def _steps_left(self, done: int) -> int | None:
        """Return the maximum number of steps left; None if there is no limit or it is unknown."""
        if self._last_step is not None and self._step is not None and self._step.global_step is not None:
            return self._last_step - self._step.global_step
        limit: int | None = self._spec.get("num_batches") or self._spec.get("max_batches")
        # The first batch of an evaluation compiles, so it is not counted.
        return None if limit is None else limit - done - (self._spec.get("task") == "eval")

    @property
    def phase_s(self) -> float:
        """Return how long the phase has lasted, in seconds."""
        return max(0.0, self._clock() - self._phase_began)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self._phase_began = self._clock()
        if phase == TRAINING:
            self._counting_began = self._phase_began

    def _take_step(self, step: Step) -> None:
        self._step = step
        if step.loss is not None:
            self._loss_is_lost = False
        if step.warmup:
            return
        if self.phase != TRAINING:
            self._enter(TRAINING)
        if self._last_step is None and step.global_step is not None:
            left = self._steps_left(step.step)
            self._last_step = None if left is None else step.global_step + left
        for mark in step.marks:
            times = self._busy_s.setdefault(mark.tower, deque(maxlen=RECENT_STEPS))
            times.append(mark.weights_s + mark.compute_s)

    def _loss(self, step: Step) -> str:
        """Return the loss in words; empty for a run of only the input or if a lost loss was shown."""
        if self._spec.get("task") == "input" or (step.loss is None and self._loss_is_lost):
            return ""
        return f", loss {units.loss(step.loss)}"

    def steps_words(self) -> str:
        """Return how many steps are done, and of how many."""
        if self._step is not None and self._step.warmup:
            return "warm-up"
        steps = self._spec.get("num_batches")
        return f"{self.running.steps}{f' of {steps}' if steps else ''}{self._left()}"

    def speed_words(self) -> str:
        """Return the current and average speed, and the loss; empty before the first counted step."""
        if self.running.mean is None:
            return ""
        now, mean = three_figures(self.running.now), three_figures(self.running.mean)
        loss = "" if self._step is None else self._loss(self._step)
        return f"{now} images/sec now, {mean} on average{loss}"


def not_reliable(busy: Sequence[str], total: int, noun: str) -> str:
    """Return that speeds are not reliable. `busy`: what kept the host busy in some of the `total` runs."""
    count = f"{len(busy)} of {counted(total, noun)}"
    return f"{NOT_RELIABLE}: {count} on a busy host; in the first, {busy[0]}."


def share_cores(devices: Sequence[Device]) -> bool:
    """Return whether several of these are CPU devices of one host, which share its cores."""
    return all(device.is_cpu for device in devices) and len({device.rank for device in devices}) < len(
        devices
    )


def _slow_words(devices: Sequence[Device], slow: Sequence[Standing]) -> Iterator[str]:
    """Yield each slow device, or a host that is slow as a whole, with by how much and why."""
    names: dict[int, str | None] = {device.tower: device.short_name for device in devices}
    whole = whole_hosts(devices, {standing.tower: standing.cause for standing in slow})
    for of_host in whole.values():
        names |= dict.fromkeys((device.tower for device in of_host), None)
        names[of_host[0].tower] = host_name(of_host)
    for standing in slow:
        if (name := names.get(standing.tower)) is not None:
            by = "" if standing.percent is None else f" by {percent(standing.percent)}%"
            yield f"{name} slow{by}" + ("" if standing.cause is None else f" ({standing.cause})")


def news(event: Event, devices: Sequence[Device] = ()) -> str | None:
    """Return the line for an event that a user wants to read at once, or None for all other events.

    `devices`: the devices of the run; with several hosts, their names are in the line.
    """
    match event:
        case Anomaly() | AnomalyOver() | Noticed() | Restarted() | Replanned():
            return event.says
        case RankFailed():
            return f"{event.kind}: {event.cause}"
        case PhaseBegun(phase="end"):
            return "ending after this step; Ctrl-C again ends it at once"
        case PhaseBegun(phase="regrouping"):
            return "another host failed; waiting for the remaining hosts"
        case PhaseBegun(phase="batch search"):
            return "out of memory; halving the batch until it fits (Ctrl-C ends the search)"
        case Silent(rank=rank) if rank > 0:
            host = next((device.host for device in devices if device.rank == rank), None)
            return f"for {event.seconds:.0f} s the process of {host or f'rank {rank}'} {event.process}"
        case Silent():
            return f"no progress for {event.seconds:.0f} s ({event.during}): the worker {event.process}"
        case Resumed():
            return f"resumed after {counted(event.steps, 'step')}: {event.path}"
        case CheckpointSaved():
            size, took = units.size(event.bytes), units.seconds(event.seconds)
            return f"checkpoint after {counted(event.steps, 'step')}: {event.path} ({size}, {took})"
        case Evaluated():
            return evaluated_words(event)
        case Exported():
            return f"exported: {event.path} ({', '.join(event.formats)})"
        case Traced():
            return f"traced {steps_words(event.steps)}: {event.path}"
        case LossNotFinite():
            names = {device.tower: device.short_name for device in devices}
            towers = ", ".join(names.get(tower, f"device {tower}") for tower in event.towers)
            since = f"from step {event.step} on" if event.step > 0 else "from the warm-up on"
            return f"the loss is {event.value} {since} ({towers})"
        case BatchTried():
            return f"a batch of {batch_words(event.batch_size)} {'fits' if event.fits else 'does not fit'}"
    return None


def steps_words(numbers: Sequence[int]) -> str:
    """Write which steps: `step 2`, `steps 4-9,11`."""
    return f"step{'' if len(numbers) == 1 else 's'} {index_ranges(numbers)}"


def evaluated_words(event: Evaluated) -> str:
    """Write the quality of a model: `top-1 71.20 %, top-5 90.10 %, loss 1.2, 50000 examples (imagenet)`."""
    top5 = "" if event.top5 is None else f", top-5 {100 * event.top5:.2f}%"
    after = "" if event.steps is None else f" after {counted(event.steps, 'step')}"
    return (
        f"top-1 {100 * event.top1:.2f}%{top5}, loss {units.loss(event.loss)}, "
        f"{event.examples} examples ({event.data}){after}"
    )
