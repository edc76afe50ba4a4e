"""The log lines of tf_cnn_benchmarks, so that scripts that grep its logs can read a run of gputopo.

The format is that of tensorflow/benchmarks, scripts/tf_cnn_benchmarks/benchmark_cnn.py (`print_info`,
`get_perf_timing_str`, `benchmark_one_session`).
"""

import math
from typing import Any

import msgspec

from gputopo.report.units import counted
from gputopo.values.run.batches import batch_words, plain, stored_batches
from gputopo.values.run.events import (
    Evaluated,
    Event,
    ModelBuilt,
    Replanned,
    RunFinished,
    RunStarted,
    Step,
    WarmupDone,
)
from gputopo.values.run.speed import RunningThroughput
from gputopo.workload import require_workload, workload_names

_DISPLAY_EVERY = 10  # the default of its --display_every
RULE = "-" * 64
# The epochs are those of ImageNet's training set (ILSVRC 2012); the synthetic data has its shape.
IMAGES_PER_EPOCH = 1_281_167
EXAMPLES = {"imagenet": IMAGES_PER_EPOCH, "cifar10": 50_000}
_MODES = {"train": "training", "forward": "forward only", "eval": "evaluation", "input": "input only"}


class TfCnnLog:
    """Turns the events of one run into log lines, one event at a time.

    The first counted step and every `display_every`-th step (None: its default) have a line. A run that did
    not complete has a line with its status instead of `total images/sec:`, which a script would read as a
    result.
    """

    def __init__(self, display_every: int | None = None) -> None:
        self._display_every = display_every or _DISPLAY_EVERY
        self._running = RunningThroughput()
        self._started: RunStarted | None = None
        self._header_shown = False
        self._columns_shown = False

    def lines(self, event: Event) -> list[str]:
        """Return the lines that this event adds; most events add none."""
        self._running.add(event)
        match event:
            case RunStarted():
                self._started = event
                return list(event.says)
            case Replanned() if self._started is not None:
                self._started = msgspec.structs.replace(self._started, spec=event.spec)
            case ModelBuilt():
                return self._header(event.versions)
            case WarmupDone():
                return [*self._header({}), *self._columns()]
            case Step() if not event.warmup:
                return [*self._header({}), *self._columns(), *self._step(event)]
            case Evaluated():
                top5 = math.nan if event.top5 is None else event.top5
                return [
                    f"Accuracy @ 1 = {event.top1:.4f} Accuracy @ 5 = {top5:.4f} [{event.examples} examples]"
                ]
            case RunFinished():
                return self._end(event)
        return []

    def _header(self, versions: dict[str, str]) -> list[str]:
        if self._header_shown:
            return []
        self._header_shown = True
        return [*_header(self._started, versions), "==========", "Running warm up"]

    def _columns(self) -> list[str]:
        if self._columns_shown:
            return []
        self._columns_shown = True
        return ["Done warm up", "Step\tImg/sec\ttotal_loss"]

    def _step(self, step: Step) -> list[str]:
        if step.step != 1 and step.step % self._display_every:
            return []
        running = self._running
        mean, loss = running.mean or 0.0, math.nan if step.loss is None else step.loss
        uncertainty, jitter = running.uncertainty_of_independent_steps(), running.jitter()
        speed = f"images/sec: {mean:.1f} +/- {uncertainty:.1f} (jitter = {jitter:.1f})"
        return [f"{step.step}\t{speed}\t{loss:.3f}"]

    def _end(self, event: RunFinished) -> list[str]:
        total = self._running.total
        if event.status == "complete" and total is not None:
            return [RULE, f"total images/sec: {total:.2f}", RULE]
        return [RULE, f"{event.status} after {counted(self._running.steps, 'step')}", RULE]


def _header(started: RunStarted | None, versions: dict[str, str]) -> list[str]:
    spec: dict[str, Any] = started.spec if started else {}
    several, made = started.devices if started else (), _part(spec, "data").get("folder") is None
    devices = [device.device.lower() if device.host is None else device.label for device in several]
    known = {**(started.versions if started else {}), **versions}
    fields = [
        ("TensorFlow:", ".".join(known.get("tensorflow", "unknown").split(".")[:2])),
        ("Model:", spec.get("model", "unknown")),
        ("Dataset:", _data_name(spec) + (" (synthetic)" if made else "")),
        ("Mode:", _MODES.get(str(spec.get("task")), _MODES["train"])),
        ("SingleSess:", False),
        *_batches(spec, len(devices)),
        ("Devices:", devices),
        ("NUMA bind:", False),
        ("Data format:", spec.get("data_format", "unknown")),
        ("Optimizer:", _part(spec, "optimization").get("optimizer", "sgd")),
        ("Variables:", spec.get("variable_update", "unknown")),
    ]
    if spec.get("all_reduce"):
        fields.append(("AllReduce:", spec["all_reduce"]))
    if _part(spec, "exchange").get("staged"):
        fields.append(("Staged vars:", True))
    # The following lines are not in its logs.
    ours = (("Precision:", _precision(spec)), ("Trainer:", spec.get("method") or spec.get("strategy")))
    fields += [(name, value) for name, value in ours if value]
    return [f"{name:<13}{value}" if len(name) < 13 else f"{name} {value}" for name, value in fields]


def _batches(spec: dict[str, Any], devices: int) -> list[tuple[str, Any]]:
    batch, steps = spec.get("batch_size"), spec.get("num_batches")
    limit = "all examples" if spec.get("max_batches") is None else f"{spec['max_batches']} at most"
    limit = limit if spec.get("max_error") is None else "until the speed is known"
    of_each = stored_batches(batch, devices)
    joint = sum(of_each) if of_each else None
    fields: list[tuple[str, Any]] = [
        ("Batch size:", f"{joint} global"),
        ("", batch_words(plain(of_each)) if of_each else f"{batch} per device"),
        ("Num batches:", limit if steps is None else steps),
    ]
    if isinstance(steps, int) and joint is not None:
        fields.append(
            ("Num epochs:", f"{steps * joint / EXAMPLES.get(_data_name(spec), IMAGES_PER_EPOCH):.2f}")
        )
    return fields


def _data_name(spec: dict[str, Any]) -> str:
    name = _part(spec, "data").get("name")
    if isinstance(name, str):
        return name
    model = spec.get("model")
    known = isinstance(model, str) and model in workload_names()
    return require_workload(str(model)).data_name if known else "imagenet"


def _precision(spec: dict[str, Any]) -> str | None:
    """Return the precision if it is not the default."""
    precision = _part(spec, "precision")
    words = [precision["compute"]] if precision.get("compute", "fp32") != "fp32" else []
    if precision.get("auto_loss_scale"):
        words.append("automatic loss scale")
    elif precision.get("loss_scale", 1.0) != 1.0:
        words.append(f"loss scale {precision['loss_scale']:g}")
    if precision.get("xla"):
        words.append("XLA")
    return ", ".join(words) or None


def _part(spec: dict[str, Any], name: str) -> dict[str, Any]:
    part = spec.get(name)
    return part if isinstance(part, dict) else {}
