"""Placements of variables, a class each: servers, replicas, independent towers. `place` makes one.

`StagedServer` and `RelaxedReplicas` are stale by one step, so that transfers and computing overlap. In step t
they change the variables by the gradients of step t - 1, which are buffered on the towers' devices: w(t+1) =
w(t) - change by the gradients at w(t-1). The first step applies zeros, which still changes weights if there
is weight decay or the optimizer changes them for zeros. The losses are for w(t). Memory: one more set of
gradients on every tower between steps, and one more set of weights for the staged server.
"""

import itertools
import math
import time
import traceback
from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from gputopo.launch.failure import NCCL_REMEDY
from gputopo.launch.models.model import Model
from gputopo.launch.train.op_errors import first_line
from gputopo.launch.train.placement import checking
from gputopo.launch.train.placement.algorithms import (
    Gradients,
    Reducer,
    add,
    probe_sums,
    transposed,
    unreduced,
)
from gputopo.launch.train.placement.cut_variables import cut_as, parts_of, stored_of, whole_on
from gputopo.launch.train.placement.devices import HOST, require_device
from gputopo.launch.train.placement.methods import tested_reducer, wrapped
from gputopo.launch.train.placement.partitioning import owners_of
from gputopo.launch.train.placement.variables import assign, create_copies, create_spread, create_state, read
from gputopo.launch.train.stepper import Emit
from gputopo.values.errors import HardwareError
from gputopo.values.run.all_reduce import parse
from gputopo.values.run.events import BUILDING, NCCL_TEST, PhaseBegun
from gputopo.values.run.spec import RunSpec

Tensor = Any
Waits = Literal["all", "own_copy", "each_tower", "nothing"]
"""The gradients that an update waits for. all: every tower's. own_copy: only its own tower's, which has a
copy of all variables; the next towers start after these updates. each_tower: there is one update for each
tower's gradients. nothing: the update applies the gradients that the previous step buffered."""


class Placement:
    """The devices of variables, and the transfers in each step.

    It creates the variables, gives a tower its weights, and reduces the gradients. Its methods build graph
    ops with explicit devices; the caller decides when the ops run.
    """

    places: Sequence[Sequence[Any]]  # sets of trained variables, in the model's order: one, or one per tower
    states: Sequence[Sequence[Any]]  # sets of moving statistics; a single set holds the first tower's
    waits: Waits = "all"
    stale = False  # whether a step applies the gradients of the previous step

    @property
    def stored(self) -> Sequence[Sequence[Any]]:
        """The sets of trained variables as tf.Variables, with the parts of each `CutVariable` in order."""
        return self.places

    def weights(self, tower: int) -> list[Tensor]:
        """Return the weights on the tower's device. Transfers: weights that are on another device."""
        raise NotImplementedError

    def totals(self, gradients: Gradients) -> list[list[Tensor]]:
        """Reduce gradients to one total for each stored variable, on its device.

        [tower][variable] -> [place][stored variable]. Transfers: gradients.
        """
        raise NotImplementedError

    def store(
        self,
        weights: Gradients,
        gradients: Gradients,
        updates: Sequence[Any],
    ) -> list[Any]:
        """Return the ops that buffer weights or gradients for the next step.

        `weights` and `gradients`: from this step's towers. `updates`: this step's changes of the variables.
        """
        return []

    def reset_buffers(self) -> None:
        """Update the buffers for the next step after variables were set from outside."""

    def check(self, spec: RunSpec) -> dict[str, int]:
        """Return the bytes of trained variables by device. Raises HardwareError if a device is wrong."""
        wanted: list[list[str]] = [[device.device] * len(self.stored[0]) for device in spec.devices]
        return checking.check_variables(zip(self.stored, wanted, strict=True))


class ParameterServer(Placement):
    """Variables exist once, each on its device in `servers`, or in parts on several devices.

    Transfers per step: all weights to each tower, and all gradients back, which are added and applied at the
    server. If a variable is in parts, each device sends, adds and applies its part; towers join the weights.
    """

    def __init__(
        self, model: Model, devices: Sequence[str], servers: Sequence[Sequence[str]], seed: int
    ) -> None:
        self._devices = devices
        self._servers = list(itertools.chain.from_iterable(servers))
        self.places = (create_spread(model, servers, seed),)
        self.states = (create_state(model, servers[0][0]),)

    @property
    def stored(self) -> Sequence[Sequence[Any]]:
        """The variables, with the parts of cut variables in order."""
        return (stored_of(self.places[0]),)

    def check(self, spec: RunSpec) -> dict[str, int]:
        """Return the bytes of variables by server. Raises HardwareError if a device is wrong."""
        return checking.check_variables([(self.stored[0], self._servers)])

    def weights(self, tower: int) -> list[Tensor]:
        """Copy the servers' weights to the tower."""
        return whole_on(self._devices[tower], self.places[0], read(self.stored[0]))

    def totals(self, gradients: Gradients) -> list[list[Tensor]]:
        """Add the gradients of one or more towers on the device of each variable or part."""
        totals = []
        for variable, *of_towers in zip(self.places[0], *gradients, strict=True):
            cut = [cut_as(variable, gradient) for gradient in of_towers]
            for part, *of_part in zip(parts_of(variable), *cut, strict=True):
                with tf.device(part.device):
                    totals.append(add(of_part))
        return [totals]


class AsynchronousServer(ParameterServer):
    """A parameter server that each tower changes by its own gradients as soon as it has them.

    A tower does not wait for the others to read, compute or apply, so its weights may or may not include
    their changes. No change is lost: TensorFlow's training ops lock the variable and its slots. The towers
    of one step start together. Each adds its part of the step's weight decay, and its gradients are clipped
    separately. Transfers per step: as ParameterServer.
    """

    waits: Waits = "each_tower"


class Replicated(Placement):
    """Every tower has its own copy of all variables. Gradients are reduced, so the copies stay equal.

    Transfers per step: all gradients, by the reduction; no weights.
    """

    def __init__(self, model: Model, devices: Sequence[str], reducer: Reducer, seed: int) -> None:
        self._reducer = reducer
        self.places = create_copies(model, devices, seed)
        self.states = (create_state(model, devices[0]),)

    def weights(self, tower: int) -> list[Tensor]:
        """Read the tower's own copy."""
        return read(self.places[tower])

    def totals(self, gradients: Gradients) -> list[list[Tensor]]:
        """Reduce each gradient over the towers."""
        return transposed(self._reducer(transposed(gradients)))


class Independent(Placement):
    """Every tower trains its own copy separately: an upper bound of the speed, without a common model.

    There are no transfers. A tower changes its copy as soon as it has its gradients.
    """

    waits: Waits = "own_copy"

    def __init__(self, model: Model, devices: Sequence[str], seed: int) -> None:
        self.places = create_copies(model, devices, seed)
        self.states = tuple(create_state(model, device) for device in devices)

    def weights(self, tower: int) -> list[Tensor]:
        """Read the tower's own copy."""
        return read(self.places[tower])

    def totals(self, gradients: Gradients) -> list[list[Tensor]]:
        """Return each tower's own gradients."""
        return [list(tower_gradients) for tower_gradients in gradients]


class StagedServer(ParameterServer):
    """A parameter server whose towers compute with weights that they fetched in the previous step.

    While the towers compute step t, the gradients buffered in step t - 1 are sent to the server and applied.
    Then the new weights are sent to the towers for step t + 1. This is like --staged_vars of
    tf_cnn_benchmarks, with one difference: there the update and the fetch of a step have no order, so that
    weights may be another step older; here the fetch follows the update. Moving statistics are not staged.
    """

    waits: Waits = "nothing"
    stale = True

    def __init__(
        self, model: Model, devices: Sequence[str], servers: Sequence[Sequence[str]], seed: int
    ) -> None:
        super().__init__(model, devices, servers, seed)
        values = [variable.read_value() for variable in self.places[0]]
        self._staged = []
        for device in devices:
            with tf.device(device):
                copies = [tf.Variable(value, trainable=False, name="staged/weights") for value in values]
            self._staged.append(copies)
        self._gradients = Carried(model, devices)

    def weights(self, tower: int) -> list[Tensor]:
        """Read the weights that were fetched in the previous step."""
        return read(self._staged[tower])

    def totals(self, gradients: Gradients) -> list[list[Tensor]]:
        """Add the gradients of the previous step on the device of each variable."""
        return super().totals(self._gradients.take())

    def store(
        self,
        weights: Gradients,
        gradients: Gradients,
        updates: Sequence[Any],
    ) -> list[Any]:
        """Fetch the changed weights, and buffer the gradients."""
        with tf.control_dependencies(list(updates)):
            fetched = read(self.stored[0])
        ops = self._gradients.put(gradients)
        for device, staged, in_use in zip(self._devices, self._staged, weights, strict=True):
            copies = whole_on(device, self.places[0], fetched)
            with tf.control_dependencies(list(in_use)):  # after this step's weights were read
                ops += assign(staged, copies)
        return ops

    def reset_buffers(self) -> None:
        """Fetch the weights, and clear the gradients."""
        for staged in self._staged:
            for copy, variable in zip(staged, self.places[0], strict=True):
                copy.assign(variable.read_value())
        self._gradients.clear()


class RelaxedReplicas(Replicated):
    """Replicas that apply the reduced gradients of the previous step (relaxed consistency).

    While the towers compute step t, the gradients of step t - 1 are reduced. They are applied when all towers
    have computed, so that no weights change while a tower reads them. This is like
    --variable_consistency=relaxed of tf_cnn_benchmarks.
    """

    stale = True

    def __init__(self, model: Model, devices: Sequence[str], reducer: Reducer, seed: int) -> None:
        super().__init__(model, devices, reducer, seed)
        self._gradients = Carried(model, devices)

    def totals(self, gradients: Gradients) -> list[list[Tensor]]:
        """Reduce the gradients of the previous step."""
        return super().totals(self._gradients.take())

    def store(
        self,
        weights: Gradients,
        gradients: Gradients,
        updates: Sequence[Any],
    ) -> list[Any]:
        """Buffer the gradients."""
        return self._gradients.put(gradients)

    def reset_buffers(self) -> None:
        """Clear the gradients."""
        self._gradients.clear()


class Carried:
    """The gradients that are buffered for the next step, on the towers' devices."""

    def __init__(self, model: Model, devices: Sequence[str]) -> None:
        self._variables = []
        self._taken: list[list[Tensor]] = []
        for device in devices:
            with tf.device(device):
                zeros = [tf.zeros(spec.shape) for spec in model.variables]
                variables = [tf.Variable(zero, trainable=False, name="carried/gradient") for zero in zeros]
            self._variables.append(variables)

    def take(self) -> list[list[Tensor]]:
        """Read the gradients of the previous step: [tower][variable]."""
        self._taken = [read(of_tower) for of_tower in self._variables]
        return self._taken

    def put(self, gradients: Gradients) -> list[Any]:
        """Return the ops that store this step's gradients after the previous step's were read."""
        ops: list[Any] = []
        for variables, taken, tower_gradients in zip(self._variables, self._taken, gradients, strict=True):
            with tf.control_dependencies(taken):
                ops += assign(variables, tower_gradients)
        return ops

    def clear(self) -> None:
        """Set all gradients to zero outside the step (eagerly)."""
        for of_tower in self._variables:
            for variable in of_tower:
                variable.assign(tf.zeros(variable.shape))


def place(model: Model, spec: RunSpec, emit: Emit = lambda event: None) -> Placement:
    """Create the variables on the spec's devices. If there is a reduction, test it on its devices first.

    `emit` gets the phases of a test that may hang. Raises UsageError if options cannot be combined. Raises
    HardwareError if a device is not there, or the reduction fails or returns wrong sums.
    """
    devices = [device.device for device in spec.devices]
    for device in {*devices, *filter(None, [spec.ps_device])}:
        require_device(device)
    if spec.variable_update == "parameter_server":
        kind = AsynchronousServer if spec.exchange.asynchronous else ParameterServer
        kind = StagedServer if spec.exchange.staged else kind
        return kind(model, devices, servers_of(model, spec), spec.seed)
    if spec.variable_update == "replicated":
        replicas = RelaxedReplicas if spec.exchange.relaxed else Replicated
        return replicas(model, devices, _tested_reducer(spec, devices, emit), spec.seed)
    return Independent(model, devices, spec.seed)


def servers_of(model: Model, spec: RunSpec) -> list[tuple[str, ...]]:
    """Return the spec's devices for each variable of a parameter server. Several devices have a part each."""
    if not spec.exchange.ps_spread:
        return [(spec.ps_device or HOST,)] * len(model.variables)
    sizes = [math.prod(variable.shape) for variable in model.variables]
    return owners_of(sizes, [device.device for device in spec.devices])


def _tested_reducer(spec: RunSpec, devices: Sequence[str], emit: Emit) -> Reducer:
    """Build the reduction with its wrappers, and test it. The test of NCCL, which may hang, is a phase."""
    name, exchange = spec.all_reduce or "copy", spec.exchange
    if not parse(name).is_by_nccl or spec.servers:
        return tested_reducer(name, devices, exchange)
    # If TensorFlow has only PTX for the GPUs, they compile the test's kernels at different times. That must
    # end before NCCL's time limits start.
    probe_sums(wrapped(unreduced, devices, exchange), devices, exchange.transfer)
    emit(PhaseBegun(time_s=time.time(), phase=NCCL_TEST))
    try:
        reducer = tested_reducer(name, devices, exchange)
    except tf.errors.ResourceExhaustedError:
        raise
    except tf.errors.OpError as error:
        traceback.print_exc()  # into worker.log
        reason = first_line(str(error)) or type(error).__name__
        raise HardwareError(f"the reduction '{name}' failed: {reason}", NCCL_REMEDY) from error
    emit(PhaseBegun(time_s=time.time(), phase=BUILDING))
    return reducer
