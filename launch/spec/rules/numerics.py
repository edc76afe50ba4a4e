"""Numeric settings that go together, and with this machine's TensorFlow. Pure; checked before training.

What depends on the kernels of the CPU or GPU is tried in the worker (`train.placement.devices`).
"""

import math
from collections.abc import Mapping
from itertools import pairwise

from gputopo.launch.spec.run_spec import RunSpec, Schedule
from gputopo.values.errors import UsageError

_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_OFF = ("0", "false")  # what TensorFlow's ReadBoolFromEnvVar takes for no, in any case


def require_numerics(spec: RunSpec, environment: Mapping[str, str]) -> None:
    """Raise UsageError for settings that cannot work. `environment`: that of the worker."""
    _require_layout(spec, environment)
    _require_scale(spec)
    _require_schedule(spec.optimization.schedule)
    _require_optimization(spec)


def remarks(spec: RunSpec) -> tuple[str, ...]:
    """Return notes on the numerics for the result."""
    if spec.backend == "cpu" and spec.precision.compute == "fp16" and not spec.precision.xla:
        return ("Most CPUs have no fp16 arithmetic: it is emulated here, and slower than fp32.",)
    return ()


def _require_layout(spec: RunSpec, environment: Mapping[str, str]) -> None:
    off = environment.get(_ONEDNN, "").lower() in _OFF
    if spec.backend == "cpu" and spec.data_format == "NCHW" and off and not spec.precision.xla:
        raise UsageError(
            f"--data-format NCHW needs oneDNN on CPU devices, and {_ONEDNN}={environment[_ONEDNN]} "
            "turns it off",
            f"use --data-format NHWC, or unset {_ONEDNN}",
        )


def _require_scale(spec: RunSpec) -> None:
    precision = spec.precision
    if not (math.isfinite(precision.loss_scale) and precision.loss_scale > 0):
        raise UsageError(f"--loss-scale cannot be {precision.loss_scale}", "give a number such as 128")
    if precision.auto_loss_scale and precision.loss_scale_steps < 1:
        raise UsageError(
            f"a loss scale cannot double after {precision.loss_scale_steps} good steps",
            "give 1 or more; 1000 is usual",
        )


def _require_schedule(schedule: Schedule) -> None:
    if schedule.warmup_steps < 0:
        raise UsageError(
            f"a warm-up of the learning rate cannot have {schedule.warmup_steps} steps", "give 0 or more"
        )
    if schedule.kind == "piecewise":
        _require_stairs(schedule)
    elif schedule.kind != "constant" and schedule.decay_steps < 1:
        raise UsageError(
            f"a {schedule.kind} learning rate cannot fall in {schedule.decay_steps} steps",
            "give the number of steps: 1 or more",
        )


def _require_stairs(schedule: Schedule) -> None:
    boundaries, factors = schedule.boundaries, schedule.factors
    if len(factors) != len(boundaries) + 1:
        raise UsageError(
            f"a piecewise learning rate has {len(boundaries)} boundaries and {len(factors)} factors",
            "give one factor more than boundaries: the last one holds for ever",
        )
    # Equal ones are valid: with a batch beyond the data set epochs are steps, and a factor has no step.
    if any(later < earlier for earlier, later in pairwise(boundaries)):
        raise UsageError(
            f"the boundaries of the learning rate decrease: {', '.join(map(str, boundaries))}",
            "give the steps in their order",
        )


def _require_optimization(spec: RunSpec) -> None:
    asked = spec.optimization
    if asked.nesterov and asked.optimizer != "momentum":
        raise UsageError(
            f"Nesterov's form cannot be combined with --optimizer {asked.optimizer}: it is one of momentum",
            "use --optimizer momentum, or leave --nesterov out",
        )
    for option, value in (
        ("gradient-clip", asked.gradient_clip),
        ("gradient-clip-norm", asked.gradient_clip_norm),
    ):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"--{option} cannot be {value}", "give a number above 0, or leave it out")
