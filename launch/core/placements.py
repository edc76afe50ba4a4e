"""Where variables live, and what moves in each step: one small class a strategy.

Each one creates its variables, gives a tower its weights, and takes the towers' gradients. All of them build
graph ops and write every placement out; none decides when it runs.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from gputopo.launch.core.devices import HOST, require
from gputopo.launch.core.models import Model
from gputopo.launch.core.randomness import Stream
from gputopo.launch.core.reduction_methods import ALGORITHMS
from gputopo.launch.core.reductions import Reducer, add, self_test
from gputopo.launch.spec import RunSpec

Tensor = Any
_INITIAL = 1000  # purpose of the random stream of the first variable's initial values


class Placement(Protocol):
    """What the training step asks of a strategy."""

    @property
    def places(self) -> Sequence[Sequence[Any]]:
        """The sets of trained variables: one for all, or one per tower."""

    @property
    def states(self) -> Sequence[Sequence[Any]]:
        """The sets of moving statistics. One: the first tower's count, as in tf_cnn_benchmarks."""

    def weights(self, tower: int) -> list[Tensor]:
        """Give the weights on the tower's device. Moves: what is not there already."""

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Give what each set of variables is to be changed by, on its variables' devices.

        [tower][variable] -> [place][variable]. Moves: gradients.
        """


class ParameterServer:
    """Variables exist once, each on the device that `servers` names for it.

    Moves per step: all weights to each tower, all gradients back; they are added and applied at the server.
    """

    def __init__(self, model: Model, devices: Sequence[str], servers: Sequence[str], seed: int) -> None:
        self._devices = devices
        self._servers = servers
        self.places = (create(model, servers, seed),)
        self.states = (create_state(model, servers[0]),)

    def weights(self, tower: int) -> list[Tensor]:
        """Copy the servers' weights to the tower."""
        values = _read(self.places[0])
        with tf.device(self._devices[tower]):
            return [tf.identity(value) for value in values]

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Add the towers' gradients where each variable is."""
        totals = []
        for server, of_towers in zip(self._servers, zip(*gradients, strict=True), strict=True):
            with tf.device(server):
                totals.append(add(of_towers))
        return [totals]


class Replicated:
    """Every tower has its own copy of all variables; gradients are reduced, so the copies stay equal.

    Moves per step: all gradients, as the reduction does it; no weights.
    """

    def __init__(self, model: Model, devices: Sequence[str], reducer: Reducer, seed: int) -> None:
        self._reducer = reducer
        self.places = tuple(create(model, [device], seed) for device in devices)
        self.states = (create_state(model, devices[0]),)

    def weights(self, tower: int) -> list[Tensor]:
        """Read the tower's own copy."""
        return _read(self.places[tower])

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Reduce each gradient over the towers."""
        by_variable = self._reducer(list(zip(*gradients, strict=True)))
        return [list(of_tower) for of_tower in zip(*by_variable, strict=True)]


class Independent:
    """Every tower trains its own copy alone. Nothing moves: the upper bound, and no common model."""

    def __init__(self, model: Model, devices: Sequence[str], seed: int) -> None:
        self.places = tuple(create(model, [device], seed) for device in devices)
        self.states = tuple(create_state(model, device) for device in devices)

    def weights(self, tower: int) -> list[Tensor]:
        """Read the tower's own copy."""
        return _read(self.places[tower])

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Give each tower its own gradients."""
        return [list(own) for own in gradients]


def place(model: Model, spec: RunSpec) -> Placement:
    """Create the variables where the spec says. A reduction is tested on its devices first.

    Raises HardwareError if a device is not there or the reduction adds up wrongly.
    """
    devices = [device.device for device in spec.devices]
    for device in {*devices, spec.ps_device or HOST}:
        require(device)
    if spec.variable_update == "parameter_server":
        servers = spread(model, devices) if spec.exchange.ps_spread else [spec.ps_device or HOST]
        return ParameterServer(model, devices, _each(servers, model), spec.seed)
    if spec.variable_update == "replicated":
        name = spec.all_reduce or "copy"
        reducer = ALGORITHMS[name](devices)
        self_test(reducer, name, devices)
        return Replicated(model, devices, reducer, spec.seed)
    return Independent(model, devices, spec.seed)


def spread(model: Model, devices: Sequence[str]) -> list[str]:
    """Give each variable the device that has the fewest bytes so far; equal ones in the order given.

    As tf_cnn_benchmarks does with --local_parameter_device=gpu.
    """
    held = dict.fromkeys(devices, 0)
    servers = []
    for spec in model.variables:
        least = min(held, key=lambda device: held[device])
        held[least] += math.prod(spec.shape)
        servers.append(least)
    return servers


def create(model: Model, devices: Sequence[str], seed: int) -> list[Any]:
    """Create the model's variables, each on its device (one device: all on it).

    The same seed gives the same first values on every device.
    """
    variables = []
    for number, (spec, device) in enumerate(zip(model.variables, _each(devices, model), strict=True)):
        with tf.device(HOST):
            initial = spec.initial(Stream(seed, _INITIAL + number))
        with tf.device(device):
            variables.append(tf.Variable(initial, name=spec.name))
    return variables


def create_state(model: Model, device: str) -> list[Any]:
    """Create the model's moving statistics on a device."""
    with tf.device(device):
        return [
            tf.Variable(tf.fill(spec.shape, spec.start), trainable=False, name=spec.name)
            for spec in model.state
        ]


def read_state(placement: Placement, tower: int, device: str) -> list[Tensor]:
    """Give the moving statistics on a tower's device: its own, or those that all share."""
    states = placement.states
    values = [variable.read_value() for variable in states[tower if len(states) > 1 else 0]]
    with tf.device(device):
        return [tf.identity(value) for value in values]


def write_state(placement: Placement, new: Sequence[Sequence[Tensor]]) -> list[Any]:
    """Keep the towers' new statistics ([tower][number]); where they share one set, the first tower's."""
    ops = []
    for variables, values in zip(placement.states, new, strict=False):
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


def _each(devices: Sequence[str], model: Model) -> list[str]:
    return list(devices) if len(devices) > 1 else [devices[0]] * len(model.variables)


def _read(variables: Sequence[Any]) -> list[Tensor]:
    values = []
    for variable in variables:
        with tf.device(variable.device):
            values.append(variable.read_value())
    return values
