"""Models by name: a network of the catalogue, `keras:NAME`, or the user's `module:function`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from gputopo.launch.models.layers import DataFormat, GraphLayers, Stream, TowerRows, cut_normal
from gputopo.launch.spec import model_names
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.workload.architectures import ARCHITECTURES, Architecture, Loss
from gputopo.workload.sketch import Variable

Tensor = Any


@dataclass(frozen=True)
class VariableSpec:
    """A variable: its name, its shape, and its first values: normal with `stddev`, or all `start`.

    `values` returns an array in their place.
    """

    name: str
    shape: tuple[int, ...]
    stddev: float
    start: float = 0.0
    values: Callable[[], Any] | None = None

    def initial(self, stream: Stream) -> Tensor:
        """Return the first value: normal, cut at two deviations; the same for the same stream."""
        if self.values is not None:
            return tf.constant(self.values())
        if self.stddev == 0.0:
            return tf.fill(self.shape, self.start)
        return cut_normal(stream, self.shape, self.stddev)


@dataclass(frozen=True)
class Forward:
    """Outcome of a forward pass: logits [batch, classes] in float32, and the state after this batch.

    `added`: what the model itself adds to the mean loss (regularisers), a float32 scalar.
    """

    logits: Tensor
    state: list[Tensor]
    added: Tensor | None = None


class Model(Protocol):
    """Interface of a model to the training core."""

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width, channels of one image."""

    @property
    def classes(self) -> int:
        """Number of classes; 1: a single yes or no."""

    @property
    def loss(self) -> Loss:
        """`softmax` over classes, or `sigmoid` of one number."""

    @property
    def variables(self) -> Sequence[VariableSpec]:
        """All trainable variables, in the order of `forward`'s weights."""

    @property
    def state(self) -> Sequence[VariableSpec]:
        """What changes without a gradient, such as the moving statistics of norms."""

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
        """Follow the network for images in `data_format` ([batch, h, w, c] or [batch, c, h, w])."""


def parameter_count(model: Model) -> int:
    """Count the trainable numbers."""
    return sum(math.prod(spec.shape) for spec in model.variables)


def loss_of(model: Model, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of each example [batch] for labels [batch] in [0, classes), or in {0, 1}.

    A model may bring its own `losses(logits, labels)`.
    """
    own = getattr(model, "losses", None)
    if own is not None:
        return own(logits, labels)
    if model.loss == "sigmoid":
        wanted = tf.cast(labels, tf.float32)
        return tf.nn.sigmoid_cross_entropy_with_logits(wanted, tf.reshape(logits, (-1,)))
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


@dataclass(frozen=True)
class NetworkModel:
    """A network of the catalogue as a model."""

    architecture: Architecture
    variables: tuple[VariableSpec, ...]
    state: tuple[VariableSpec, ...]

    @classmethod
    def of(cls, architecture: Architecture) -> "NetworkModel":
        """List the variables of a network."""
        drawn = architecture.sketch().variables
        trained = tuple(_spec(one) for one in drawn if one.trainable)
        return cls(architecture, trained, tuple(_spec(one) for one in drawn if not one.trainable))

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width, channels of one image."""
        return self.architecture.input_shape

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.architecture.classes

    @property
    def loss(self) -> Loss:
        """The kind of loss."""
        return self.architecture.loss

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
        """Follow the network in the type of the images."""
        layers = GraphLayers(iter(weights), iter(state), rows, data_format, training)
        logits = self.architecture.build(layers, images, self.classes)
        return Forward(tf.cast(logits, tf.float32), layers.new_state)


def build(name: str, spec: RunSpec | None = None) -> Model:
    """Return the model of that name: a network, `keras:NAME`, or the user's `module:function`.

    The spec has a Keras model's data format and precision. Raises UsageError for an unknown name, or
    a model that cannot be built or trained.
    """
    asked = model_names.read(name)
    if asked.kind == "network":
        return NetworkModel.of(ARCHITECTURES[asked.attribute])
    from gputopo.launch.models.keras_building import build_keras  # loads Keras, which takes seconds

    return build_keras(asked, spec)


def shapes_of(name: str, spec: RunSpec) -> list[tuple[int, ...]]:
    """Return the shapes of a model's variables. It can be built anew then, with the same names."""
    shapes = [variable.shape for variable in build(name, spec).variables]
    if model_names.read(name).kind != "network":
        import keras

        keras.utils.clear_session()
    return shapes


def _spec(variable: Variable) -> VariableSpec:
    return VariableSpec(variable.name, variable.shape, variable.deviation, variable.start)
