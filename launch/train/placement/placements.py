"""Where variables live, and what moves in each step: one small class a strategy (`direct`, `delays`).

Each one creates its variables, gives a tower its weights, and takes the towers' gradients. All of them build
graph ops and write every placement out; none decides when it runs, but each says what an update waits for.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from gputopo.launch.models.models import Model
from gputopo.launch.spec.exchange import require_exchange
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.placement.delays import RelaxedReplicas, StagedServer
from gputopo.launch.train.placement.devices import HOST, require
from gputopo.launch.train.placement.direct import (
    AsynchronousServer,
    Independent,
    ParameterServer,
    Replicated,
    Waits,
)
from gputopo.launch.train.placement.variables import assign
from gputopo.launch.train.reductions.methods import reducer_of
from gputopo.launch.train.reductions.partitioning import spread
from gputopo.launch.train.reductions.reducer import Reducer, self_test

Tensor = Any


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

        all: every tower's gradients. turn: its own tower's, which has variables of its own; the next turn
        starts after the updates of this one. own: those of one tower, for each of which there is an
        update. none: it works with what the step before kept. On CPUs a large variable of the first two
        waits for its own gradients and readers alone: see `TrainingStep`.
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


def place(model: Model, spec: RunSpec) -> Placement:
    """Create the variables where the spec says. A reduction is tested on its devices first.

    Raises UsageError for options that do not go together, HardwareError if a device is not there or the
    reduction adds up wrongly.
    """
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
