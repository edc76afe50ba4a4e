"""Models by name: a network of the catalogue, `keras:NAME`, or the user's `module:function`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gputopo.launch.models.layers import DataFormat, GraphLayers, TowerRows
from gputopo.launch.models.model import Forward, Model, VariableSpec
from gputopo.launch.spec import model_names
from gputopo.values.run.spec import RunSpec
from gputopo.workload.architectures import Architecture, Loss, architectures
from gputopo.workload.sketch import Variable

Tensor = Any


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
        return NetworkModel.of(architectures()[asked.attribute])
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
