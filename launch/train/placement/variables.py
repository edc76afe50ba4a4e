"""Variables of a run: created, read, assigned and compared."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.models.layers import Stream
from gputopo.launch.models.model import Model
from gputopo.launch.train.placement.algorithms import cut_on, join_on, on
from gputopo.launch.train.placement.devices import HOST
from gputopo.launch.train.placement.methods import moved_together
from gputopo.launch.train.placement.partitioning import UNIT, chunk_sizes
from gputopo.launch.train.stepper import VariableSets
from gputopo.values.run.names import rank_of

Tensor = Any


class CutVariable:
    """A variable of the model, stored as flat parts in order: what `ParameterServer` spreads over GPUs.

    What lies outside the step (checkpoints, exports, buffers) reads and sets it whole, in its shape, as it
    does a tf.Variable; the step itself changes the parts.
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
        """Set the value, outside the step (eagerly)."""
        sizes = [part.shape.num_elements() for part in self.parts]
        for part, own in zip(self.parts, cut_on(HOST, tf.convert_to_tensor(value), sizes), strict=True):
            with tf.device(part.device):
                part.assign(own)


class EqualVariables:
    """Variables of one value, each on its device."""

    def __init__(self, copies: Sequence[Any]) -> None:
        self._copies = copies
        self.shape = copies[0].shape
        self.device: str = copies[0].device

    def numpy(self) -> Any:
        """Return the value."""
        return self._copies[0].numpy()

    def assign(self, value: Any) -> None:
        """Set all to a value."""
        for copy in self._copies:
            with tf.device(copy.device):
                copy.assign(value)


def create_cut(value: Tensor, shape: Sequence[int], devices: Sequence[str], name: str) -> CutVariable:
    """Create a variable in equal parts, one on each device. `value`: on the host."""
    sizes = chunk_sizes(value.shape.num_elements(), len(devices), unit=UNIT)
    parts = []
    for own, device in zip(cut_on(HOST, value, sizes), devices, strict=True):
        with tf.device(HOST):
            copied = tf.raw_ops.DeepCopy(x=own)  # a slice shares its memory with the whole
        with tf.device(device):
            parts.append(tf.Variable(copied, name=name))
    return CutVariable(parts, shape)


def parts_of(variable: Any) -> Sequence[Any]:
    """Return the tf.Variables that a variable of the model consists of: its parts, or itself."""
    return variable.parts if isinstance(variable, CutVariable) else (variable,)


def stored_of(variables: Iterable[Any]) -> list[Any]:
    """Return the tf.Variables that some variables of the model consist of."""
    return [part for variable in variables for part in parts_of(variable)]


def by_variable(variables: Iterable[Any], of_stored: Iterable[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield each variable of the model with what belongs to its parts, of a list by stored variable."""
    waiting = iter(of_stored)
    for variable in variables:
        yield variable, list(islice(waiting, len(parts_of(variable))))


def whole_on(device: str, variables: Iterable[Any], values: Iterable[Tensor]) -> list[Tensor]:
    """Copy the values of stored variables to a device, and put the parts together there."""
    return [
        on(device, own[0]) if len(own) == 1 else join_on(device, own, variable.shape)
        for variable, own in by_variable(variables, values)
    ]


def cut_as(variable: Any, value: Tensor) -> list[Tensor]:
    """Cut a gradient as its variable is cut, on the device that has the gradient."""
    parts = parts_of(variable)
    if len(parts) == 1:
        return [value]
    return cut_on(value.device, value, [part.shape.num_elements() for part in parts])


def slots_of(variables: Sequence[Any], slots: Sequence[Sequence[Any]], own: int) -> list[list[Any]]:
    """Return the slots of each variable of the model, of those of the stored ones ([variable][slot]).

    `own`: number of slots of each variable itself. Behind them is what the variables of a device share; of
    parts on several devices it is the same number on each.
    """
    found = []
    for variable, of_parts in by_variable(variables, slots):
        if len(of_parts) == 1:
            found.append(list(of_parts[0]))
            continue
        cut = zip(*(one[:own] for one in of_parts), strict=True)
        shared = zip(*(one[own:] for one in of_parts if len(one) > own), strict=True)
        found.append([*(CutVariable(same, variable.shape) for same in cut), *map(EqualVariables, shared)])
    return found


_INITIAL = 1000  # purpose of the random stream of the first variable's initial values
_COMPARED_AT_ONCE = 2**20  # numbers
_SCOPE = "statistics/"  # beside those of the towers: these ops are on two hosts on purpose
INFINITE_DIFFERENCE = float(np.finfo(np.float32).max)
"""The difference of copies of which only one is a finite number: JSON has no infinity."""


@dataclass(frozen=True)
class VariableSet:
    """Trained variables and moving statistics, [place][variable], of a trainer that is not our own towers."""

    places: Sequence[Sequence[Any]]
    states: Sequence[Sequence[Any]]

    def reset_buffers(self) -> None:
        """Nothing is carried from step to step."""


def create(model: Model, device: str, seed: int) -> list[Any]:
    """Create the model's variables on a device. The same seed gives the same first values on every device."""
    return create_copies(model, [device], seed)[0]


def create_spread(model: Model, owners: Sequence[Sequence[str]], seed: int) -> list[Any]:
    """Create the model's variables, each on its device, or in parts on several; first values as `create`."""
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
    """Create a set of the model's variables on each device, with equal first values, which are drawn once.

    Each has its own memory from the start. CPU devices would share it until the first update, which would
    then allocate every variable between the tensors of the step and fragment the memory: 70 to 90 MiB more
    in ResNet-50 on two devices, up to 350 in AlexNet.
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
    """Move those of the variables that are on a host into memory that GPUs copy from directly.

    What was assigned, drawn or restored, is pageable, and each copy of it to a GPU goes through a pinned
    buffer. An update that cannot be in place, since something else has the old value, is what TensorFlow
    allocates as memory for GPUs.
    """
    for variable in variables:
        if ":GPU:" not in variable.device:
            with tf.device(variable.device):
                value = variable.read_value()
                variable.assign_add(tf.zeros_like(value))


def read(variables: Sequence[Any]) -> list[Tensor]:
    """Read variables where they are."""
    values = []
    for variable in variables:
        with tf.device(variable.device):
            values.append(variable.read_value())
    return values


def assign(variables: Sequence[Any], values: Sequence[Tensor]) -> list[Any]:
    """Return the ops that assign values, which are there already, to variables. Nothing is copied."""
    ops = []
    for variable, value in zip(variables, values, strict=True):
        with tf.device(variable.device):
            ops.append(tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value))
    return ops


def read_state(placement: VariableSets, tower: int, device: str) -> list[Tensor]:
    """Return the moving statistics on a tower's device: its own, or those that all share."""
    states = placement.states
    own = states[tower if len(states) > 1 else 0]
    if own and rank_of(own[0].device) != rank_of(device):
        # They leave their host as the step begins: waiting for this tower's start, they would queue behind
        # the first tower's computing there.
        with tf.name_scope(_SCOPE), tf.control_dependencies(None):
            values = [variable.read_value() for variable in own]
            return moved_together(values, own[0].device, device)
    values = [variable.read_value() for variable in own]
    with tf.device(device):
        return [tf.identity(value) for value in values]


def write_state(placement: VariableSets, new: Sequence[Sequence[Tensor]]) -> list[Any]:
    """Store the towers' new statistics ([tower][number]); where they share one set, the first tower's."""
    ops = []
    for variables, values in zip(placement.states, new, strict=False):
        ops += assign(variables, values)
    return ops


def largest_difference(places: Sequence[Sequence[Any]]) -> float:
    """Return the largest absolute difference between any copy of any variable and the first tower's.

    Where copies are not finite they are equal if both are the same infinity or both NaN; otherwise they
    differ by `INFINITE_DIFFERENCE`.
    """
    largest = 0.0
    for copies in zip(*places, strict=True):
        first, *others = map(_on_host, copies)
        for other in others:
            # A slice at a time, so that comparing allocates no more memory than training did.
            for start in range(0, len(first), _COMPARED_AT_ONCE):
                own = slice(start, start + _COMPARED_AT_ONCE)
                largest = max(largest, _farthest(first[own], other[own]))
    return largest


def _initial(spec: Any, seed: int, number: int) -> Tensor:
    with tf.device(HOST):
        return spec.initial(Stream(seed, _INITIAL + number))


def _on_host(variable: Any) -> Any:
    """Return a variable's numbers in a row, on a CPU device without a copy."""
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
    return float(apart[finite].max(initial=0.0)) if (finite | same).all() else INFINITE_DIFFERENCE
