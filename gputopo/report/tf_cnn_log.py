"""The log lines of tf_cnn_benchmarks, so that scripts that grep its logs can read a run of gputopo.

The format is that of tensorflow/benchmarks, scripts/tf_cnn_benchmarks/benchmark_cnn.py (`print_info`,
`get_perf_timing_str`, `benchmark_one_session`).
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from gputopo.events import Event, ModelBuilt, RunFinished, RunStarted, Step, WarmupDone
from gputopo.report import units
from gputopo.throughput import RunningThroughput

DISPLAY_EVERY = 10  # the default of its --display_every
RULE = "-" * 64
# Its epochs are those of ImageNet's training set (ILSVRC 2012), whose shape the synthetic data has.
IMAGES_PER_EPOCH = 1_281_167


def lines(events: Iterable[Event], display_every: int = DISPLAY_EVERY) -> Iterator[str]:
    """Give the log lines of a run, without line ends, as its events come. See `TfCnnLog`."""
    log = TfCnnLog(display_every)
    for event in events:
        yield from log.lines(event)


class TfCnnLog:
    """Turns the events of one run into log lines, one event at a time.

    The first counted step and every `display_every`-th are shown. A run that did not complete gets no line
    `total images/sec:`, as a script would take it for a result; it says so instead.
    """

    def __init__(self, display_every: int = DISPLAY_EVERY) -> None:
        self._display_every = display_every
        self._running = RunningThroughput()
        self._started: RunStarted | None = None
        self._told_header = False
        self._told_columns = False

    def lines(self, event: Event) -> list[str]:
        """Give the lines that this event adds, none for most."""
        self._running.add(event)
        match event:
            case RunStarted():
                self._started = event
                return list(event.says)
            case ModelBuilt():
                return self._header(event.versions)
            case WarmupDone():
                return [*self._header({}), *self._columns()]
            case Step() if not event.warmup:
                return [*self._header({}), *self._columns(), *self._step(event)]
            case RunFinished():
                return self._end(event)
        return []

    def _header(self, versions: dict[str, str]) -> list[str]:
        if self._told_header:
            return []
        self._told_header = True
        return [*_header(self._started, versions), "==========", "Running warm up"]

    def _columns(self) -> list[str]:
        if self._told_columns:
            return []
        self._told_columns = True
        return ["Done warm up", "Step\tImg/sec\ttotal_loss"]

    def _step(self, step: Step) -> list[str]:
        if step.step != 1 and step.step % self._display_every:
            return []
        running = self._running
        mean, loss = running.mean or 0.0, math.nan if step.loss is None else step.loss
        speed = f"images/sec: {mean:.1f} +/- {running.uncertainty:.1f} (jitter = {running.jitter():.1f})"
        return [f"{step.step}\t{speed}\t{loss:.3f}"]

    def _end(self, event: RunFinished) -> list[str]:
        total = self._running.total
        if event.status == "complete" and total is not None:
            return [RULE, f"total images/sec: {total:.2f}", RULE]
        return [RULE, f"{event.status} after {units.counted(self._running.steps, 'step')}", RULE]


def _header(started: RunStarted | None, versions: dict[str, str]) -> list[str]:
    spec: dict[str, Any] = started.spec if started else {}
    devices = [device.device.lower() for device in started.devices] if started else []
    known = {**(started.versions if started else {}), **versions}
    batch, steps = spec.get("batch_size"), spec.get("num_batches")
    joint = batch * len(devices) if isinstance(batch, int) else None
    fields = [
        ("TensorFlow:", ".".join(known.get("tensorflow", "not known").split(".")[:2])),
        ("Model:", spec.get("model", "not known")),
        ("Dataset:", "imagenet (synthetic)"),
        ("Mode:", "training"),
        ("SingleSess:", False),
        ("Batch size:", f"{joint} global"),
        ("", f"{batch} per device"),
        ("Num batches:", f"{spec.get('max_batches')} at most" if steps is None else steps),
    ]
    if isinstance(steps, int) and joint is not None:
        fields.append(("Num epochs:", f"{steps * joint / IMAGES_PER_EPOCH:.2f}"))
    fields += [
        ("Devices:", devices),
        ("NUMA bind:", False),
        ("Data format:", spec.get("data_format", "not known")),
        ("Optimizer:", "sgd"),
        ("Variables:", spec.get("variable_update", "not known")),
    ]
    if spec.get("all_reduce"):
        fields.append(("AllReduce:", spec["all_reduce"]))
    return [f"{name:<13}{value}" for name, value in fields]
