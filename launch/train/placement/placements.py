"""Placements of variables, a small class each: servers, replicas, towers that train alone; `place` makes one.

Two are stale by one step, so that transfers and computing overlap. Both change the variables in step t by the
gradients of step t - 1, which one-step buffers on the towers' devices hold: w(t+1) = w(t) - change by the
gradients at w(t-1). The first step has none yet and applies zeros (which still moves weights under weight
decay, or with an optimizer that changes them for zeros). The losses are those of w(t). Memory: one more set
of gradients on every tower between steps, and for the staged server one of weights.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from gputopo.launch.models.model import Model
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.placement import checking
from gputopo.launch.train.placement.algorithms import Reducer, add, self_test
from gputopo.launch.train.placement.devices import HOST, require
from gputopo.launch.train.placement.methods import reducer_of
from gputopo.launch.train.placement.partitioning import owners_of
from gputopo.launch.train.placement.variables import (
    assign,
    create_copies,
    create_spread,
    create_state,
    cut_as,
    parts_of,
    read,
    stored_of,
    whole_on,
)

Tensor = Any
Waits = Literal["all", "own_copy", "each_tower", "nothing"]
"""What an update waits for. all: every tower's gradients. own_copy: its own tower's, which has a copy of all
variables; the next towers start after these updates. each_tower: one update for each tower's gradients.
nothing: it applies what the step before buffered."""


class Placement:
    """Where variables live, and what moves in each step.

    It creates the variables, gives a tower its weights, and reduces the gradients. All of it builds graph ops
    and writes every device out; none decides when it runs.
    """

    places: Sequence[Sequence[Any]]  # sets of trained variables, in the model's order: one, or one per tower
    states: Sequence[Sequence[Any]]  # sets of moving statistics; one: the first tower's are used
    buffers: Sequence[Any] = ()  # variables that carry something to the next step; a resumed run needs them
    waits: Waits = "all"

    @property
    def stored(self) -> Sequence[Sequence[Any]]:
        """The sets of trained variables as tf.Variables: in place of a `CutVariable` its parts, in order."""
        return self.places

    def weights(self, tower: int) -> list[Tensor]:
        """Return the weights on the tower's device. Moves: weights that are on another device."""
        raise NotImplementedError

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Reduce gradients to one total for each stored variable, on its device.

        [tower][variable] -> [place][stored variable]. Moves: gradients.
        """
        raise NotImplementedError

    def store(
        self,
        weights: Sequence[Sequence[Tensor]],
        gradients: Sequence[Sequence[Tensor]],
        updates: Sequence[Any],
    ) -> list[Any]:
        """Return the ops that buffer something for the next step.

        `weights` and `gradients`: of this step's towers; `updates`: this step's changes of the variables.
        """
        return []

    def reset_buffers(self) -> None:
        """Bring the buffers in line with the variables, after these were set from outside (eagerly)."""

    def check(self, spec: RunSpec) -> dict[str, int]:
        """Return the bytes of trained variables by device. Raises HardwareError if one is elsewhere."""
        sizes = [variable.shape.num_elements() for variable in self.places[0]]
        return checking.check_variables(zip(self.stored, checking.expected_devices(spec, sizes), strict=True))


class ParameterServer(Placement):
    """Variables exist once, each on the device that `servers` names for it, or in parts on several.

    Moves per step: all weights to each tower, all gradients back; they are added and applied at the server.
    Of a variable in parts each device sends, adds and applies its own; towers put the weights together.
    """

    def __init__(
        self, model: Model, devices: Sequence[str], servers: Sequence[Sequence[str]], seed: int
    ) -> None:
        self._devices = devices
        self.places = (create_spread(model, servers, seed),)
        self.states = (create_state(model, servers[0][0]),)

    @property
    def stored(self) -> Sequence[Sequence[Any]]:
        """The variables, those in parts part by part."""
        return (stored_of(self.places[0]),)

    def weights(self, tower: int) -> list[Tensor]:
        """Copy the servers' weights to the tower."""
        return whole_on(self._devices[tower], self.places[0], read(self.stored[0]))

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Add the gradients of one or more towers where each variable or part is."""
        totals = []
        for variable, *of_towers in zip(self.places[0], *gradients, strict=True):
            cut = [cut_as(variable, gradient) for gradient in of_towers]
            for part, *of_part in zip(parts_of(variable), *cut, strict=True):
                with tf.device(part.device):
                    totals.append(add(of_part))
        return [totals]


class AsynchronousServer(ParameterServer):
    """A parameter server that each tower changes by its own gradients as soon as it has them.

    A tower does not wait for the others to read, compute or apply; which of their changes it sees in its
    weights is chance. None gets lost: TensorFlow's training ops lock the variable (and its slots; the two
    powers of Adam's betas alone are read and written without a lock). The towers of one step start together.
    Each adds its part of the step's weight decay, and its gradients are clipped separately.
    Moves per step: as ParameterServer.
    """

    waits: Waits = "each_tower"


class Replicated(Placement):
    """Every tower has its own copy of all variables; gradients are reduced, so the copies stay equal.

    Moves per step: all gradients, as the reduction does it; no weights.
    """

    def __init__(self, model: Model, devices: Sequence[str], reducer: Reducer, seed: int) -> None:
        self._reducer = reducer
        self.places = create_copies(model, devices, seed)
        self.states = (create_state(model, devices[0]),)

    def weights(self, tower: int) -> list[Tensor]:
        """Read the tower's own copy."""
        return read(self.places[tower])

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Reduce each gradient over the towers."""
        by_variable = self._reducer(list(zip(*gradients, strict=True)))
        return [list(of_tower) for of_tower in zip(*by_variable, strict=True)]


class Independent(Placement):
    """Every tower trains its own copy alone. Nothing moves: the upper bound, and no common model.

    A tower changes its copy as soon as it has its gradients, without waiting for the others.
    """

    waits: Waits = "own_copy"

    def __init__(self, model: Model, devices: Sequence[str], seed: int) -> None:
        self.places = create_copies(model, devices, seed)
        self.states = tuple(create_state(model, device) for device in devices)

    def weights(self, tower: int) -> list[Tensor]:
        """Read the tower's own copy."""
        return read(self.places[tower])

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Return each tower's own gradients."""
        return [list(own) for own in gradients]


class StagedServer(ParameterServer):
    """A parameter server whose towers compute with weights that they fetched in the step before.

    In step t, while the towers compute: the gradients buffered in step t - 1 go to the server and are
    applied, and then the new weights go to the towers, for step t + 1. This is what --staged_vars of
    tf_cnn_benchmarks does, with one difference: there nothing orders the update and the fetch of a step, so
    that weights may be one step older still; here the fetch comes after the update. Moving statistics are not
    staged.
    """

    waits: Waits = "nothing"

    def __init__(
        self, model: Model, devices: Sequence[str], servers: Sequence[Sequence[str]], seed: int
    ) -> None:
        super().__init__(model, devices, servers, seed)
        self._staged = [_copies(self.places[0], device) for device in devices]
        self._gradients = _gradient_buffers(model, devices)
        self.buffers = [*_flat(self._staged), *_flat(self._gradients)]

    def weights(self, tower: int) -> list[Tensor]:
        """Read what was fetched in the step before."""
        return read(self._staged[tower])

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Add the gradients of the step before where each variable is."""
        return super().totals([[buffer.take() for buffer in of_tower] for of_tower in self._gradients])

    def store(
        self,
        weights: Sequence[Sequence[Tensor]],
        gradients: Sequence[Sequence[Tensor]],
        updates: Sequence[Any],
    ) -> list[Any]:
        """Fetch the changed weights, and buffer the gradients."""
        with tf.control_dependencies(list(updates)):
            fetched = read(self.stored[0])
        ops = _store_gradients(self._gradients, gradients)
        for device, staged, in_use in zip(self._devices, self._staged, weights, strict=True):
            copies = whole_on(device, self.places[0], fetched)
            with tf.control_dependencies(list(in_use)):  # this step's have been read
                ops += assign(staged, copies)
        return ops

    def reset_buffers(self) -> None:
        """Fetch the weights, and clear the gradients."""
        for staged in self._staged:
            for copy, variable in zip(staged, self.places[0], strict=True):
                copy.assign(variable.read_value())
        _clear(self._gradients)


class RelaxedReplicas(Replicated):
    """Replicas that apply the reduced gradients of the step before (relaxed consistency).

    In step t, while the towers compute: the gradients of step t - 1 are reduced. They are applied when all
    towers have computed, so that no weights change while a tower reads them. As
    --variable_consistency=relaxed of tf_cnn_benchmarks.
    """

    def __init__(self, model: Model, devices: Sequence[str], reducer: Reducer, seed: int) -> None:
        super().__init__(model, devices, reducer, seed)
        self._gradients = _gradient_buffers(model, devices)
        self.buffers = _flat(self._gradients)

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Reduce the gradients of the step before."""
        return super().totals([[buffer.take() for buffer in of_tower] for of_tower in self._gradients])

    def store(
        self,
        weights: Sequence[Sequence[Tensor]],
        gradients: Sequence[Sequence[Tensor]],
        updates: Sequence[Any],
    ) -> list[Any]:
        """Buffer the gradients."""
        return _store_gradients(self._gradients, gradients)

    def reset_buffers(self) -> None:
        """Clear the gradients."""
        _clear(self._gradients)


class Buffer:
    """A gradient that its device carries to the next step without a copy.

    `take` moves it out at the start of the step, so that its memory is free again as soon as it was used, and
    not only when this step's gradient is stored.

    In between it holds an empty tensor read from a variable, so that Grappler infers no shape: it takes all
    values assigned to a variable for tensors of one shape. With a constant it made filters of no numbers
    (gradients with momentum, reduced after 3 or 4 towers), and with one variable for all gradients it took
    them for gradients of one shape.
    """

    def __init__(self, shape: Sequence[int], device: str) -> None:
        self.shape = tuple(shape)
        self._variable = _of_any_shape(tf.zeros(self.shape), device)
        self._empty = _of_any_shape(tf.zeros((0,)), device)
        self.device: str = self._variable.device
        self._emptied: Tensor = None

    def take(self) -> Tensor:
        """Return the stored value and leave an empty tensor (builds ops)."""
        with tf.device(self.device):
            value = tf.ensure_shape(self._variable.read_value(), self.shape)
            with tf.control_dependencies([value]):
                self._emptied = self._assign(self._empty.read_value())
        return value

    def put(self, value: Tensor) -> Any:
        """Return the op that stores a value after the one before was taken."""
        with tf.control_dependencies([self._emptied]), tf.device(self.device):
            return self._assign(value)

    def assign(self, value: Any) -> None:
        """Store a value from outside the step (eagerly)."""
        self._variable.assign(value)

    def numpy(self) -> Any:
        """Return the value stored between two steps."""
        return self._variable.numpy()

    def _assign(self, value: Tensor) -> Any:
        return tf.raw_ops.AssignVariableOp(resource=self._variable.handle, value=value)


def _of_any_shape(value: Tensor, device: str) -> Any:
    with tf.device(device):
        return tf.Variable(value, trainable=False, name="buffered/gradient", shape=tf.TensorShape(None))


def _copies(variables: Sequence[Any], device: str) -> list[Any]:
    copies = []
    for variable in variables:
        value = variable.read_value()
        with tf.device(device):
            copies.append(tf.Variable(value, trainable=False, name="staged/weights"))
    return copies


def _gradient_buffers(model: Model, devices: Sequence[str]) -> list[list[Buffer]]:
    return [[Buffer(spec.shape, device) for spec in model.variables] for device in devices]


def _store_gradients(buffers: Sequence[Sequence[Buffer]], gradients: Sequence[Sequence[Tensor]]) -> list[Any]:
    return [
        buffer.put(value)
        for of_tower, values in zip(buffers, gradients, strict=True)
        for buffer, value in zip(of_tower, values, strict=True)
    ]


def _clear(buffers: Sequence[Sequence[Buffer]]) -> None:
    for buffer in _flat(buffers):
        buffer.assign(tf.zeros(buffer.shape))


def _flat(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [one for row in rows for one in row]


def place(model: Model, spec: RunSpec) -> Placement:
    """Create the variables where the spec places them. A reduction is tested on its devices first.

    Raises UsageError for options that do not go together, HardwareError if a device is not there or the
    reduction adds up wrongly.
    """
    devices = [device.device for device in spec.devices]
    for device in {*devices, *filter(None, [spec.ps_device])}:
        require(device)
    if spec.variable_update == "parameter_server":
        servers = servers_of(model, spec)
        if spec.exchange.staged:
            return StagedServer(model, devices, servers, spec.seed)
        kind = AsynchronousServer if spec.exchange.asynchronous else ParameterServer
        return kind(model, devices, servers, spec.seed)
    if spec.variable_update == "replicated":
        replicas = RelaxedReplicas if spec.exchange.relaxed else Replicated
        return replicas(model, devices, _tested_reducer(spec, devices), spec.seed)
    return Independent(model, devices, spec.seed)


def servers_of(model: Model, spec: RunSpec) -> list[tuple[str, ...]]:
    """Return the devices of each variable of a parameter server, by the spec: several have a part each."""
    if not spec.exchange.ps_spread:
        return [(spec.ps_device or HOST,)] * len(model.variables)
    sizes = [math.prod(variable.shape) for variable in model.variables]
    return owners_of(sizes, [device.device for device in spec.devices])


def _tested_reducer(spec: RunSpec, devices: Sequence[str]) -> Reducer:
    """Build the reduction with its wrappers, and test it."""
    name = spec.all_reduce or "copy"
    exchange = spec.exchange
    reducer = reducer_of(name, devices, exchange)
    self_test(reducer, name, devices, exchange.transfer)
    return reducer
