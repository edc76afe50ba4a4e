"""Making, reading and comparing the variables of a run."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.core.models import Model
from gputopo.launch.core.placement.devices import HOST
from gputopo.launch.core.randomness import Stream

Tensor = Any
_INITIAL = 1000  # purpose of the random stream of the first variable's initial values


def create(model: Model, devices: Sequence[str], seed: int) -> list[Any]:
    """Create the model's variables, each on its device (one device: all on it).

    The same seed gives the same first values on every device.
    """
    return create_copies(model, [devices], seed)[0]


def create_copies(model: Model, places: Sequence[Sequence[str]], seed: int) -> list[list[Any]]:
    """Create several sets of the model's variables with equal first values, which are drawn once."""
    copies: list[list[Any]] = [[] for _ in places]
    for number, spec in enumerate(model.variables):
        with tf.device(HOST):
            initial = spec.initial(Stream(seed, _INITIAL + number))
        for variables, devices in zip(copies, places, strict=True):
            with tf.device(devices[number] if len(devices) > 1 else devices[0]):
                variables.append(tf.Variable(initial, name=spec.name))
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
    """Give the largest absolute difference between any copy of any variable and the first tower's."""
    largest = 0.0
    for variables in places[1:]:
        for first, other in zip(places[0], variables, strict=True):
            largest = max(largest, float(abs(first.numpy() - other.numpy()).max()))
    return largest
