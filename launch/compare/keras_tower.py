"""What sets the three methods apart: how the batch is cut and where, and where outputs come together. Pure.

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
    """One method.

    `cut`: even: sizes differ by one at most, the first towers have more; rest: the last tower takes what is
    left over. `slice_on`: tower: the whole batch goes to every tower, which takes its rows there; host: the
    CPU cuts, and each tower gets its rows alone. `merge_on`: server: outputs come together where the
    variables are; host: on the CPU.
    """

    name: Method
    cut: Cut
    slice_on: Literal["tower", "host"]
    merge_on: Literal["server", "host"]

    @property
    def says(self) -> str:
        """What moves, for the user."""
        moves = (
            "the whole batch goes from the CPU to every device, which takes its rows"
            if self.slice_on == "tower"
            else "the CPU cuts the batch"
        )
        merged = "where the variables are" if self.merge_on == "server" else "on the CPU"
        return f"Method {self.name}: {moves}; outputs come together {merged}, for one loss."


RECIPES: dict[Method, MethodRecipe] = {
    # keras-extras drops the rows that do not divide, so labels and outputs differ in number. Here none is.
    "kuza55": MethodRecipe("kuza55", "even", "tower", "server"),
    "avolkov1": MethodRecipe("avolkov1", "rest", "host", "server"),
    "fchollet": MethodRecipe("fchollet", "rest", "tower", "host"),
}


Tensor = Any
# Numbers that a random layer of one tower may draw before it meets those of the next; a step of a run has
# enough for 256 towers (`keras_models.building.seeds`).
_SEEDS_PER_TOWER = 1 << 24
_SLICES = "slices/"  # a scope beside those of the towers: cutting on the CPU belongs to the host


class PassMarks(TowerClock):
    """Time marks of a tower: the end is that of both passes without the wait between them."""

    _forward: Tensor = None
    _back: Tensor = None

    def went_forward(self, outputs: Tensor) -> None:
        """Mark the end of the forward pass."""
        self._forward = clock([self._marks.arrived([outputs], self.device)])

    def upstream(self, tensor: Tensor) -> list[Tensor]:
        """Mark that the gradient of the outputs is there; return what the work waits for."""
        ready = self.ready
        gate = self.weights_arrived([tensor])
        self._back, self.ready = self.ready, ready
        return gate

    def done(self, made: Sequence[Tensor]) -> Sequence[Tensor]:
        """Mark the end."""
        super().done(made)
        with tf.device(HOST), tf.name_scope("marks/"):
            self.ended = self._forward + (self.ended - self._back)
        return made


@dataclass
class Statistics:
    """New values of the serial model's state: tower 0 puts them here, the merge keeps them.

    So all towers have read the old ones before they change. Keras would copy a list.
    """

    new: Sequence[Tensor] = ()


class Tower(keras.layers.Layer):  # type: ignore[misc]
    """The serial model on one device, for its rows of the batch; weights are shared with the serial model.

    In: the joint batch [batch, ...]. Out: the outputs of this tower's rows, [rows, classes]. What the serial
    model adds to its loss for these rows (activity regularisers, `add_loss`) is a loss of this layer, by the
    tower's share of the batch.
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
        # A tower by itself: XLA compiles for one device at a time.
        self._follow = tf.function(self._forward, jit_compile=True, autograph=False) if xla else self._forward

    def build(self, shape: Any) -> None:
        """Nothing: the serial model is built."""

    def call(self, batch: Tensor, training: bool | None = None) -> Tensor:
        """Go forward on the tower's device."""
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
        """Rows of this tower, and the serial model's classes."""
        return self._cut.stop - self._cut.start, self._classes

    def _pass(
        self,
        rows: Tensor,
        weights: list[Tensor],
        state: list[Tensor],
        training: bool | None,
    ) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """Follow the serial model, with a gradient that works on the same device.

        Returns the outputs, what the rows add to the loss of the batch (None: nothing), and the new state.
        """
        marks, scope, device = self.marks, f"tower_{self._tower}/", self._device
        new_state: list[Tensor] = []

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def run(*own: Tensor) -> Any:
            tape = tf.GradientTape(watch_accessed_variables=False)
            with tf.device(device), tape:
                # A tape outside does not follow what is within: loops would lose their device to it.
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
        # Keras lists the weights' regularisers last. They belong to the parallel model, which has them once.
        of_weights = sum(one.regularizer is not None for one in self.serial.trainable_variables)
        added = summed(losses[: len(losses) - of_weights])
        return tf.cast(outputs, self.compute_dtype), added, new

    def _rows(self, batch: Tensor, device: str) -> Tensor:
        """Take the tower's rows, and bring them to its device."""
        if self._recipe.slice_on == "host":
            with tf.name_scope(_SLICES), tf.device(HOST):
                rows = batch[self._cut]
            with tf.device(device):
                return tf.identity(rows)
        with tf.device(device):
            return tf.identity(batch)[self._cut]

    def _state(self, variable: Any, device: str) -> Tensor:
        """Return a moving statistic; a random layer's seed differs by tower."""
        if not is_seed(variable):
            return _on(device, variable)
        with tf.name_scope(_SLICES), tf.device(HOST):
            moved = tf.constant([0, self._tower * _SEEDS_PER_TOWER], tf.int64)
            return tf.cast(variable.value, tf.int64) + moved


class Merge(keras.layers.Layer):  # type: ignore[misc]
    """Puts the towers' outputs below one another on a device, and keeps the serial model's new state."""

    def __init__(self, device: str, serial: keras.Model, statistics: Statistics) -> None:
        super().__init__(name="merge")
        self._device = device
        self._serial = serial
        self._statistics = statistics

    def build(self, shape: Any) -> None:
        """Nothing to build."""

    def call(self, parts: Sequence[Tensor]) -> Tensor:
        """Concatenate by row; the gradient's cuts are there too."""

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
        """All rows together."""
        return sum(shape[0] or 0 for shape in shapes), *shapes[0][1:]


def _on(device: str, variable: Any) -> Tensor:
    """Bring a variable's value to a device."""
    with tf.device(device):
        return tf.identity(variable.value)
