"""Keras models as models of the training core: `keras:NAME` and the user's own `module:function`.

Keras lists the variables and follows the network by `stateless_call`; where variables live, gradients and
updates stay with the core. First values are those that Keras gave.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from gputopo.architectures.catalogue import Loss
from gputopo.errors import UsageError
from gputopo.launch.core.keras_models.foreign import Foreign
from gputopo.launch.core.keras_models.outputs import Ending, head_of, unused_loss
from gputopo.launch.core.keras_models.sources import application, own_model
from gputopo.launch.core.layers import DataFormat, Rows
from gputopo.launch.core.models import Forward, VariableSpec
from gputopo.launch.core.placement.devices import HOST
from gputopo.launch.model_names import ModelName
from gputopo.launch.spec import RunSpec

Tensor = Any
_POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
_LAYOUTS: dict[str, DataFormat] = {"channels_last": "NHWC", "channels_first": "NCHW"}
# A random layer takes one number of its row of seeds in each call; rows of towers lie this far apart.
_SEEDS_PER_ROW = 1 << 8
_SEEDS_PER_STEP = 1 << 32
_LARGEST = 1 << 62
_LAYERS = 1_000_003  # more random layers than a model has: no two seeds share a layer's numbers


class KerasModel:
    """A Keras model with one input and one output [batch, classes].

    `keras`: the model itself, whose variables hold the first values. `says`: what was assumed of it.
    `layout`: of the images it computes with; None: any, or no images.
    """

    def __init__(self, model: keras.Model, *, name: str, ending: Ending | None = None) -> None:
        """Look at a built model. Raises UsageError for one that cannot be trained on classes."""
        shape, self.classes = _shapes(model, name)
        self.keras = model
        self._shape = shape
        self.head = head_of(model, self.classes, ending=ending)
        self.loss: Loss = "sigmoid" if self.classes == 1 else "softmax"
        self.layout = _layout(model) if len(shape) == 3 else None
        self.variables = [_spec(one) for one in model.trainable_variables]
        self._frozen = [one for one in model.non_trainable_variables if not is_seed(one)]
        self.state = [_spec(one) for one in self._frozen]
        self._fails = (
            f"the model '{name}' fails in its forward pass",
            "try it alone on a batch: model(numpy.zeros((2, ...)))",
        )
        self._takes_training = "training" in inspect.signature(model.call).parameters
        self.says: tuple[str, ...] = (self.head.says, *self._also(model))

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width, channels of one image; other inputs are rows of numbers, cut to their shape."""
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
        rows: Rows,
        data_format: DataFormat,
        *,
        training: bool = True,
    ) -> Forward:
        """Follow the model. Its random layers draw anew for each step and for each tower's rows."""
        trained = [
            tf.cast(one, kept.dtype)
            for one, kept in zip(weights, self.keras.trainable_variables, strict=True)
        ]
        given = iter(state)
        seed = seeds(rows)
        rest = [next(seed) if is_seed(one) else next(given) for one in self.keras.non_trainable_variables]
        mode = {"training": training} if self._takes_training else {}  # as Keras's fit does
        with Foreign(*self._fails):
            outputs, new, added = self.keras.stateless_call(
                trained, rest, self.own_layout(images, data_format), return_losses=True, **mode
            )
        kept = [
            value
            for one, value in zip(self.keras.non_trainable_variables, new, strict=True)
            if not is_seed(one)
        ]
        return Forward(self.head.logits(outputs), kept, summed(added))

    def losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Give the loss of each example [batch]."""
        return self.head.losses(logits, labels)

    def put(self, weights: Sequence[Any], state: Sequence[Any]) -> None:
        """Give the Keras model's own variables values, in the order of `variables` and `state`."""
        for variable, value in zip(self.keras.trainable_variables, weights, strict=True):
            variable.assign(value)
        for variable, value in zip(self._frozen, state, strict=True):
            variable.assign(value)

    def own_layout(self, images: Tensor, data_format: DataFormat) -> Tensor:
        """Give images [batch, h, w, c] or [batch, c, h, w] as the model wants them."""
        if len(self._shape) != 3:
            return tf.reshape(images, (-1, *self._shape))
        if self.layout is None or self.layout == data_format:
            return images
        return tf.transpose(images, (0, 2, 3, 1) if self.layout == "NHWC" else (0, 3, 1, 2))

    def _also(self, model: keras.Model) -> Iterator[str]:
        unused = unused_loss(model, self.head)
        if unused:
            yield unused
        if any(is_seed(one) for one in model.non_trainable_variables):
            yield "Random layers draw by step and by each tower's first row, so towers drop different things."
        if model.losses:
            yield f"The loss includes what the model adds to it (regularisers: {len(model.losses)})."


def build_keras(asked: ModelName, spec: RunSpec | None) -> KerasModel:
    """Build a Keras model in the data format and precision of a spec (None: NHWC, float32).

    Its variables stay on the host, or where `--method` has them. Raises UsageError for whatever keeps it
    from being built.
    """
    _require_tensorflow()
    device = spec.ps_device if spec is not None and spec.method is not None else None
    compute = "fp32" if spec is None else spec.precision.compute
    # The user's own function states its layout itself: (224, 224, 3) read as channels first is another model.
    channels_first = asked.kind == "keras" and spec is not None and spec.data_format == "NCHW"
    seed = 0 if spec is None else spec.seed
    keras.utils.set_random_seed(seed)  # first values come from Keras's global generator
    with tf.device(device or HOST), _settings(compute, channels_first=channels_first):
        if asked.kind == "keras":
            model = application(asked.attribute)
            built = KerasModel(model, name=f"keras:{asked.attribute}", ending="linear")
        else:
            built = KerasModel(own_model(asked, seed), name=f"{asked.module}:{asked.attribute}")
    _check(built, asked, spec)
    if spec is not None and built.layout not in (None, spec.data_format):
        built.says += (
            f"The model's own layers compute in {built.layout}: {spec.data_format} is turned for it.",
        )
    return built


def summed(losses: Sequence[Tensor]) -> Tensor | None:
    """Add up what a model adds to its loss, in float32; None where there is nothing."""
    return tf.add_n([tf.cast(one, tf.float32) for one in losses]) if losses else None


def seeds(rows: Rows) -> Iterator[Tensor]:
    """Give seeds [2] (int64) for random layers, one after the other, of this step and these rows.

    They are made on the host, where TensorFlow's random ops read them.
    """
    number = 0
    while True:
        with tf.name_scope("random_counters/"), tf.device(HOST):
            step = tf.cast(rows.stream.step, tf.int64) * _SEEDS_PER_STEP
            layer = tf.constant((rows.stream.seed * _LAYERS + number) % _LARGEST, tf.int64)
            made = tf.stack([layer, step + rows.first * _SEEDS_PER_ROW])
        yield made
        number += 1


def _shapes(model: keras.Model, name: str) -> tuple[tuple[int, ...], int]:
    """Give the shape of one example and the number of classes. Raises UsageError."""
    with Foreign(f"the model '{name}' tells no shapes", "give it a keras.Input, or build() it"):
        given, made = _input_and_output(model)
    for what, shape in (("inputs", given), ("outputs", made)):
        if isinstance(shape, dict) or (shape and not isinstance(shape[0], (int, type(None)))):
            raise UsageError(
                f"the model '{name}' has {len(shape)} {what}", "give one with one input and one output"
            )
    dtype = model.inputs[0].dtype if getattr(model, "inputs", None) else "float32"
    if len(given) < 2 or None in given[1:]:
        raise UsageError(
            f"the model '{name}' has no fixed input shape: {_shown(given)}",
            "give its Input all sizes but the batch's, such as keras.Input((224, 224, 3))",
        )
    if not str(dtype).startswith(("float", "bfloat")) or len(given) > 4:
        raise UsageError(
            f"the model '{name}' takes {dtype} of shape {_shown(given)}",
            "give one that takes images or rows of numbers in float32",
        )
    if len(made) != 2 or made[1] is None:
        raise UsageError(
            f"the model '{name}' gives {_shown(made)}, not one row of classes for each example",
            "end it in a layer such as Flatten or GlobalAveragePooling2D, and Dense(classes)",
        )
    return tuple(given[1:]), made[1]


def _input_and_output(model: keras.Model) -> tuple[Any, Any]:
    """Give one shape each, or several."""
    if getattr(model, "inputs", None):
        given, made = ([tuple(one.shape) for one in ends] for ends in (model.inputs, model.outputs))
        return given[0] if len(given) == 1 else given, made[0] if len(made) == 1 else made
    if not model.built:
        return (None, None), (None, 1)
    given = model.get_build_config()["input_shape"]
    made = model.compute_output_spec(keras.KerasTensor(given))
    return given, tuple(made.shape) if hasattr(made, "shape") else [tuple(one.shape) for one in made]


def _check(built: KerasModel, asked: ModelName, spec: RunSpec | None) -> None:
    name = f"{asked.module}:{asked.attribute}"
    if not built.variables:
        raise UsageError(f"the model '{name}' has nothing to train", "give it layers with trainable weights")
    if spec is None:
        return
    inputs = getattr(built.keras, "inputs", None)
    batch = inputs[0].shape[0] if inputs else None
    if batch not in (None, spec.batch_size):
        raise UsageError(
            f"the model '{name}' takes batches of {batch} alone, this run has {spec.batch_size} per device",
            f"use --batch-size {batch}, or an Input without a batch size",
        )
    wanted = keras.DTypePolicy(_POLICIES[spec.precision.compute]).compute_dtype
    if wanted not in {layer.compute_dtype for layer in layers_of(built.keras)}:
        raise UsageError(
            f"no layer of the model '{name}' computes in {wanted}: it sets its own types",
            "leave --precision out, or let the model follow Keras's policy (no dtype arguments)",
        )


def _layout(model: keras.Model) -> DataFormat | None:
    """Tell the layout of a model's images by its layers; None where none of them minds."""
    formats = {getattr(layer, "data_format", None) for layer in layers_of(model)}
    found = [layout for name, layout in _LAYOUTS.items() if name in formats]
    return found[0] if found else None


def layers_of(layer: Any) -> Iterator[Any]:
    """Give a layer and all that Keras lists within it."""
    yield layer
    for within in getattr(layer, "layers", ()):
        yield from layers_of(within)


@contextmanager
def _settings(compute: str, *, channels_first: bool) -> Iterator[None]:
    """Set Keras's image data format and precision while a model is built."""
    before = keras.config.image_data_format(), keras.config.dtype_policy()
    if channels_first:
        keras.config.set_image_data_format("channels_first")
    keras.config.set_dtype_policy(_POLICIES[compute])
    try:
        yield
    finally:
        keras.config.set_image_data_format(before[0])
        keras.config.set_dtype_policy(before[1])


def _require_tensorflow() -> None:
    if keras.backend.backend() != "tensorflow":
        raise UsageError(
            f"Keras computes with {keras.backend.backend()} here, not with TensorFlow",
            "set KERAS_BACKEND=tensorflow",
        )


def is_seed(variable: Any) -> bool:
    """Tell whether a Keras variable is the seed of a random layer."""
    return bool(variable.path.rpartition("/")[2] == "seed_generator_state")


def _spec(variable: Any) -> VariableSpec:
    values = partial(_value, variable)
    return VariableSpec(variable.path, tuple(variable.shape), 0.0, values=values)


def _value(variable: Any) -> Any:
    return variable.value.numpy()


def _shown(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("?" if size is None else str(size) for size in shape) + ")"
