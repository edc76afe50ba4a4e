"""The differences of the three Keras methods: where and how the batch is split, and where outputs are merged.

Sources: `make_parallel` of kuza55/keras-extras, `make_parallel` and `ModelMGPU` of
avolkov1/keras_experiments, F. Chollet's `multi_gpu_model` of Keras 2.0.9.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import keras
import tensorflow as tf

from gputopo.launch.models.keras_building import summed
from gputopo.launch.models.keras_checks import is_seed, only
from gputopo.launch.train.marks import TowerClock, clock
from gputopo.launch.train.placement.devices import HOST
from gputopo.launch.train.placement.partitioning import Cut, rows_of_towers
from gputopo.values.run.names import Method


@dataclass(frozen=True)
class MethodRecipe:
    """How one method splits the batch and merges the outputs.

    `cut`: even: sizes differ by up to one, and the first towers have more; rest: the last tower takes the
    remainder. `slice_on`: tower: every tower gets the whole batch and takes its rows; host: the CPU cuts the
    batch, and each tower gets only its rows. `merge_on`: server: outputs are merged on the device of the
    variables; host: on the CPU.
    """

    name: Method
    cut: Cut
    slice_on: Literal["tower", "host"]
    merge_on: Literal["server", "host"]

    @property
    def says(self) -> str:
        """A sentence for the user that describes the transfers."""
        moves = (
            "the whole batch goes from the CPU to every device, which takes its rows"
            if self.slice_on == "tower"
            else "the CPU cuts the batch"
        )
        merged = "where the variables are" if self.merge_on == "server" else "on the CPU"
        return f"Method {self.name}: {moves}; outputs come together {merged}, for one loss."


RECIPES: dict[Method, MethodRecipe] = {
    # keras-extras drops the rows of the remainder and has fewer outputs than labels. This method keeps them.
    "kuza55": MethodRecipe("kuza55", "even", "tower", "server"),
    "avolkov1": MethodRecipe("avolkov1", "rest", "host", "server"),
    "fchollet": MethodRecipe("fchollet", "rest", "tower", "host"),
}


Tensor = Any
# Distance of two towers' seeds: a random layer may take so many before it reaches the next tower's. A step of
# a run has enough for 256 towers (`keras_building.seeds`).
_SEEDS_PER_TOWER = 1 << 24
_SLICES = "slices/"  # not in a tower's scope, because the CPU of the host cuts


class PassMarks(TowerClock):
    """Time marks of a tower. The end mark does not include the wait between forward and backward pass."""

    _forward: Tensor = None
    _back: Tensor = None

    def went_forward(self, outputs: Tensor) -> None:
        """Mark the end of the forward pass."""
        self._forward = clock([self._marks.arrived([outputs], self.device)])

    def upstream(self, tensor: Tensor) -> list[Tensor]:
        """Mark that the gradient of the outputs is there; return what the backward pass must wait for."""
        ready = self.ready
        gate = self.weights_arrived([tensor])
        self._back, self.ready = self.ready, ready
        return gate

    def done(self, made: Sequence[Tensor]) -> Sequence[Tensor]:
        """Mark the end of the backward pass."""
        super().done(made)
        with tf.device(HOST), tf.name_scope("marks/"):
            self.ended = self._forward + (self.ended - self._back)
        return made


@dataclass
class Statistics:
    """New values of the serial model's state: tower 0 puts them here, and the merge stores them.

    So all towers read the old values before they change. Not a list, because Keras would copy it.
    """

    new: Sequence[Tensor] = ()


class Tower(keras.layers.Layer):  # type: ignore[misc]
    """The serial model on one device, for its rows of the batch. It uses the serial model's weights.

    Input: the joint batch [batch, ...]. Output: the outputs of this tower's rows, [rows, classes]. Losses
    that the serial model adds for these rows (activity regularisers, `add_loss`) are losses of this layer,
    multiplied by the tower's share of the batch.
    """

    def __init__(
        self,
        serial: keras.Model,
        recipe: MethodRecipe,
        tower: int,
        devices: Sequence[str],
        statistics: Statistics,
        *,
        batch: int,
        classes: int,
        xla: bool = False,
        ending: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(name=f"tower_{tower}")
        self.serial = serial
        self.marks: PassMarks | None = None
        self._recipe = recipe
        self._tower = tower
        self._device = devices[tower]
        first, count = rows_of_towers(batch, len(devices), recipe.cut)[tower]
        self._cut, self._share = slice(first, first + count), count / batch
        self._statistics = statistics
        self._classes = classes
        self._ending = ending
        self._takes_training = "training" in inspect.signature(serial.call).parameters
        # Each tower by itself: XLA compiles for one device at a time.
        self._follow = tf.function(self._forward, jit_compile=True, autograph=False) if xla else self._forward

    def build(self, shape: Any) -> None:
        """Do nothing: the serial model is already built."""

    def call(self, batch: Tensor, training: bool | None = None) -> Tensor:
        """Run the forward pass on the tower's device."""
        device, marks = self._device, self.marks
        with tf.name_scope(f"tower_{self._tower}/"):
            with tf.control_dependencies([] if marks is None else [marks.started]):
                rows = self._rows(batch, device)
                weights = [_on(device, one) for one in self.serial.trainable_variables]
                state = [self._state(one, device) for one in self.serial.non_trainable_variables]
            gate = [] if marks is None else marks.weights_arrived([*weights, rows])
            with tf.control_dependencies(gate):
                outputs, added, new = self._pass(rows, weights, state, training)
            if added is not None:
                self.add_loss(added)
            if marks is not None:
                marks.went_forward(outputs)
        if self._tower == 0 and training:
            self._statistics.new = new
        return outputs

    def compute_output_shape(self, shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return the shape: rows of this tower, classes of the serial model."""
        return self._cut.stop - self._cut.start, self._classes

    def _pass(
        self,
        rows: Tensor,
        weights: list[Tensor],
        state: list[Tensor],
        training: bool | None,
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """Run the serial model, with a gradient that is computed on the same device.

        Return the outputs, the loss that the model adds for these rows (None: none), and the new state.
        """
        marks, scope, device = self.marks, f"tower_{self._tower}/", self._device
        new_state: list[Tensor] = []

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def run(*own: Tensor) -> Any:
            tape = tf.GradientTape(watch_accessed_variables=False)
            with tf.device(device), tape:
                # An outer tape must not record the ops within: in loops they would lose their device.
                own = tuple(tf.stop_gradient(one) for one in own)
                tape.watch(own)
                outputs, added, new = self._follow(list(own), state, rows, training)
                made = [outputs] if added is None else [outputs, added * self._share]
            new_state.extend(new)

            def backward(*upstream: Tensor) -> list[Tensor]:
                with tf.name_scope(scope), tf.device(device):
                    given = [tf.identity(one) for one in upstream]
                    gate = [] if marks is None else marks.upstream(given[0])
                    with tf.control_dependencies(gate):
                        gradients = tape.gradient(
                            made, own, given, unconnected_gradients=tf.UnconnectedGradients.ZERO
                        )
                    if marks is not None:
                        marks.done(gradients)
                    return list(gradients)

            return made, backward

        with tf.device(device):
            outputs, *added = run(*weights)
        return outputs, added[0] if added else None, new_state

    def _forward(
        self, weights: list[Tensor], state: list[Tensor], rows: Tensor, training: bool | None
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        mode = {} if training is None or not self._takes_training else {"training": training}
        outputs, new, losses = self.serial.stateless_call(weights, state, rows, return_losses=True, **mode)
        outputs = only(outputs)
        if self._ending is not None:
            outputs = self._ending(outputs)
        # Keras lists the weights' regularisers last. The parallel model applies them once.
        of_weights = sum(one.regularizer is not None for one in self.serial.trainable_variables)
        added = summed(losses[: len(losses) - of_weights])
        return tf.cast(outputs, self.compute_dtype), added, new

    def _rows(self, batch: Tensor, device: str) -> Tensor:
        """Return the tower's rows on its device."""
        if self._recipe.slice_on == "host":
            with tf.name_scope(_SLICES), tf.device(HOST):
                rows = batch[self._cut]
            with tf.device(device):
                return tf.identity(rows)
        with tf.device(device):
            return tf.identity(batch)[self._cut]

    def _state(self, variable: Any, device: str) -> Tensor:
        """Return a state variable's value on the device. A random layer's seed differs by tower."""
        if not is_seed(variable):
            return _on(device, variable)
        with tf.name_scope(_SLICES), tf.device(HOST):
            moved = tf.constant([0, self._tower * _SEEDS_PER_TOWER], tf.int64)
            return tf.cast(variable.value, tf.int64) + moved


class Merge(keras.layers.Layer):  # type: ignore[misc]
    """Concatenates the towers' outputs by row on a device, and stores the serial model's new state."""

    def __init__(self, device: str, serial: keras.Model, statistics: Statistics) -> None:
        super().__init__(name="merge")
        self._device = device
        self._serial = serial
        self._statistics = statistics

    def build(self, shape: Any) -> None:
        """Do nothing: there are no variables."""

    def call(self, parts: Sequence[Tensor]) -> Tensor:
        """Concatenate by row. The gradient is also split on this device."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def run(*parts: Tensor) -> Any:
            with tf.device(self._device):
                joined = tf.concat(parts, 0)
                sizes = [tf.shape(part)[0] for part in parts]

            def backward(upstream: Tensor) -> list[Tensor]:
                with tf.device(self._device):
                    return list(tf.split(upstream, sizes))

            return joined, backward

        if self._statistics.new:
            for variable, value in zip(
                self._serial.non_trainable_variables, self._statistics.new, strict=True
            ):
                variable.assign(value)
            self._statistics.new = ()
        return run(*parts)

    def compute_output_shape(self, shapes: Sequence[Sequence[int | None]]) -> tuple[int | None, ...]:
        """Return the shape of all rows together."""
        return sum(shape[0] or 0 for shape in shapes), *shapes[0][1:]


def _on(device: str, variable: Any) -> Tensor:
    """Return a variable's value on a device."""
    with tf.device(device):
        return tf.identity(variable.value)
