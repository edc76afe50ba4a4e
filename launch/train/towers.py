"""Forward and backward pass of one tower over its rows of the batch, on the device in scope."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from gputopo.launch.models.layers import TYPES
from gputopo.launch.models.model import Forward, Model, loss_of
from gputopo.launch.train.inputs.source import InputSource, rows_of
from gputopo.launch.train.loss_scale import LossScale
from gputopo.values.run.spec import RunSpec

Tensor = Any

TOP = 5  # guesses in top-5 accuracy


class TowerMath:
    """Forward and backward pass of any tower of a run, in the spec's type, compiled by XLA if requested.

    Weights are float32 up to the layer that uses them, so that gradients are float32 too. Layers cast kernels
    to the type of the images; norms use their weights without a cast. `weights` and `state` are on the
    tower's device, in the model's order. `fed`: the tensors that the input feeds. `number`: the step's
    number.
    """

    def __init__(
        self, model: Model, spec: RunSpec, source: InputSource, scale: LossScale | None = None
    ) -> None:
        self._model = model
        self._spec = spec
        self._source = source
        self._scale = scale or LossScale(spec)
        self._rows = rows_of(spec)

    def forward_backward(
        self, tower: int, number: Tensor, weights: list[Tensor], state: list[Tensor], fed: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return the tower's mean loss, the gradients of its rows, and the state after its batch.

        All are float32. The loss scale is removed from the loss and the gradients.
        """
        # The factor makes the sum of the towers' gradients their mean, with the same weight for all examples.
        share = self._rows[tower].batch / self._spec.joint_batch
        if self._spec.variable_update == "independent":
            share = 1.0
        elif self._spec.grad_reduce == "sum":
            share = len(self._rows) * self._rows[tower].batch / self._spec.joint_batch
        images, labels = self._source.read(tower, fed)  # [batch, h, w, c]; [batch]
        scale = self._scale.of(tower)
        factors = [] if scale is None else [scale, 1.0 / scale]

        def both(
            number: Tensor,
            images: Tensor,
            labels: Tensor,
            weights: list[Tensor],
            state: list[Tensor],
            factors: list[Tensor],
        ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                passed = self.run_model(tower, number, weights, state, images)
                loss = tf.reduce_mean(loss_of(self._model, passed.logits, labels))  # of [batch]
                if passed.added is not None:
                    loss += passed.added
                scaled = loss * share
                if factors:
                    scaled *= factors[0]
            # A user's model may hold variables that its output does not depend on.
            gradients = tape.gradient(scaled, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            if factors:
                gradients = [gradient * factors[1] for gradient in gradients]
            for gradient, weight in zip(gradients, weights, strict=True):
                if isinstance(gradient, tf.Tensor):  # no shape after a user's Python function
                    gradient.set_shape(weight.shape)
            return loss, gradients, passed.state

        made: tuple[Tensor, list[Tensor], list[Tensor]]
        made = self.compiled(both)(number, images, labels, weights, state, factors)
        return made

    def forward(
        self, tower: int, number: Tensor, weights: list[Tensor], state: list[Tensor], fed: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the logits of the model in inference mode, and the labels."""
        images, labels = self._source.read(tower, fed)

        def once(number: Tensor, images: Tensor, weights: list[Tensor], state: list[Tensor]) -> Tensor:
            return self.run_model(tower, number, weights, state, images, training=False).logits

        return self.compiled(once)(number, images, weights, state), labels

    def run_model(
        self,
        tower: int,
        number: Tensor,
        weights: list[Tensor],
        state: list[Tensor],
        images: Tensor,
        *,
        training: bool = True,
    ) -> Forward:
        """Run the model on a tower's images."""
        images = tf.cast(images, TYPES[self._spec.precision.compute])
        rows = self._rows[tower]
        rows = replace(rows, stream=replace(rows.stream, step=number))
        return self._model.forward(weights, state, images, rows, self._spec.data_format, training=training)

    def compiled(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Compile by XLA if requested. Each tower is compiled by itself, as XLA compiles for one device."""
        if not self._spec.precision.xla:
            return work
        compiled: Callable[..., Any] = tf.function(work, jit_compile=True, autograph=False)
        return compiled


def hits(model: Model, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the numbers of examples (float32) whose label is the first guess, and among the first five.

    `logits` [batch, classes]; `labels` [batch], below 0 for a row without an example. Equal logits are ranked
    by class number, so that a constant output is not right. A row with a NaN is wrong.
    """
    if model.classes == 1:  # a single logit: yes if above zero
        right = tf.cast(tf.equal(tf.cast(tf.reshape(logits, (-1,)) > 0, labels.dtype), labels), tf.float32)
        return tf.stack([tf.reduce_sum(right), tf.reduce_sum(right)])
    ranked = tf.cast(tf.math.top_k(logits, min(TOP, model.classes)).indices, labels.dtype)  # [batch, guesses]
    is_number = tf.logical_not(tf.reduce_any(tf.math.is_nan(logits), 1, keepdims=True))
    right = tf.cast(tf.logical_and(tf.equal(ranked, labels[:, None]), is_number), tf.float32)
    return tf.stack([tf.reduce_sum(right[:, 0]), tf.reduce_sum(right)])
