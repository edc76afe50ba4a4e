"""Placements without buffers between steps: servers, replicas, towers that train alone."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.models.model import Model
from gputopo.launch.train.placement.cut_variables import cut_as, parts_of, stored_of, whole_on
from gputopo.launch.train.placement.interface import Waits
from gputopo.launch.train.placement.variables import create_copies, create_spread, create_state, read
from gputopo.launch.train.reductions.reducer import Reducer, add

Tensor = Any


class Unbuffered:
    """A placement that carries nothing from one step to the next."""

    buffers: Sequence[Any] = ()
    waits: Waits = "all"
    places: Sequence[Sequence[Any]]

    @property
    def stored(self) -> Sequence[Sequence[Any]]:
        """The variables as they are: no place has one in parts."""
        return self.places

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


class Replicated(Unbuffered):
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


class Independent(Unbuffered):
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
