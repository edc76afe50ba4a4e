"""Placements of variables, a small class each: servers, replicas, towers that train alone; `place` makes one.

Two are stale by one step, so that transfers and computing overlap. Both change the variables in step t by the
gradients of step t - 1, which one-step buffers on the towers' devices hold: w(t+1) = w(t) - change by the
gradients at w(t-1). The first step has none yet and applies zeros (which still moves weights under weight
decay, or with an optimizer that changes them for zeros). The losses are those of w(t). Memory: one more set
of gradients on every tower between steps, and for the staged server one of weights.
"""

import math
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import tensorflow as tf

from gputopo.launch.failure import NCCL_REMEDY
from gputopo.launch.models.model import Model
from gputopo.launch.train.op_errors import first_line
from gputopo.launch.train.placement import checking
from gputopo.launch.train.placement.algorithms import Reducer, add, probe_sums, self_test, unreduced
from gputopo.launch.train.placement.cut_variables import cut_as, parts_of, stored_of, whole_on
from gputopo.launch.train.placement.devices import HOST, require
from gputopo.launch.train.placement.methods import reducer_of, wrapped
from gputopo.launch.train.placement.partitioning import owners_of
from gputopo.launch.train.placement.variables import assign, create_copies, create_spread, create_state, read
from gputopo.values.errors import HardwareError
from gputopo.values.run.all_reduce import parse
from gputopo.values.run.events import BUILDING, NCCL_TEST, Event, PhaseBegun
from gputopo.values.run.spec import RunSpec

Emit = Callable[[Event], None]
Tensor = Any
Waits = Literal["all", "own_copy", "each_tower", "nothing"]
"""What an update waits for. all: every tower's gradients. own_copy: its own tower's, which has a copy of all
variables; the next towers start after these updates. each_tower: one update for each tower's gradients.
nothing: it applies what the step before buffered."""


class Placement:
    """Where variables are placed, and what moves in each step.

    It creates the variables, gives a tower its weights, and reduces the gradients. All of it builds graph ops
    and writes every device out; none decides when it runs.
    """

    places: Sequence[Sequence[Any]]  # sets of trained variables, in the model's order: one, or one per tower
    states: Sequence[Sequence[Any]]  # sets of moving statistics; one: the first tower's are used
    waits: Waits = "all"
    stale = False  # whether a step applies the gradients of the step before

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
        """Bring what is carried to the next step in line with variables that were set from outside."""

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
    stale = True

    def __init__(
        self, model: Model, devices: Sequence[str], servers: Sequence[Sequence[str]], seed: int
    ) -> None:
        super().__init__(model, devices, servers, seed)
        self._staged = [_copies(self.places[0], device) for device in devices]
        self._gradients = Carried(model, devices)

    def weights(self, tower: int) -> list[Tensor]:
        """Read what was fetched in the step before."""
        return read(self._staged[tower])

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Add the gradients of the step before where each variable is."""
        return super().totals(self._gradients.take())

    def store(
        self,
        weights: Sequence[Sequence[Tensor]],
        gradients: Sequence[Sequence[Tensor]],
        updates: Sequence[Any],
    ) -> list[Any]:
        """Fetch the changed weights, and buffer the gradients."""
        with tf.control_dependencies(list(updates)):
            fetched = read(self.stored[0])
        ops = self._gradients.put(gradients)
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
        self._gradients.clear()


class RelaxedReplicas(Replicated):
    """Replicas that apply the reduced gradients of the step before (relaxed consistency).

    In step t, while the towers compute: the gradients of step t - 1 are reduced. They are applied when all
    towers have computed, so that no weights change while a tower reads them. As
    --variable_consistency=relaxed of tf_cnn_benchmarks.
    """

    stale = True

    def __init__(self, model: Model, devices: Sequence[str], reducer: Reducer, seed: int) -> None:
        super().__init__(model, devices, reducer, seed)
        self._gradients = Carried(model, devices)

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Reduce the gradients of the step before."""
        return super().totals(self._gradients.take())

    def store(
        self,
        weights: Sequence[Sequence[Tensor]],
        gradients: Sequence[Sequence[Tensor]],
        updates: Sequence[Any],
    ) -> list[Any]:
        """Buffer the gradients."""
        return self._gradients.put(gradients)

    def reset_buffers(self) -> None:
        """Clear the gradients."""
        self._gradients.clear()


class Carried:
    """The gradients that a mode carries to the next step, on the towers' devices."""

    def __init__(self, model: Model, devices: Sequence[str]) -> None:
        self._variables = []
        self._taken: list[list[Tensor]] = []
        for device in devices:
            with tf.device(device):
                zeros = [tf.zeros(spec.shape) for spec in model.variables]
                own = [tf.Variable(zero, trainable=False, name="carried/gradient") for zero in zeros]
            self._variables.append(own)

    def take(self) -> list[list[Tensor]]:
        """Read the gradients of the step before: [tower][variable]."""
        self._taken = [read(of_tower) for of_tower in self._variables]
        return self._taken

    def put(self, gradients: Sequence[Sequence[Tensor]]) -> list[Any]:
        """Return the ops that store this step's gradients, after those before were read."""
        ops: list[Any] = []
        for variables, taken, own in zip(self._variables, self._taken, gradients, strict=True):
            with tf.control_dependencies(taken):
                ops += assign(variables, own)
        return ops

    def clear(self) -> None:
        """Set all to zero, outside the step (eagerly)."""
        for of_tower in self._variables:
            for variable in of_tower:
                variable.assign(tf.zeros(variable.shape))


def _copies(variables: Sequence[Any], device: str) -> list[Any]:
    copies = []
    for variable in variables:
        value = variable.read_value()
        with tf.device(device):
            copies.append(tf.Variable(value, trainable=False, name="staged/weights"))
    return copies


def place(model: Model, spec: RunSpec, emit: Emit = lambda event: None) -> Placement:
    """Create the variables where the spec places them. A reduction is tested on its devices first.

    `emit` gets the phases of a test that may hang. Raises UsageError for options that do not go together,
    HardwareError if a device is not there or the reduction fails or adds up wrongly.
    """
    devices = [device.device for device in spec.devices]
    for device in {*devices, *filter(None, [spec.ps_device])}:
        require(device)
    if spec.variable_update == "parameter_server":
        kind = AsynchronousServer if spec.exchange.asynchronous else ParameterServer
        kind = StagedServer if spec.exchange.staged else kind
        return kind(model, devices, servers_of(model, spec), spec.seed)
    if spec.variable_update == "replicated":
        replicas = RelaxedReplicas if spec.exchange.relaxed else Replicated
        return replicas(model, devices, _tested_reducer(spec, devices, emit), spec.seed)
    return Independent(model, devices, spec.seed)


def servers_of(model: Model, spec: RunSpec) -> list[tuple[str, ...]]:
    """Return the devices of each variable of a parameter server, by the spec: several have a part each."""
    if not spec.exchange.ps_spread:
        return [(spec.ps_device or HOST,)] * len(model.variables)
    sizes = [math.prod(variable.shape) for variable in model.variables]
    return owners_of(sizes, [device.device for device in spec.devices])


def _tested_reducer(spec: RunSpec, devices: Sequence[str], emit: Emit) -> Reducer:
    """Build the reduction with its wrappers, and test it."""
    name = spec.all_reduce or "copy"
    exchange = spec.exchange
    reducer = reducer_of(name, devices, exchange)
    test = partial(self_test, reducer, name, devices, exchange.transfer)
    if parse(name).is_by_nccl and not spec.servers:
        # GPUs for which TensorFlow has PTX only compile the kernels of the test, one GPU later than another.
        # That is to be over before NCCL's time limits begin.
        probe_sums(wrapped(unreduced, devices, exchange), devices, exchange.transfer)
        _test_nccl(test, name, emit)
    else:
        test()
    return reducer


def _test_nccl(test: Callable[[], None], name: str, emit: Emit) -> None:
    """Test NCCL in a phase of its own, by which the launcher knows what has failed."""
    emit(PhaseBegun(time_s=time.time(), phase=NCCL_TEST))
    try:
        test()
    except tf.errors.ResourceExhaustedError:
        raise
    except tf.errors.OpError as error:
        traceback.print_exc()  # into worker.log
        reason = first_line(str(error)) or type(error).__name__
        raise HardwareError(f"the reduction '{name}' failed: {reason}", NCCL_REMEDY) from error
    emit(PhaseBegun(time_s=time.time(), phase=BUILDING))
