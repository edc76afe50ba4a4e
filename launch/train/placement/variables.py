"""Making, reading and comparing the variables of a run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.models.models import Model
from gputopo.launch.train.placement.devices import HOST
from gputopo.launch.train.randomness import Stream

Tensor = Any
_INITIAL = 1000  # purpose of the random stream of the first variable's initial values
_COMPARED_AT_ONCE = 2**20  # numbers
FARTHEST = float(np.finfo(np.float32).max)
"""The difference of copies of which only one is a finite number: JSON has no infinity."""


def create(model: Model, devices: Sequence[str], seed: int) -> list[Any]:
    """Create the model's variables, each on its device (one device: all on it).

    The same seed gives the same first values on every device.
    """
    return create_copies(model, [devices], seed)[0]


def create_copies(model: Model, places: Sequence[Sequence[str]], seed: int) -> list[list[Any]]:
    """Create several sets of the model's variables with equal first values, which are drawn once.

    Each has memory of its own from the start. CPU devices would share it until the first update, which
    would then put every variable among what the step works with, and cut that memory in pieces: in
    ResNet-50 on two devices 70 to 90 MiB more, in AlexNet up to 350.
    """
    copies: list[list[Any]] = [[] for _ in places]
    for number, spec in enumerate(model.variables):
        with tf.device(HOST):
            initial = spec.initial(Stream(seed, _INITIAL + number))
        for place, (variables, devices) in enumerate(zip(copies, places, strict=True)):
            with tf.device(HOST):
                value = tf.raw_ops.DeepCopy(x=initial) if place else initial
            with tf.device(devices[number] if len(devices) > 1 else devices[0]):
                variables.append(tf.Variable(value, name=spec.name))
    return copies


def create_state(model: Model, device: str) -> list[Any]:
    """Create the model's moving statistics on a device."""
    with tf.device(device):
        return [
            tf.Variable(spec.initial(Stream(0, 0)), trainable=False, name=spec.name) for spec in model.state
        ]


def read(variables: Sequence[Any]) -> list[Tensor]:
    """Read variables where they are."""
    values = []
    for variable in variables:
        with tf.device(variable.device):
            values.append(variable.read_value())
    return values


def assign(variables: Sequence[Any], values: Sequence[Tensor]) -> list[Any]:
    """Give the ops that put values, which are there already, into variables. Nothing is copied."""
    ops = []
    for variable, value in zip(variables, values, strict=True):
        with tf.device(variable.device):
            ops.append(tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value))
    return ops


def largest_difference(places: Sequence[Sequence[Any]]) -> float:
    """Give the largest absolute difference between any copy of any variable and the first tower's.

    Copies that are not finite at the same number are equal there if both are the same infinity or both no
    number; otherwise they differ by `FARTHEST`.
    """
    largest = 0.0
    for copies in zip(*places, strict=True):
        first, *others = map(_on_host, copies)
        for other in others:
            # A slice at a time: what is compared takes no memory that training did not.
            for start in range(0, len(first), _COMPARED_AT_ONCE):
                own = slice(start, start + _COMPARED_AT_ONCE)
                largest = max(largest, _farthest(first[own], other[own]))
    return largest


def _on_host(variable: Any) -> Any:
    """Give a variable's numbers in a row, on a CPU device without a copy."""
    with tf.device(HOST):
        value = tf.reshape(tf.identity(variable.read_value()), (-1,))
    return np.asarray(memoryview(value))


def _farthest(first: Any, other: Any) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(first - other)
    finite = np.isfinite(apart)
    if finite.all():
        return float(apart.max(initial=0.0))
    same = (first == other) | (np.isnan(first) & np.isnan(other))
    return float(apart[finite].max(initial=0.0)) if (finite | same).all() else FARTHEST
