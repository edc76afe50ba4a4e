"""Variables that are cut into parts on several devices."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.train.placement.algorithms import cut_on, join_on, on
from gputopo.launch.train.placement.devices import HOST
from gputopo.launch.train.placement.partitioning import UNIT, chunk_sizes

Tensor = Any


class CutVariable:
    """A variable of the model, stored as flat parts in order, which `ParameterServer` spreads over GPUs.

    Code outside the step (checkpoints, exports, buffers) reads and sets the whole variable in its shape, like
    a tf.Variable. The step itself changes the parts.
    """

    def __init__(self, parts: Sequence[Any], shape: Sequence[int]) -> None:
        self.parts = list(parts)
        self.shape = tf.TensorShape(shape)
        self.name: str = parts[0].name
        self.device: str = parts[0].device

    def numpy(self) -> Any:
        """Return the value as an array."""
        return np.concatenate([part.numpy() for part in self.parts]).reshape(self.shape)

    def read_value(self) -> Tensor:
        """Return the value on the host."""
        return join_on(HOST, [part.read_value() for part in self.parts], self.shape)

    def assign(self, value: Any) -> None:
        """Set the value outside the step (eagerly)."""
        sizes = [part.shape.num_elements() for part in self.parts]
        for part, piece in zip(self.parts, cut_on(HOST, tf.convert_to_tensor(value), sizes), strict=True):
            with tf.device(part.device):
                part.assign(piece)


def create_cut(value: Tensor, shape: Sequence[int], devices: Sequence[str], name: str) -> CutVariable:
    """Create a variable in equal parts, one on each device. `value`: the whole value, on the host."""
    sizes = chunk_sizes(value.shape.num_elements(), len(devices), unit=UNIT)
    parts = []
    for piece, device in zip(cut_on(HOST, value, sizes), devices, strict=True):
        with tf.device(HOST):
            copied = tf.raw_ops.DeepCopy(x=piece)  # a slice shares its memory with the whole
        with tf.device(device):
            parts.append(tf.Variable(copied, name=name))
    return CutVariable(parts, shape)


def parts_of(variable: Any) -> Sequence[Any]:
    """Return the tf.Variables of which a variable of the model consists: its parts, or itself."""
    return variable.parts if isinstance(variable, CutVariable) else (variable,)


def stored_of(variables: Iterable[Any]) -> list[Any]:
    """Return the tf.Variables of which some variables of the model consist."""
    return [part for variable in variables for part in parts_of(variable)]


def by_variable(variables: Iterable[Any], of_stored: Iterable[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield each variable of the model with its parts' items in `of_stored`, one for each stored variable."""
    waiting = iter(of_stored)
    for variable in variables:
        yield variable, list(islice(waiting, len(parts_of(variable))))


def whole_on(device: str, variables: Iterable[Any], values: Iterable[Tensor]) -> list[Tensor]:
    """Copy the values of stored variables to a device, and join the parts there."""
    return [
        on(device, pieces[0]) if len(pieces) == 1 else join_on(device, pieces, variable.shape)
        for variable, pieces in by_variable(variables, values)
    ]


def cut_as(variable: Any, value: Tensor) -> list[Tensor]:
    """Cut a gradient as its variable is cut, on the device that has the gradient."""
    parts = parts_of(variable)
    if len(parts) == 1:
        return [value]
    return cut_on(value.device, value, [part.shape.num_elements() for part in parts])


def slots_of(variables: Sequence[Any], slots: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return the slots of each variable of the model. `slots`: of each stored variable ([variable][slot])."""
    return [
        list(of_parts[0])
        if len(of_parts) == 1
        else [CutVariable(parts, variable.shape) for parts in zip(*of_parts, strict=True)]
        for variable, of_parts in by_variable(variables, slots)
    ]
