"""Where variables live, and what moves in each step: one small class a strategy.

Each one creates its variables, gives a tower its weights, and takes the towers' gradients. All of them build
graph ops and write every placement out; none decides when it runs.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from gputopo.launch.core.devices import HOST, require
from gputopo.launch.core.models import Model
from gputopo.launch.core.randomness import Stream
from gputopo.launch.core.reductions import REDUCTIONS, Reduction, add, self_test
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

    def update(self, gradients: Sequence[Sequence[Tensor]], rate: float) -> list[Tensor]:
        """Apply the towers' gradients ([tower][variable]); give the ops to wait for."""


class ParameterServer:
    """Variables exist once, on the server's device.

    Moves per step: all weights to each tower, all gradients back; they are added and applied at the server.
    """

    def __init__(self, model: Model, devices: Sequence[str], server: str, seed: int) -> None:
        self._devices = devices
        self._server = server
        self.places = (create(model, server, seed),)
        self.states = (create_state(model, server),)

    def weights(self, tower: int) -> list[Tensor]:
        """Copy the server's weights to the tower."""
        with tf.device(self._server):
            values = [variable.read_value() for variable in self.places[0]]
        with tf.device(self._devices[tower]):
            return [tf.identity(value) for value in values]

    def update(self, gradients: Sequence[Sequence[Tensor]], rate: float) -> list[Tensor]:
        """Add the towers' gradients at the server and take one step there."""
        with tf.device(self._server):
            totals = [add(of_towers) for of_towers in zip(*gradients, strict=True)]
            return _descend(self.places[0], totals, rate)


class Replicated:
    """Every tower has its own copy of all variables; gradients are reduced, so the copies stay equal.

    Moves per step: all gradients, as the reduction does it; no weights.
    """

    def __init__(self, model: Model, devices: Sequence[str], reduction: Reduction, seed: int) -> None:
        self._devices = devices
        self._reduction = reduction
        self.places = tuple(create(model, device, seed) for device in devices)
        self.states = (create_state(model, devices[0]),)

    def weights(self, tower: int) -> list[Tensor]:
        """Read the tower's own copy."""
        return _read(self.places[tower], self._devices[tower])

    def update(self, gradients: Sequence[Sequence[Tensor]], rate: float) -> list[Tensor]:
        """Reduce each gradient over the towers; every tower steps its own copy."""
        by_variable = [
            self._reduction(of_towers, self._devices, number)
            for number, of_towers in enumerate(zip(*gradients, strict=True))
        ]
        ops = []
        for device, variables, totals in zip(
            self._devices, self.places, zip(*by_variable, strict=True), strict=True
        ):
            with tf.device(device):
                ops += _descend(variables, totals, rate)
        return ops


class Independent:
    """Every tower trains its own copy alone. Nothing moves: the upper bound, and no common model."""

    def __init__(self, model: Model, devices: Sequence[str], seed: int) -> None:
        self._devices = devices
        self.places = tuple(create(model, device, seed) for device in devices)
        self.states = tuple(create_state(model, device) for device in devices)

    def weights(self, tower: int) -> list[Tensor]:
        """Read the tower's own copy."""
        return _read(self.places[tower], self._devices[tower])

    def update(self, gradients: Sequence[Sequence[Tensor]], rate: float) -> list[Tensor]:
        """Step each copy by its own gradient."""
        ops = []
        for device, variables, own in zip(self._devices, self.places, gradients, strict=True):
            with tf.device(device):
                ops += _descend(variables, own, rate)
        return ops


def place(model: Model, spec: RunSpec) -> Placement:
    """Create the variables where the spec says. A reduction is tested on its devices first.

    Raises HardwareError if a device is not there or the reduction adds up wrongly.
    """
    devices = [device.device for device in spec.devices]
    for device in {*devices, spec.ps_device or HOST}:
        require(device)
    if spec.variable_update == "parameter_server":
        return ParameterServer(model, devices, spec.ps_device or HOST, spec.seed)
    if spec.variable_update == "replicated":
        reduction = REDUCTIONS[spec.all_reduce or "copy"]
        self_test(reduction, devices)
        return Replicated(model, devices, reduction, spec.seed)
    return Independent(model, devices, spec.seed)


def create(model: Model, device: str, seed: int) -> list[Any]:
    """Create the model's variables on a device; the same seed gives the same first values on every device."""
    variables = []
    for number, spec in enumerate(model.variables):
        with tf.device("/CPU:0"):
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


def _read(variables: Sequence[Any], device: str) -> list[Tensor]:
    with tf.device(device):
        return [variable.read_value() for variable in variables]


def _descend(variables: Sequence[Any], gradients: Sequence[Tensor], rate: float) -> list[Tensor]:
    """Take a step of stochastic gradient descent: variable -= rate x gradient."""
    return [
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
        for variable, gradient in zip(variables, gradients, strict=True)
    ]
