"""A simulated trainer whose GPUs' samples are scripted over its steps."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gputopo.runs import Judgement
from gputopo.values.run.events import Event, GpuSample, HostLoad, Sample, Step
from tests.invented_runs import judged_events
from tests.kit.drills.box import Trainer

POWER_CAP, THERMAL, POWER_BRAKE = 0x4, 0x20, 0x80
HEALTHY: Mapping[str, Any] = {
    "graphics_mhz": 1800,
    "memory_mhz": 4000,
    "throttle_mask": 0,
    "pcie_gen": 3,
    "pcie_width": 16,
    "other_processes": 0,
}
Readings = Callable[[int], Mapping[str, Any]]  # by step; what differs from a healthy GPU


def always(**fields: Any) -> Readings:
    """The same readings in all steps."""
    return lambda step: fields


def since(first: int, **fields: Any) -> Readings:
    """Healthy until a step."""
    return lambda step: fields if step >= first else {}


def events(
    trainer: Trainer,
    steps: int,
    cards: Mapping[int, Readings] = {},
    host: Callable[[int], HostLoad] | None = None,
    without: tuple[str, ...] = (),
) -> Iterator[Event]:
    """The events of a run, a sample within each step. `without`: fields that no GPU answers."""
    for event in trainer.events(steps):
        if isinstance(event, Step):
            yield Sample(
                time_s=event.time_s,
                gpus=tuple(_reading(device.tower, event.step, cards, without) for device in trainer.devices),
                host=None if host is None else host(event.step),
            )
        yield event


def _reading(gpu: int, step: int, cards: Mapping[int, Readings], without: tuple[str, ...]) -> GpuSample:
    fields = {**HEALTHY, **(cards[gpu](step) if gpu in cards else {})}
    return GpuSample(gpu=gpu, **{name: value for name, value in fields.items() if name not in without})


def judged(trainer: Trainer, *args: Any, **more: Any) -> Judgement:
    """The verdicts on the events of a run."""
    return judged_events(trainer.devices, events(trainer, *args, **more))
