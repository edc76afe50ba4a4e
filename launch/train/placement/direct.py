"""Placements without buffers between steps: servers, replicas, towers that train alone."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.models.model import Model
from gputopo.launch.train.placement.interface import Waits
from gputopo.launch.train.placement.variables import create_copies, create_state, read
from gputopo.launch.train.reductions.reducer import Reducer, add

Tensor = Any


class Unbuffered:
    """A placement that carries nothing from one step to the next."""

    buffers: Sequence[Any] = ()
    waits: Waits = "all"

    def store(
        self,
        weights: Sequence[Sequence[Tensor]],
        gradients: Sequence[Sequence[Tensor]],
        updates: Sequence[Any],
    ) -> list[Any]:
        """Buffer nothing."""
        return []

    def reset_buffers(self) -> None:
        """There are none."""


class ParameterServer(Unbuffered):
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
    Each adds its part of the step's weight decay, and its gradients are clipped separately.
    Moves per step: as ParameterServer.
    """

    waits: Waits = "each_tower"


class Replicated(Unbuffered):
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


class Independent(Unbuffered):
    """Every tower trains its own copy alone. Nothing moves: the upper bound, and no common model.

    A tower changes its copy as soon as it has its gradients, without waiting for the others.
    """

    waits: Waits = "own_copy"

    def __init__(self, model: Model, devices: Sequence[str], seed: int) -> None:
        self.places = create_copies(model, [[device] for device in devices], seed)
        self.states = tuple(create_state(model, device) for device in devices)

    def weights(self, tower: int) -> list[Tensor]:
        """Read the tower's own copy."""
        return read(self.places[tower])

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Return each tower's own gradients."""
        return [list(own) for own in gradients]
