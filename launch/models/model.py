"""The interface between a model and the training core."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from gputopo.launch.models.layers import DataFormat, Stream, TowerRows, cut_normal
from gputopo.workload import Loss

Tensor = Any


@dataclass(frozen=True)
class VariableSpec:
    """A variable: its name, its shape and its initial values, which are normal with `stddev` or all `start`.

    `values`: if given, returns the initial values as an array instead.
    """

    name: str
    shape: tuple[int, ...]
    stddev: float
    start: float = 0.0
    values: Callable[[], Any] | None = None

    def initial(self, stream: Stream) -> Tensor:
        """Return the initial values; normal ones are cut at two deviations. Equal streams: equal values."""
        if self.values is not None:
            return tf.constant(self.values())
        if self.stddev == 0.0:
            return tf.fill(self.shape, self.start)
        return cut_normal(stream, self.shape, self.stddev)


@dataclass(frozen=True)
class Forward:
    """Outcome of a forward pass: logits [batch, classes] in float32, and the state after this batch.

    `added`: the model's own addition to the mean loss (regularisers), a float32 scalar.
    """

    logits: Tensor
    state: list[Tensor]
    added: Tensor | None = None


class Model(Protocol):
    """The model as the training core uses it."""

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one image."""

    @property
    def classes(self) -> int:
        """Number of classes; 1 for a single yes-or-no output."""

    @property
    def loss(self) -> Loss:
        """`softmax` over classes, or `sigmoid` of one number."""

    @property
    def variables(self) -> Sequence[VariableSpec]:
        """All trainable variables, in the order of `forward`'s weights."""

    @property
    def state(self) -> Sequence[VariableSpec]:
        """Variables that change without a gradient, such as the moving statistics of norms."""

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
        """Run the network on images in `data_format` ([batch, h, w, c] or [batch, c, h, w])."""


def parameter_count(model: Model) -> int:
    """Return the number of trainable parameters."""
    return sum(math.prod(spec.shape) for spec in model.variables)


def loss_of(model: Model, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of each example [batch] for labels [batch] in [0, classes), or in {0, 1}.

    A model may have its own `losses(logits, labels)`.
    """
    losses = getattr(model, "losses", None)
    if losses is not None:
        return losses(logits, labels)
    if model.loss == "sigmoid":
        wanted = tf.cast(labels, tf.float32)
        return tf.nn.sigmoid_cross_entropy_with_logits(wanted, tf.reshape(logits, (-1,)))
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
