"""A run over time: the pace of each device, clocks, heat and power of each GPU, and what happened.

Memory is bounded: if there are many steps or samples, each point is the median of several consecutive ones.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from gputopo.runs.devices import batch_sizes
from gputopo.values.run.bounded import Blocks
from gputopo.values.run.events import (
    SAMPLED_FACTS,
    Anomaly,
    CheckpointSaved,
    Evaluated,
    Event,
    GpuSample,
    LossNotFinite,
    RankFailed,
    Restarted,
    RunStarted,
    Sample,
    Step,
    WarmupDone,
)
from gputopo.values.run.over_time import Curve, Happening, OverTime

# Fields of a sample, with their units.
_SHOWN: Mapping[str, str] = {
    "graphics_mhz": "MHz",
    "memory_mhz": "MHz",
    "temperature_c": "°C",
    "power_w": "W",
}
_MAX_HAPPENINGS = 40


def read_over_time(events: Iterable[Event]) -> OverTime | None:
    """Return what the events of a run show over time; None if no step was recorded."""
    reader = _Reader()
    for event in events:
        reader.add(event)
    return reader.found() if reader.has_steps else None


class _Reader:
    """Collects the events."""

    def __init__(self) -> None:
        self.has_steps = False
        self._begin = self._last = math.nan
        self._labels: list[str] = []
        self._batches: Sequence[int] = ()
        self._places: dict[str, int] = {}  # columns, by the name of the device
        self._towers: dict[int, int] = {}
        self._steps: Blocks | None = None
        self._gpus: list[tuple[int, int]] = []  # rank and index
        self._names: list[str] = []
        self._samples: Blocks | None = None
        self._happenings: list[Happening] = []

    def add(self, event: Event) -> None:
        """Add the next event."""
        if math.isnan(self._begin):
            self._begin = event.time_s
        self._last = event.time_s
        if isinstance(event, RunStarted):
            self._labels = [device.short_name for device in event.devices]
            self._batches = batch_sizes(event)
            self._places = {device.device: place for place, device in enumerate(event.devices)}
            self._towers = {device.tower: self._places[device.device] for device in event.devices}
            self._steps = Blocks()
            of_hosts = [device for device in event.devices if device.host is not None]
            gpus = {(device.rank, device.gpu): device.short_name for device in of_hosts}
            self._gpus = [(rank, gpu) for rank, gpu in gpus if gpu is not None]
            self._names = [gpus[place] for place in self._gpus]
        elif isinstance(event, Step):
            self._step(event)
        elif isinstance(event, Sample) and event.gpus:
            self._sample(event)
        elif (happened := self._happened(event)) and len(self._happenings) < _MAX_HAPPENINGS:
            is_fault = isinstance(event, Anomaly | RankFailed | LossNotFinite)
            self._happenings.append(Happening(event.time_s - self._begin, happened, is_fault))

    def found(self) -> OverTime:
        """Return the curves; curves without a value are skipped."""
        assert self._steps is not None
        paces = _curves(self._steps, self._labels, 0)
        facts: dict[str, tuple[Curve, ...]] = {}
        if self._samples is not None:
            for number, (field, unit) in enumerate(_SHOWN.items()):
                if curves := _curves(self._samples, self._names, number * len(self._names)):
                    facts[f"{SAMPLED_FACTS[field].words}, {unit}"] = curves
        return OverTime(paces, facts, tuple(self._happenings), self._last - self._begin)

    def _happened(self, event: Event) -> str:
        """Return a few words for an event that belongs on the time axis; empty for other events."""
        match event:
            case Anomaly():
                place = self._towers.get(event.tower)
                name = "" if place is None else self._labels[place]
                return f"{name} slow {event.percent_under:.0f}%"
            case WarmupDone():
                return "warm-up ends"
            case Restarted():
                return f"restart {event.number}"
            case LossNotFinite():
                return f"loss {event.value}"
            case RankFailed():
                return event.kind.replace("_", " ")
            case Evaluated():
                return "evaluation"
            case CheckpointSaved():
                return "checkpoint"
        return ""

    def _step(self, step: Step) -> None:
        if self._steps is None:
            return
        row = [math.nan] * len(self._labels)
        batches = self._batches or [round(step.images / max(len(self._labels), 1))] * len(self._labels)
        for mark in step.marks:
            place = self._towers.get(mark.tower)
            if place is not None and mark.busy_s > 0:
                row[place] = batches[place] / mark.busy_s
        if not step.marks and step.seconds > 0 and len(row) == 1:
            row = [step.images / step.seconds]
        self.has_steps = True
        self._steps.add(step.step, [step.time_s - self._begin, *row])

    def _sample(self, sample: Sample) -> None:
        if self._samples is None:
            if not self._gpus:
                self._gpus = [(sample.rank, gpu.gpu) for gpu in sample.gpus]
                self._names = [f"GPU {gpu.gpu}" for gpu in sample.gpus]
            self._samples = Blocks()
        of_gpu: dict[tuple[int, int], GpuSample] = {(sample.rank, gpu.gpu): gpu for gpu in sample.gpus}
        row = [sample.time_s - self._begin]
        for field in _SHOWN:
            values = (getattr(of_gpu[gpu], field) if gpu in of_gpu else None for gpu in self._gpus)
            row += [math.nan if value is None else float(value) for value in values]
        self._samples.add(len(self._samples.first_steps), row)


def _curves(blocks: Blocks, labels: Sequence[str], first: int) -> tuple[Curve, ...]:
    """Return the curves of the columns from number `first` on; column 0 is the time."""
    times = blocks.medians(0)
    curves = []
    for number, label in enumerate(labels):
        column = blocks.medians(1 + first + number)
        points = [(time, value) for time, value in zip(times, column, strict=True) if not math.isnan(value)]
        if points:
            seconds, values = zip(*points, strict=True)
            curves.append(Curve(label, seconds, values))
    return tuple(curves)
