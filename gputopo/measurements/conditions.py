"""Which measurements may be compared: one declaration of the conditions, and of each comparison.

Two measurements are compared in one condition only; all others must be equal, and so stated or unstated in
both. What goes with the condition by its nature (another machine has another CPU) is listed with it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gputopo.values.run.measurement import Measurement

# All conditions of a measurement, in the order in which a difference is named, with the words for it.
CONDITIONS: Mapping[str, str] = {
    "machine": "machine",
    "cpu": "CPU",
    "backend": "kind of device",
    "gpu": "GPU model",
    "n_gpus": "number of GPUs",
    "gpus": "set of GPUs",
    "framework": "program",
    "method": "method",
    "version": "version of TensorFlow",
    "task": "task",
    "model": "model",
    "dataset": "data set",
    "data": "data source",
    "distortions": "distortions",
    "batch_per_gpu": "batch per device",
    "precision": "precision",
    "data_format": "layout",
    "xla": "XLA",
    "variable_update": "variable update",
    "ps_device": "parameter server",
    "all_reduce": "reduction",
}
MODE = ("variable_update", "ps_device", "all_reduce")
SET = ("n_gpus", "gpus")
BOX = ("machine", "cpu", "gpu", "gpus")

# Standard error of one run against another one of the same job on the same machine, as a share. The eight
# one-GPU pairs of tensorflow.org, synthetic against real data, have ratios of 0.98 to 1.02.
RUN_TO_RUN = 0.01
# A difference holds from this many standard errors on: 95 %.
DEVIATIONS = 2.0


class Comparison(NamedTuple):
    """A ratio of measurements that differ in `by`. `free`: what else may differ, since it goes with it.

    `over`: the values of `by` as (above, below) of the ratio; empty: each over the smallest or the first
    by name. `title`: of its table.
    """

    id: str
    title: str
    by: str
    free: tuple[str, ...] = ()
    over: tuple[tuple[Any, Any], ...] = ()


COMPARISONS: tuple[Comparison, ...] = (
    Comparison("data", "Synthetic over real data", "data", ("distortions",), (("synthetic", "real"),)),
    Comparison(
        "data-made", "Examples made elsewhere over made on the device", "data",
        over=(("synthetic-cpu", "synthetic"), ("synthetic-python", "synthetic")),
    ),
    Comparison("distortions", "With distortions over without", "distortions", over=((True, False),)),
    Comparison("batch", "Larger batch over smaller, images/sec", "batch_per_gpu"),
    Comparison("gpu", "GPU models", "gpu", BOX),
    Comparison("model", "Models", "model"),
    Comparison("layout", "NCHW over NHWC", "data_format", over=(("NCHW", "NHWC"),)),
    Comparison(
        "precision", "Half precision over fp32", "precision", over=(("fp16", "fp32"), ("bf16", "fp32"))
    ),
    Comparison("xla", "With XLA over without", "xla", over=((True, False),)),
    Comparison("program", "Programs", "framework", ("method", "version", *MODE)),
)  # fmt: skip


def key(one: Measurement, free: Iterable[str] = ()) -> tuple[Any, ...]:
    """Return all conditions of a measurement, without the free ones: equal for those that may be compared."""
    left_out = set(free)
    return tuple(None if name in left_out else getattr(one, name) for name in CONDITIONS)


def differences(one: Measurement, other: Measurement) -> tuple[str, ...]:
    """Return the names of the conditions in which two measurements differ, in order."""
    return tuple(name for name in CONDITIONS if getattr(one, name) != getattr(other, name))


def value_words(name: str, value: Any) -> str:
    """Return the value of a condition in words."""
    if value is None or value == ():
        return "not stated"
    if name == "xla":
        return "XLA" if value else "no XLA"
    if name == "distortions":
        return "distortions" if value else "no distortions"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def holds(ratio: float, noise: float) -> bool:
    """Return whether a ratio is beyond the noise. `noise`: standard error of its logarithm."""
    return ratio > 0 and abs(math.log(ratio)) > DEVIATIONS * noise
