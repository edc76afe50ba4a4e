"""The loss scale for float16: fixed or automatic. Automatic scaling skips steps with non-finite gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.train.placement.devices import HOST
from gputopo.values.run.spec import Precision, RunSpec

Tensor = Any

# The lower limit is tf_cnn_benchmarks's: below 1 a scale would make gradients smaller. The upper limit is
# NVIDIA Apex's for its dynamic loss scale: without a limit a float32 run would double the scale to infinity.
MIN_SCALE, MAX_SCALE = 1.0, 2.0**24


class LossScale:
    """The loss scale of a run: fixed, or a variable on the host that follows the gradients.

    `variables`: saved in checkpoints, [scale][its value, good steps, skipped steps]; empty for a fixed scale.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._spec: Precision = spec.precision
        self.automatic = spec.precision.auto_loss_scale
        self._own = spec.variable_update == "independent"
        self.variables: list[list[Any]] = []
        if self.automatic:
            # Counts are float32: exact up to 16 million, and every device has kernels for this type.
            starts = {
                "loss/scale": float(spec.precision.loss_scale),
                "loss/good_steps": 0.0,
                "loss/skipped_steps": 0.0,
            }
            with tf.device(HOST):
                self.variables = [
                    [tf.Variable(start, trainable=False, name=name) for name, start in starts.items()]
                    for _ in range(len(spec.devices) if self._own else 1)
                ]

    def of(self, tower: int) -> Tensor | None:
        """Return a tower's scale as a float32 scalar on the host, or None if the loss is not scaled."""
        if self.automatic:
            with tf.device(HOST):
                return self.variables[tower if self._own else 0][0].read_value()
        if self._spec.loss_scale == 1.0:
            return None
        with tf.device(HOST):
            return tf.constant(self._spec.loss_scale, tf.float32)

    def skipped(self, place: int) -> Tensor:
        """Return the number of steps that an automatic scale has skipped in a place, on the host."""
        with tf.device(HOST):
            return self.variables[place if self._own else 0][2].read_value()

    def decide(self, totals: Sequence[Sequence[Tensor]], variables: Sequence[Sequence[Any]]) -> list[Tensor]:
        """Return for each place whether its step is applied: a bool on the host.

        One non-finite gradient skips the step for all these places. `totals` and the `variables` that they
        change: [place][variable].
        """
        flags = [_finite(gradients, changed) for gradients, changed in zip(totals, variables, strict=True)]
        with tf.device(HOST):
            return [tf.reduce_all(tf.stack(flags))] * len(flags)

    def settle(self, decisions: Sequence[Tensor], *, first: int = 0) -> list[Any]:
        """Return the ops that halve the scale after a bad step and double it after enough good ones.

        `decisions`: from `decide`, for the places from `first` on.
        """
        ops = []
        with tf.device(HOST):
            # If there is one scale for all, every place has the same decision.
            for (scale, good, skipped), taken in zip(self.variables[first:], decisions, strict=False):
                now = good.read_value() + 1.0
                enough = now >= float(self._spec.loss_scale_steps)
                value = scale.read_value()
                larger = tf.where(enough, tf.minimum(value * 2.0, MAX_SCALE), value)
                smaller = tf.maximum(value * 0.5, MIN_SCALE)
                counted = tf.where(tf.logical_and(taken, tf.logical_not(enough)), now, 0.0)
                ops += [
                    _assign(scale, tf.where(taken, larger, smaller)),
                    _assign(good, counted),
                    _assign(skipped, skipped.read_value() + tf.where(taken, 0.0, 1.0)),
                ]
        return ops

    def report(self) -> tuple[tuple[float, ...], tuple[int, ...]] | None:
        """Return the scales after a step, and the steps skipped by each, or None for a fixed scale."""
        if not self.automatic:
            return None
        return (
            tuple(float(scale.numpy()) for scale, _, _ in self.variables),
            tuple(int(skipped.numpy()) for _, _, skipped in self.variables),
        )


def run_if(decision: Tensor, apply: Callable[[], Sequence[Any]]) -> Any:
    """Build ops that run only if the decision (a bool on the host) is True; return one op for them."""

    def change() -> Tensor:
        with tf.control_dependencies(list(apply())), tf.device(HOST):
            return tf.constant(True)

    def leave() -> Tensor:
        with tf.device(HOST):
            return tf.constant(False)

    with tf.device(HOST):
        return tf.cond(decision, change, leave)


def _finite(gradients: Sequence[Tensor], variables: Sequence[Any]) -> Tensor:
    """Return on the host whether every number in the gradients is finite.

    Each device reduces its gradients to one flag, so that only one number per device is copied.
    """
    by_device: dict[str, list[Tensor]] = {}
    for gradient, variable in zip(gradients, variables, strict=True):
        with tf.device(variable.device):
            flag = tf.reduce_all(tf.math.is_finite(gradient))
        by_device.setdefault(variable.device, []).append(flag)
    flags = []
    for device, of_device in by_device.items():
        with tf.device(device):
            flags.append(tf.reduce_all(tf.stack(of_device)))
    with tf.device(HOST):
        return tf.reduce_all(tf.stack(flags))


def _assign(variable: Any, value: Tensor) -> Any:
    return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
