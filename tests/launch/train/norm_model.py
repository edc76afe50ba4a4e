"""A small network with a norm: one 3x3 convolution, BatchNorm, ReLU, dropout, a mean, one dense layer."""

from collections.abc import Sequence
from typing import Any, Literal


class NormModel:
    """As the training core takes it; `classes` may be another number, to be another model."""

    input_shape = (6, 5, 2)
    loss: Literal["softmax", "sigmoid"] = "softmax"

    def __init__(self, classes: int = 7, filters: int = 4) -> None:
        self.classes = classes
        self.filters = filters

    @property
    def variables(self) -> Sequence[Any]:
        from gputopo.launch.models.model import VariableSpec

        return [
            VariableSpec("conv/kernel", (3, 3, 2, self.filters), 0.4),
            VariableSpec("conv/norm/beta", (self.filters,), 0.0, 0.0),
            VariableSpec("conv/norm/gamma", (self.filters,), 0.0, 1.0),
            VariableSpec("dense/kernel", (12 * self.filters, self.classes), 0.4),
            VariableSpec("dense/bias", (self.classes,), 0.0),
        ]

    @property
    def state(self) -> Sequence[Any]:
        from gputopo.launch.models.model import VariableSpec

        return [
            VariableSpec("conv/norm/mean", (self.filters,), 0.0, 0.0),
            VariableSpec("conv/norm/variance", (self.filters,), 0.0, 1.0),
        ]

    def forward(
        self,
        weights: Sequence[Any],
        state: Sequence[Any],
        images: Any,
        rows: Any,
        data_format: Any,
        *,
        training: bool = True,
    ) -> Any:
        import tensorflow as tf

        from gputopo.launch.models.layers import GraphLayers
        from gputopo.launch.models.model import Forward
        from gputopo.workload.sketch import Norm

        layers = GraphLayers(iter(weights), iter(state), rows, data_format, training)
        x = layers.conv(images, self.filters, 3, padding="VALID", norm=Norm(decay=0.8, scale=True))
        x = layers.dropout(layers.flatten(x), 0.7)
        logits = layers.dense(x, self.classes, activation=None, logits=True)
        return Forward(tf.cast(logits, tf.float32), layers.new_state)
