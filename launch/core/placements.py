"""Where variables live, and what moves in each step: one small class a strategy.

Each one creates its variables, gives a tower its weights, and takes the towers' gradients. All of them build
graph ops and write every placement out; none decides when it runs, but each says what an update waits for.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import tensorflow as tf

from gputopo.launch.core.devices import HOST, require
from gputopo.launch.core.models import Model
from gputopo.launch.core.reduction_methods import reducer_of
from gputopo.launch.core.reductions import Reducer, add, self_test
from gputopo.launch.core.variables import assign, create_copies, create_state, read
from gputopo.launch.exchange import require_exchange
from gputopo.launch.pieces import spread
from gputopo.launch.spec import RunSpec

Tensor = Any
Waits = Literal["all", "own", "none"]


class Placement(Protocol):
    """What the training step asks of a strategy."""

    @property
    def places(self) -> Sequence[Sequence[Any]]:
        """The sets of trained variables: one for all, or one per tower."""

    @property
    def states(self) -> Sequence[Sequence[Any]]:
        """The sets of moving statistics. One: the first tower's count, as in tf_cnn_benchmarks."""

    @property
    def buffers(self) -> Sequence[Any]:
        """Variables that carry something from one step to the next; a resumed run needs them too."""

    @property
    def waits(self) -> Waits:
        """What an update waits for.

        all: every tower's gradients. own: those of one tower, for each of which there is an update.
        none: it works with what the step before kept.
        """

    def weights(self, tower: int) -> list[Tensor]:
        """Give the weights on the tower's device. Moves: what is not there already."""

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Give what each set of variables is to be changed by, on its variables' devices.

        [tower][variable] -> [place][variable]. Moves: gradients.
        """

    def keep(
        self,
        weights: Sequence[Sequence[Tensor]],
        gradients: Sequence[Sequence[Tensor]],
        updates: Sequence[Any],
    ) -> list[Any]:
        """Give the ops that keep something for the next step.

        `weights` and `gradients`: of this step's towers; `updates`: this step's changes of the variables.
        """

    def start_afresh(self) -> None:
        """Bring the buffers in line with the variables, after these were set from outside (eagerly)."""


class _Plain:
    """A strategy that keeps nothing from one step to the next."""

    buffers: Sequence[Any] = ()
    waits: Waits = "all"

    def keep(
        self,
        weights: Sequence[Sequence[Tensor]],
        gradients: Sequence[Sequence[Tensor]],
        updates: Sequence[Any],
    ) -> list[Any]:
        """Keep nothing."""
        return []

    def start_afresh(self) -> None:
        """Nothing is kept."""


class ParameterServer(_Plain):
    """Variables exist once, each on the device that `servers` names for it.

    Moves per step: all weights to each tower, all gradients back; they are added and applied at the server.
    """

    def __init__(self, model: Model, devices: Sequence[str], servers: Sequence[str], seed: int) -> None:
        self._devices = devices
        self._servers = servers
        self.places = create_copies(model, [servers], seed)
        self.states = (create_state(model, servers[0]),)

    def weights(self, tower: int) -> list[Tensor]:
        """Copy the servers' weights to the tower."""
        values = read(self.places[0])
        with tf.device(self._devices[tower]):
            return [tf.identity(value) for value in values]

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Add the gradients of one or more towers where each variable is."""
        totals = []
        for server, of_towers in zip(self._servers, zip(*gradients, strict=True), strict=True):
            with tf.device(server):
                totals.append(add(of_towers))
        return [totals]


class AsynchronousServer(ParameterServer):
    """A parameter server that each tower changes by its own gradients as soon as it has them.

    A tower does not wait for the others to read, compute or apply; which of their changes it sees in its
    weights is chance. None gets lost: TensorFlow's training ops lock the variable (and its slots; the two
    powers of Adam's betas alone are read and written without a lock). The towers of one step start together.
    Moves per step: as ParameterServer.
    """

    waits: Waits = "own"


class Replicated(_Plain):
    """Every tower has its own copy of all variables; gradients are reduced, so the copies stay equal.

    Moves per step: all gradients, as the reduction does it; no weights.
    """

    def __init__(self, model: Model, devices: Sequence[str], reducer: Reducer, seed: int) -> None:
        self._reducer = reducer
        self.places = create_copies(model, [[device] for device in devices], seed)
        self.states = (create_state(model, devices[0]),)

    def weights(self, tower: int) -> list[Tensor]:
        """Read the tower's own copy."""
        return read(self.places[tower])

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Reduce each gradient over the towers."""
        by_variable = self._reducer(list(zip(*gradients, strict=True)))
        return [list(of_tower) for of_tower in zip(*by_variable, strict=True)]


class Independent(_Plain):
    """Every tower trains its own copy alone. Nothing moves: the upper bound, and no common model."""

    def __init__(self, model: Model, devices: Sequence[str], seed: int) -> None:
        self.places = create_copies(model, [[device] for device in devices], seed)
        self.states = tuple(create_state(model, device) for device in devices)

    def weights(self, tower: int) -> list[Tensor]:
        """Read the tower's own copy."""
        return read(self.places[tower])

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Give each tower its own gradients."""
        return [list(own) for own in gradients]


def place(model: Model, spec: RunSpec) -> Placement:
    """Create the variables where the spec says. A reduction is tested on its devices first.

    Raises UsageError for options that do not go together, HardwareError if a device is not there or the
    reduction adds up wrongly.
    """
    from gputopo.launch.core.delays import RelaxedReplicas, StagedServer

    require_exchange(spec)
    devices = [device.device for device in spec.devices]
    for device in {*devices, spec.ps_device or HOST}:
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


def servers_of(model: Model, spec: RunSpec) -> list[str]:
    """Give the device of each variable of a parameter server, as the spec says."""
    if not spec.exchange.ps_spread:
        return [spec.ps_device or HOST] * len(model.variables)
    sizes = [math.prod(variable.shape) for variable in model.variables]
    return spread(sizes, [device.device for device in spec.devices])


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
        ops += assign(variables, values)
    return ops


def _tested_reducer(spec: RunSpec, devices: Sequence[str]) -> Reducer:
    """Build the reduction, with what is put round it, and test it."""
    name = spec.all_reduce or "copy"
    exchange = spec.exchange
    reducer = reducer_of(name, devices, exchange)
    self_test(reducer, name, devices, exchange.transfer)
    return reducer
