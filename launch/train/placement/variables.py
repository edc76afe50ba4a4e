"""Variables of a run: created, read, assigned and compared."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.device_names import rank_of
from gputopo.launch.models.layers import Stream
from gputopo.launch.models.model import Model
from gputopo.launch.train.placement.cut_variables import create_cut
from gputopo.launch.train.placement.devices import HOST
from gputopo.launch.train.placement.methods import moved_together
from gputopo.launch.train.stepper import VariableSets

Tensor = Any

_INITIAL = 1000  # purpose of the random stream for the first variable's initial values
_COMPARED_AT_ONCE = 2**20  # elements
_SCOPE = "statistics/"  # not in a tower's scope: these ops are on two hosts on purpose
INFINITE_DIFFERENCE = float(np.finfo(np.float32).max)
"""The difference of two copies if only one is finite: JSON has no infinity."""


@dataclass(frozen=True)
class VariableSet:
    """Trained variables and moving statistics, [place][variable], of trainers other than gputopo's towers."""

    places: Sequence[Sequence[Any]]
    states: Sequence[Sequence[Any]]

    def reset_buffers(self) -> None:
        """Do nothing: there are no buffers between steps."""


def create(model: Model, device: str, seed: int) -> list[Any]:
    """Create the model's variables on a device. A seed gives the same initial values on every device."""
    return create_copies(model, [device], seed)[0]


def create_spread(model: Model, owners: Sequence[Sequence[str]], seed: int) -> list[Any]:
    """Create the model's variables, each on its device or in parts on several. Values are as in `create`."""
    variables: list[Any] = []
    for number, (spec, devices) in enumerate(zip(model.variables, owners, strict=True)):
        initial = _initial(spec, seed, number)
        if len(devices) > 1:
            variables.append(create_cut(initial, spec.shape, devices, spec.name))
            continue
        with tf.device(devices[0]):
            variables.append(tf.Variable(initial, name=spec.name))
    return variables


def create_copies(model: Model, devices: Sequence[str], seed: int) -> list[list[Any]]:
    """Create a set of the model's variables on each device, with equal initial values, which are drawn once.

    Each has its own memory from the start. Otherwise CPU devices would share it until the first update, which
    would allocate every variable between the tensors of the step and fragment the memory: 70 to 90 MiB more
    in ResNet-50 on two devices, up to 350 MiB in AlexNet.
    """
    copies: list[list[Any]] = [[] for _ in devices]
    for number, spec in enumerate(model.variables):
        initial = _initial(spec, seed, number)
        for place, (variables, device) in enumerate(zip(copies, devices, strict=True)):
            with tf.device(HOST):
                value = tf.raw_ops.DeepCopy(x=initial) if place else initial
            with tf.device(device):
                variables.append(tf.Variable(value, name=spec.name))
    return copies


def create_state(model: Model, device: str) -> list[Any]:
    """Create the model's moving statistics on a device."""
    with tf.device(device):
        return [
            tf.Variable(spec.initial(Stream(0, 0)), trainable=False, name=spec.name) for spec in model.state
        ]


def pin(variables: Iterable[Any]) -> None:
    """Move the variables on a host to pinned memory, from which GPUs copy directly.

    A value that was assigned, drawn or restored is in pageable memory, and each copy to a GPU goes through a
    pinned buffer. TensorFlow allocates pinned memory for an update that cannot be in place because the old
    value is still in use; this function makes such an update.
    """
    for variable in variables:
        if ":GPU:" not in variable.device:
            with tf.device(variable.device):
                value = variable.read_value()
                variable.assign_add(tf.zeros_like(value))


def read(variables: Sequence[Any]) -> list[Tensor]:
    """Read variables on their own devices."""
    values = []
    for variable in variables:
        with tf.device(variable.device):
            values.append(variable.read_value())
    return values


def assign(variables: Sequence[Any], values: Sequence[Tensor]) -> list[Any]:
    """Return the ops that assign values to variables. The values must be on the variables' devices."""
    ops = []
    for variable, value in zip(variables, values, strict=True):
        with tf.device(variable.device):
            ops.append(tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value))
    return ops


def read_state(placement: VariableSets, tower: int, device: str) -> list[Tensor]:
    """Return the moving statistics on a tower's device: its own set, or the set that all towers share."""
    states = placement.states
    state = states[tower if len(states) > 1 else 0]
    if state and rank_of(state[0].device) != rank_of(device):
        # They are sent when the step begins. If they waited for this tower's start, they would queue on their
        # host until the first tower has computed.
        with tf.name_scope(_SCOPE), tf.control_dependencies(None):
            values = [variable.read_value() for variable in state]
            return moved_together(values, state[0].device, device)
    values = [variable.read_value() for variable in state]
    with tf.device(device):
        return [tf.identity(value) for value in values]


def write_state(placement: VariableSets, new: Sequence[Sequence[Tensor]]) -> list[Any]:
    """Store the towers' new statistics ([tower][number]). If they share a set, store the first tower's."""
    ops = []
    for variables, values in zip(placement.states, new, strict=False):
        ops += assign(variables, values)
    return ops


def largest_difference(places: Sequence[Sequence[Any]]) -> float:
    """Return the largest absolute difference between any copy of any variable and the first tower's.

    Values that are not finite are equal if both are the same infinity or both NaN; otherwise they differ by
    `INFINITE_DIFFERENCE`.
    """
    largest = 0.0
    for copies in zip(*places, strict=True):
        first, *others = map(_on_host, copies)
        for other in others:
            # Compare a slice at a time, so that comparing does not allocate more memory than training did.
            for start in range(0, len(first), _COMPARED_AT_ONCE):
                values = first[start : start + _COMPARED_AT_ONCE]
                others_values = other[start : start + _COMPARED_AT_ONCE]
                with np.errstate(invalid="ignore", over="ignore"):
                    apart = np.abs(values - others_values)
                apart[(values == others_values) | (np.isnan(values) & np.isnan(others_values))] = 0.0
                apart[~np.isfinite(apart)] = INFINITE_DIFFERENCE
                largest = max(largest, float(apart.max()))
    return largest


def _initial(spec: Any, seed: int, number: int) -> Tensor:
    with tf.device(HOST):
        return spec.initial(Stream(seed, _INITIAL + number))


def _on_host(variable: Any) -> Any:
    """Return a variable's values as a flat array, without a copy if it is on a CPU device."""
    with tf.device(HOST):
        value = tf.reshape(tf.identity(variable.read_value()), (-1,))
    return np.asarray(memoryview(value))
