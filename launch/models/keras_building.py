"""Keras models for the training core: `keras:NAME` and the user's own `module:function`.

Keras lists the variables and runs the network by `stateless_call`. The core places the variables and computes
gradients and updates. The initial values come from Keras.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from gputopo.launch.models.keras_checks import (
    POLICIES,
    TracedModel,
    computes_in,
    is_seed,
    layers_of,
    only,
    other_types,
    require_any_batch,
    require_listed,
    require_trainable,
    shapes_of,
    traced_of,
)
from gputopo.launch.models.keras_outputs import Ending, ending_of, head_of, left_out
from gputopo.launch.models.keras_sources import application, foreign, own_model
from gputopo.launch.models.layers import DataFormat, TowerRows
from gputopo.launch.models.model import Forward, VariableSpec
from gputopo.launch.spec.model_names import ModelName
from gputopo.launch.train.placement.devices import HOST
from gputopo.values.errors import UsageError
from gputopo.values.run.spec import RunSpec
from gputopo.workload import Loss

Tensor = Any
_LAYOUTS: dict[str, DataFormat] = {"channels_last": "NHWC", "channels_first": "NCHW"}
# Each call of a random layer takes one seed from its tower's row; the rows of two towers are this far apart.
_SEEDS_PER_ROW = 1 << 8
_SEEDS_PER_STEP = 1 << 32
_LARGEST = 1 << 62
_LAYERS = 1_000_003  # more random layers than a model has: no two seeds share a layer's numbers


class KerasModel:
    """A Keras model with one input and one output [batch, classes].

    `keras`: the model itself, whose variables hold the initial values. `says`: remarks on it.
    `layout`: layout of the images that it computes with; None: any layout, or the input is not images.
    """

    def __init__(self, model: keras.Model, *, name: str, ending: Ending | None = None) -> None:
        """Inspect a built model. Raises UsageError if it cannot be trained on classes."""
        shape, self.classes = shapes_of(model, name)
        self.keras = model
        self._shape = shape
        self.fails = (
            f"the model '{name}' fails in its forward pass",
            "test it on a batch: model(numpy.zeros((2, ...)))",
        )
        traced = None
        if ending is None:
            with foreign(*self.fails):
                traced = traced_of(model, shape)
            require_listed(traced, model, name)
            ending = ending_of(traced.output)
        self.head = head_of(model, self.classes, ending)
        self.loss: Loss = "sigmoid" if self.classes == 1 else "softmax"
        formats = {getattr(layer, "data_format", None) for layer in layers_of(model)}
        layouts = [layout for name, layout in _LAYOUTS.items() if name in formats]
        self.layout = layouts[0] if layouts and len(shape) == 3 else None
        self.variables = [_spec(variable) for variable in model.trainable_variables]
        self._frozen = [variable for variable in model.non_trainable_variables if not is_seed(variable)]
        self.state = [_spec(variable) for variable in self._frozen]
        self._takes_training = "training" in inspect.signature(model.call).parameters
        self.says: tuple[str, ...] = tuple(self._says(traced))

    @property
    def is_random(self) -> bool:
        """Whether it has random layers."""
        return any(is_seed(variable) for variable in self.keras.non_trainable_variables)

    @property
    def constraints(self) -> list[Any]:
        """Each trained variable's constraint, which changes its value after an update; None: none."""
        return [variable.constraint for variable in self.keras.trainable_variables]

    @property
    def short_types(self) -> tuple[str, ...]:
        """The types other than float32 that its layers always compute in."""
        return tuple(other_types(computes_in(self.keras), "fp32"))

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one image. Other inputs are given as rows of numbers and reshaped."""
        if len(self._shape) == 3:
            if self.layout == "NCHW":
                return self._shape[1], self._shape[2], self._shape[0]
            return self._shape[0], self._shape[1], self._shape[2]
        return (1, self._shape[0] if len(self._shape) == 2 else 1, self._shape[-1])

    def forward(
        self,
        weights: Sequence[Tensor],
        state: Sequence[Tensor],
        images: Tensor,
        rows: TowerRows,
        data_format: DataFormat,
        *,
        training: bool = True,
    ) -> Forward:
        """Run the model. Its random layers draw different numbers for each step and each tower."""
        trained = [
            tf.cast(weight, variable.dtype)
            for weight, variable in zip(weights, self.keras.trainable_variables, strict=True)
        ]
        given = iter(state)
        seed = seeds(rows)
        rest = [
            next(seed) if is_seed(variable) else next(given)
            for variable in self.keras.non_trainable_variables
        ]
        mode = {"training": training} if self._takes_training else {}  # like Keras's fit
        with foreign(*self.fails):
            outputs, new, added = self.keras.stateless_call(
                trained, rest, self.own_layout(images, data_format), return_losses=True, **mode
            )
        new_state = [
            value
            for variable, value in zip(self.keras.non_trainable_variables, new, strict=True)
            if not is_seed(variable)
        ]
        total = tf.add_n([tf.cast(loss, tf.float32) for loss in added]) if added else None
        return Forward(self.head.logits(only(outputs)), new_state, total)

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each example [batch]."""
        return self.head.losses(logits, labels)

    def require_any_batch(self, name: str) -> None:
        """Raise UsageError if the model cannot be exported. Call this before training."""
        require_any_batch(self.keras, self._shape, name)

    def put(self, weights: Sequence[Any], state: Sequence[Any]) -> None:
        """Assign values to the Keras model's own variables, in the order of `variables` and `state`."""
        for variable, value in zip(self.keras.trainable_variables, weights, strict=True):
            variable.assign(value)
        for variable, value in zip(self._frozen, state, strict=True):
            variable.assign(value)

    def own_layout(self, images: Tensor, data_format: DataFormat) -> Tensor:
        """Return images [batch, h, w, c] or [batch, c, h, w] in the model's layout."""
        if len(self._shape) != 3:
            return tf.reshape(images, (-1, *self._shape))
        if self.layout is None or self.layout == data_format:
            return images
        return tf.transpose(images, (0, 2, 3, 1) if self.layout == "NHWC" else (0, 3, 1, 2))

    def _says(self, traced: TracedModel | None) -> Iterator[str]:
        yield self.head.says
        yield from left_out(self.keras, self.head)
        if self.is_random:
            yield (
                "Random layers use the step and the first row of each device as seed, so devices "
                "drop different units."
            )
        added = len(self.keras.losses) if traced is None else traced.losses
        if added:
            yield f"The loss includes what the model adds to it (regularisers, add_loss: {added})."


def build_keras(asked: ModelName, spec: RunSpec | None) -> KerasModel:
    """Build a Keras model in the data format and precision of a spec (None: NHWC, float32).

    Its variables are on the host. Raises UsageError if the model cannot be built.
    """
    if keras.backend.backend() != "tensorflow":
        raise UsageError(
            f"Keras computes with {keras.backend.backend()} here, not with TensorFlow",
            "set KERAS_BACKEND=tensorflow",
        )
    compute = "fp32" if spec is None else spec.precision.compute
    # The user's function sets its own layout: (224, 224, 3) as channels first would be a different model.
    channels_first = asked.kind == "keras" and spec is not None and spec.data_format == "NCHW"
    seed = 0 if spec is None else spec.seed
    keras.utils.set_random_seed(seed)  # initial values come from Keras's global generator
    with tf.device(HOST), _settings(compute, channels_first=channels_first):
        if asked.kind == "keras":
            model = _application(asked.attribute)
            built = KerasModel(model, name=f"keras:{asked.attribute}", ending="linear")
        else:
            built = KerasModel(own_model(asked, seed), name=f"{asked.module}:{asked.attribute}")
    name = asked.attribute if asked.kind == "keras" else f"{asked.module}:{asked.attribute}"
    require_trainable(built.keras, name, spec)
    if asked.kind == "own" and spec is not None and spec.lifecycle.export is not None:
        built.require_any_batch(name)
    if spec is not None and spec.precision.xla and built.is_random:
        built.says += ("Random layers of Keras use other random numbers with --xla than without it.",)
    if spec is not None and built.layout not in (None, spec.data_format):
        built.says += (
            f"The model's own layers compute in {built.layout}: {spec.data_format} is transposed for it.",
        )
    others = other_types(computes_in(built.keras), compute)
    if others:
        built.says += (
            f"Layers of the model compute in {' and '.join(others)}, as they were defined, regardless of "
            f"--precision ({compute} here).",
        )
    return built


def _application(name: str) -> keras.Model:
    """Build a keras.applications model in the configured layout, or in channels last if it has no other."""
    try:
        return application(name)
    except UsageError as error:
        if "channels_first" not in error.what:
            raise
        keras.config.set_image_data_format("channels_last")  # `_settings` restores it
        return application(name)


def seeds(rows: TowerRows) -> Iterator[Tensor]:
    """Yield seeds [2] (int64) for the random layers in this step and for these rows.

    They are made on the host because TensorFlow's random ops read seeds there.
    """
    number = 0
    while True:
        with tf.name_scope("random_counters/"), tf.device(HOST):
            step = tf.cast(rows.stream.step, tf.int64) * _SEEDS_PER_STEP
            layer = tf.constant((rows.stream.seed * _LAYERS + number) % _LARGEST, tf.int64)
            made = tf.stack([layer, step + rows.first * _SEEDS_PER_ROW])
        yield made
        number += 1


@contextmanager
def _settings(compute: str, *, channels_first: bool) -> Iterator[None]:
    """Set Keras's image data format and precision while a model is built."""
    before = keras.config.image_data_format(), keras.config.dtype_policy()
    if channels_first:
        keras.config.set_image_data_format("channels_first")
    keras.config.set_dtype_policy(POLICIES[compute])
    try:
        yield
    finally:
        keras.config.set_image_data_format(before[0])
        keras.config.set_dtype_policy(before[1])


def _spec(variable: Any) -> VariableSpec:
    return VariableSpec(variable.path, tuple(variable.shape), 0.0, values=lambda: variable.value.numpy())
