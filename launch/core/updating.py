"""From total gradients to changed variables: what every placement shares. Ops only; nothing runs here."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.core.devices import HOST
from gputopo.launch.core.optimizers import optimizer_of, scalars_of
from gputopo.launch.core.placements import Placement
from gputopo.launch.spec import Optimization, Schedule

Tensor = Any


class Updater:
    """Holds the slots of every variable of a placement, and builds the ops of one step.

    `slots`: [place][variable][slot], each on its variable's device.
    """

    def __init__(self, placement: Placement, spec: Optimization, base_rate: float) -> None:
        self._placement = placement
        self._spec = spec
        self._base_rate = base_rate
        self._optimizer = optimizer_of(spec)
        self.slots = [[self._slots_of(variable) for variable in variables] for variables in placement.places]

    def update(self, totals: Sequence[Sequence[Tensor]], number: Tensor) -> list[Any]:
        """Change every place by its totals ([place][variable]); give the ops. `number`: of the step."""
        rate = learning_rate(self._spec.schedule, self._base_rate, number)
        ops = []
        for place, gradients in enumerate(totals):
            ops += self.update_place(place, gradients, rate)
        return ops

    def update_place(self, place: int, gradients: Sequence[Tensor], rate: Tensor) -> list[Any]:
        """Change the variables of one place."""
        variables = self._placement.places[place]
        ops = []
        ready = [
            self._decayed(variable, gradient) for variable, gradient in zip(variables, gradients, strict=True)
        ]
        for variable, slots, gradient in zip(variables, self.slots[place], self._clipped(ready), strict=True):
            with tf.device(variable.device):
                ops.append(self._optimizer.apply(variable, slots, gradient, rate))
        return ops

    def _slots_of(self, variable: Any) -> list[Any]:
        slots = []
        with tf.device(variable.device):
            for name, start in self._optimizer.slots:
                value = tf.fill(variable.shape, tf.constant(start, variable.dtype))
                slots.append(tf.Variable(value, trainable=False, name=f"{name}/slot"))
            for name, start in scalars_of(self._optimizer):
                slots.append(tf.Variable(start, trainable=False, name=f"{name}/slot"))
        return slots

    def _decayed(self, variable: Any, gradient: Tensor) -> Tensor:
        if not self._spec.weight_decay:
            return gradient
        with tf.device(variable.device):
            return gradient + self._spec.weight_decay * variable.read_value()

    def _clipped(self, gradients: list[Tensor]) -> list[Tensor]:
        limit, norm = self._spec.gradient_clip, self._spec.gradient_clip_norm
        if limit is not None:
            gradients = [_at(one, lambda x: tf.clip_by_value(x, -limit, limit)) for one in gradients]
        if norm is not None:
            squares = [_at(one, lambda x: tf.reduce_sum(tf.square(x))) for one in gradients]
            with tf.device(HOST):
                factor = norm / tf.maximum(tf.sqrt(tf.add_n(squares)), norm)
            gradients = [_at(one, lambda x: x * factor) for one in gradients]
        return gradients


def learning_rate(schedule: Schedule, base: float, number: Tensor) -> Tensor:
    """Give the learning rate of step `number` (int64, from 0) on the host: see `Schedule`."""
    with tf.device(HOST):
        step = tf.cast(number, tf.float32)
        factor = _factor(schedule, step)
        if schedule.warmup_steps:
            factor *= tf.minimum(1.0, (step + 1.0) / schedule.warmup_steps)
        return tf.identity(base * factor)


def _factor(schedule: Schedule, step: Tensor) -> Tensor:
    if schedule.kind == "piecewise":
        passed = tf.reduce_sum(tf.cast(step >= tf.constant(schedule.boundaries, tf.float32), tf.int32))
        return tf.gather(tf.constant(schedule.factors, tf.float32), passed)
    if schedule.kind == "exponential":
        return tf.pow(schedule.decay, tf.floor(step / schedule.decay_steps))
    if schedule.kind == "cosine":
        done = tf.minimum(step / schedule.decay_steps, 1.0)
        return 0.5 * (1.0 + tf.cos(math.pi * done))
    return tf.constant(1.0)


def _at(tensor: Tensor, change: Any) -> Tensor:
    """Apply a change on the device that a tensor was made on."""
    with tf.device(tensor.device or None):
        return change(tensor)
