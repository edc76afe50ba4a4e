"""The common part of the steps of all ways of training: one graph, with the time marks of its towers."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.compare.multi_worker import Hosts
from gputopo.launch.models.model import Model
from gputopo.launch.train.inputs.source import InputSource
from gputopo.launch.train.loss_scale import LossScale
from gputopo.launch.train.marks import Marks, TowerClock
from gputopo.launch.train.placement.variables import read_state
from gputopo.launch.train.stepper import Emit, Observer, Stepper, VariableSets
from gputopo.launch.train.towers import TowerMath
from gputopo.launch.train.updating import Updater
from gputopo.values.run.spec import RunSpec

Tensor = Any
OF_HOST = tf.TensorSpec((2,), tf.float64)  # what `GraphStep.of_host` returns


class GraphStep(Stepper):
    """A step as one graph of all towers of this process.

    `hosts`: the collectives between hosts if each host of the run has a process, else None.
    """

    placement: Any  # a `Placement` for gputopo's own towers
    math: TowerMath

    def __init__(self, model: Model, spec: RunSpec, source: InputSource, hosts: Hosts | None = None) -> None:
        self.spec = spec
        self.source = source
        self.hosts = hosts
        self.says = tuple(getattr(model, "says", ()))
        self.from_first = None if hosts is None else hosts.from_first
        self.marks = Marks()

    def optimize(self, variables: VariableSets, *, independent: bool = False) -> None:
        """Create the optimizer's slots for the variables. `independent`: see `Updater`."""
        spec = self.spec
        self.scale = LossScale(spec)
        self.updater = Updater(
            variables, spec.optimization, spec.learning_rate, self.scale, independent=independent
        )
        self.slots = self.updater.slots

    def compiled(self, build: Callable[..., Any], *more: Any) -> Any:
        """Return the step's graph. `build` gets the step's number, values of `more`, and the input's feed."""
        # wrap_function: unlike tf.function it does not run the clock readings of all towers in sequence.
        signature = [tf.TensorSpec((), tf.int64), *more, *self.source.signature]
        return tf.compat.v1.wrap_function(build, signature)

    def check_variables(self) -> dict[str, int]:
        """Compare the variables' devices with the spec; return their bytes by device."""
        placed: dict[str, int] = self.placement.check(self.spec)
        return placed

    def observers(self, emit: Emit) -> list[Observer]:
        """Return the observers that report if this host keeps the others waiting."""
        return [] if self.hosts is None else self.hosts.observers(emit)

    def of_host(self) -> Tensor:
        """Enter a step; return this host's values for the others: see `Hosts.enter`."""
        return tf.zeros(2, tf.float64) if self.hosts is None else self.hosts.enter(self.source.waited_s)

    def tower_clock(self, tower: int, device: str, start: Sequence[Tensor]) -> TowerClock:
        """Return the clock that marks the times of a tower, which starts after `start`."""
        return TowerClock(self.marks, device, start, gates=self.spec.backend == "cpu")

    def read(self, place: int, device: str) -> tuple[list[Tensor], list[Tensor]]:
        """Return weights and state on the device of this process's tower number `place`."""
        return self.placement.weights(place), read_state(self.placement, place, device)

    def work(
        self, tower: int, number: Tensor, fed: Sequence[Tensor], weights: list[Tensor], state: list[Tensor]
    ) -> tuple[list[Tensor], Any]:
        """Run forward and backward pass: return loss and gradients, and the new state."""
        loss, gradients, state = self.math.forward_backward(tower, number, weights, state, fed)
        return [loss, *gradients], state

    def passed(
        self, tower: int, number: Tensor, fed: Sequence[Tensor], start: Sequence[Tensor], *, scope: str = ""
    ) -> tuple[Sequence[Tensor], list[Tensor], Any, Tensor]:
        """Build a tower that starts after `start`, reads its weights, and runs `work` on its device.

        Return the first result of `work`, the weights, the second result of `work`, and the tower's marks
        [3]. `scope`: name scope of its ops; default: the tower's number in the present scope.
        """
        devices = self.spec.own_devices
        place = tower - devices[0].tower
        device = devices[place].device
        with tf.name_scope(scope or f"tower_{tower}"):
            times = self.tower_clock(tower, device, start)
            with tf.control_dependencies([times.started]):
                weights, state = self.read(place, device)
            with tf.control_dependencies(times.weights_arrived(weights)), tf.device(device):
                made, more = self.work(tower, number, fed, weights, state)
            return times.done(made), weights, more, times.row
