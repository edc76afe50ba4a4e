"""The serial Keras model of a run: a Keras model as it is, or a network of gputopo as a Keras layer."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from gputopo.launch.models.keras.building import KerasModel
from gputopo.launch.models.layers import TYPES, DataFormat, Rows
from gputopo.launch.models.model import Model
from gputopo.launch.models.randomness import Stream
from gputopo.launch.spec.run_spec import Precision, RunSpec
from gputopo.launch.train.placement.variables import create, create_state

Tensor = Any
_DROPOUT = 5  # purpose of a random stream


def serial_of(model: Model, spec: RunSpec, *, server: str) -> keras.Model:
    """Return the Keras model of one device, its variables on `server`, with the first values of a run.

    A `KerasModel` is built there already, in the spec's type.
    """
    if isinstance(model, KerasModel):
        return model.keras
    with tf.device(server):
        layer = NetworkLayer(model, spec.data_format, spec.seed, spec.precision)
        height, width, channels = model.input_shape
        shape = (channels, height, width) if spec.data_format == "NCHW" else (height, width, channels)
        images = keras.Input(shape)
        return keras.Model(images, layer(images), name="serial")


class NetworkLayer(keras.layers.Layer):  # type: ignore[misc]
    """A network of gputopo as a Keras layer: images in, logits (float32) out.

    Its variables are float32, and so is the layer for Keras; the network computes in the type of `precision`,
    as in our own towers, and draws for XLA if that is to compile it. A batch has to have a known size where
    the network drops entries.
    """

    def __init__(self, model: Model, data_format: DataFormat, seed: int, precision: Precision) -> None:
        super().__init__(name="network", dtype="float32")
        self.model = model
        self._data_format = data_format
        self._seed = seed
        self._precision = precision
        self._draws = keras.random.SeedGenerator(seed)

    def build(self, shape: Any) -> None:
        """Make the variables with the first values that our own towers start with."""
        first = create(self.model, "/CPU:0", self._seed)
        self._trained = [self._weight(one, trainable=True) for one in first]
        self._moving = [self._weight(one, trainable=False) for one in create_state(self.model, "/CPU:0")]

    def call(self, images: Tensor, training: bool | None = None) -> Tensor:
        """Follow the network; while training its moving statistics change."""
        draw = self._draws.next()[1]  # int64: another one for each step, and for each tower
        stream = Stream(self._seed, _DROPOUT, draw, compiled=self._precision.xla)
        rows = Rows(0, -1 if images.shape[0] is None else images.shape[0], stream)
        passed = self.model.forward(
            [one.value for one in self._trained],
            [one.value for one in self._moving],
            tf.cast(images, TYPES[self._precision.compute]),
            rows,
            self._data_format,
            training=bool(training),
        )
        if training:
            for variable, value in zip(self._moving, passed.state, strict=True):
                variable.assign(value)
        return passed.logits

    def compute_output_shape(self, shape: Sequence[int | None]) -> tuple[int | None, int]:
        """Logits [batch, classes]."""
        return shape[0], self.model.classes

    def _weight(self, first: Any, *, trainable: bool) -> Any:
        made = self.add_weight(
            shape=tuple(first.shape),
            dtype=first.dtype.name,
            initializer="zeros",
            trainable=trainable,
            name=first.name.partition(":")[0].replace("/", "_"),
        )
        made.assign(first)
        return made
