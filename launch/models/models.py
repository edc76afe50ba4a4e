"""Models by name: a network of the catalogue, `keras:NAME`, or the user's `module:function`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gputopo.launch.models.layers import DataFormat, GraphLayers, TowerRows
from gputopo.launch.models.model import Forward, Model, VariableSpec
from gputopo.launch.spec import model_names
from gputopo.values.run.spec import RunSpec
from gputopo.workload import Architecture, Loss, Variable, known_architectures

Tensor = Any


@dataclass(frozen=True)
class NetworkModel:
    """A network of the catalogue as a `Model`."""

    architecture: Architecture
    variables: tuple[VariableSpec, ...]
    state: tuple[VariableSpec, ...]

    @classmethod
    def of(cls, architecture: Architecture) -> "NetworkModel":
        """Make the model of a network, with the list of its variables."""
        drawn = architecture.sketch().variables
        trained = tuple(_spec(tensor) for tensor in drawn if tensor.trainable)
        return cls(architecture, trained, tuple(_spec(tensor) for tensor in drawn if not tensor.trainable))

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one image."""
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
        """Run the network in the type of the images."""
        layers = GraphLayers(iter(weights), iter(state), rows, data_format, training)
        logits = self.architecture.build(layers, images, self.classes)
        return Forward(tf.cast(logits, tf.float32), layers.new_state)


def build_model(name: str, spec: RunSpec | None = None) -> Model:
    """Return the model with a name: a network, `keras:NAME`, or the user's `module:function`.

    The spec gives the data format and precision of a Keras model. Raises UsageError if the name is unknown or
    the model cannot be built or trained.
    """
    asked = model_names.read_model_name(name)
    if asked.kind == "network":
        return NetworkModel.of(known_architectures()[asked.attribute])
    from gputopo.launch.models.keras_building import build_keras  # loads Keras, which takes seconds

    return build_keras(asked, spec)


def shapes_of(name: str, spec: RunSpec) -> list[tuple[int, ...]]:
    """Return the shapes of a model's variables. The model can then be built again with the same names."""
    shapes = [variable.shape for variable in build_model(name, spec).variables]
    if model_names.read_model_name(name).kind != "network":
        import keras

        keras.utils.clear_session()
    return shapes


def _spec(variable: Variable) -> VariableSpec:
    return VariableSpec(variable.name, variable.shape, variable.deviation, variable.start)
