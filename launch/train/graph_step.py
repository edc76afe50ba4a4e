"""What the steps of every way of training share: one graph, with the time marks of its towers."""

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

    `hosts`: where each host of the run has a process.
    """

    placement: Any  # of our own towers a `Placement`
    math: TowerMath

    def __init__(self, model: Model, spec: RunSpec, source: InputSource, hosts: Hosts | None = None) -> None:
        self.spec = spec
        self.source = source
        self.hosts = hosts
        self.says = tuple(getattr(model, "says", ()))
        self.from_first = None if hosts is None else hosts.from_first
        self.marks = Marks()

    def optimize(self, variables: VariableSets, *, independent: bool = False) -> None:
        """Make the slots of the variables. `independent`: see `Updater`."""
        spec = self.spec
        self.scale = LossScale(spec)
        self.updater = Updater(
            variables, spec.optimization, spec.learning_rate, self.scale, independent=independent
        )
        self.slots, self.own_slots = self.updater.slots, self.updater.own_slots

    def compiled(self, build: Callable[..., Any], *more: Any) -> Any:
        """Return the step's graph. `build` gets its number, values of `more`, and what the source feeds."""
        # wrap_function: unlike tf.function it does not put the clock readings of all towers in one row.
        signature = [tf.TensorSpec((), tf.int64), *more, *self.source.signature]
        return tf.compat.v1.wrap_function(build, signature)

    def check_variables(self) -> dict[str, int]:
        """Compare the variables' devices with the spec."""
        placed: dict[str, int] = self.placement.check(self.spec)
        return placed

    def observers(self, emit: Emit) -> list[Observer]:
        """Return what reports that this host keeps the others waiting."""
        return [] if self.hosts is None else self.hosts.observers(emit)

    def of_host(self) -> Tensor:
        """Enter a step; return what this host tells the others: see `Hosts.enter`."""
        return tf.zeros(2, tf.float64) if self.hosts is None else self.hosts.enter(self.source.waited_s)

    def tower_clock(self, tower: int, device: str, start: Sequence[Tensor]) -> TowerClock:
        """Return what marks the times of a tower, which starts after `start`."""
        return TowerClock(self.marks, device, start, gates=self.spec.backend == "cpu")

    def read(self, place: int, device: str) -> tuple[list[Tensor], list[Tensor]]:
        """Return weights and state on the device of a tower of this process, by its place among these."""
        return self.placement.weights(place), read_state(self.placement, place, device)

    def work(
        self, tower: int, number: Tensor, fed: Sequence[Tensor], weights: list[Tensor], state: list[Tensor]
    ) -> tuple[list[Tensor], Any]:
        """Go forward and backward: return loss and gradients, and the new state."""
        loss, gradients, state = self.math.forward_backward(tower, number, weights, state, fed)
        return [loss, *gradients], state

    def passed(
        self, tower: int, number: Tensor, fed: Sequence[Tensor], start: Sequence[Tensor], *, scope: str = ""
    ) -> tuple[Sequence[Tensor], list[Tensor], Any, Tensor]:
        """Build a tower: it starts after `start`, reads, and works on its device.

        Return what the work made, the weights, what else the work returned, and the tower's marks [3].
        `scope`: of its ops, if that is not the tower's number in the scope around.
        """
        own = self.spec.own_devices
        place = tower - own[0].tower
        device = own[place].device
        with tf.name_scope(scope or f"tower_{tower}"):
            times = self.tower_clock(tower, device, start)
            with tf.control_dependencies([times.started]):
                weights, state = self.read(place, device)
            with tf.control_dependencies(times.weights_arrived(weights)), tf.device(device):
                made, more = self.work(tower, number, fed, weights, state)
            return times.done(made), weights, more, times.row
