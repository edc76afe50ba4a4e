"""One tower's arithmetic: forward and backward of its share of the batch, on the device in scope."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from gputopo.launch.models.kernels import require_kernels
from gputopo.launch.models.layers import Rows
from gputopo.launch.models.models import Forward, Model, loss_of
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.inputs.source import Source, rows_of
from gputopo.launch.train.precision import TYPES, LossScale

Tensor = Any


@dataclass(frozen=True)
class Turn:
    """What a tower works with in one step: all of it is on its device but the step's `number`.

    `weights` and `state` in the model's order; `fed`: what the input gives from outside the graph.
    """

    tower: int
    number: Tensor
    weights: list[Tensor]
    state: list[Tensor]
    fed: Sequence[Tensor] = ()


@dataclass(frozen=True)
class Share:
    """What a tower gives: its mean loss, the gradients of its share, and the state after its batch.

    All float32, and the loss and the gradients without any scale. `logits` [batch, classes] and `labels` of
    the same batch tell how many were right.
    """

    loss: Tensor
    gradients: list[Tensor]
    state: list[Tensor]
    logits: Tensor
    labels: Tensor


class TowerMath:
    """Forward and backward of any tower of a run, in the type that the spec says, by XLA if it says so.

    Weights stay float32 up to the layer that uses them: kernels are cast where they meet the images, norms
    take theirs as they are. So gradients come back in float32. Raises HardwareError if a device has no
    kernels for the type.
    """

    def __init__(self, model: Model, spec: RunSpec, source: Source, scale: LossScale | None = None) -> None:
        require_kernels(spec)
        self._model = model
        self._spec = spec
        self._source = source
        self._scale = scale or LossScale(spec)
        self._rows = rows_of(spec)

    def differentiate(self, turn: Turn) -> Share:
        """Go forward and backward."""
        images, labels = self._source.read(turn.tower, turn.fed)
        scale = self._scale.of(turn.tower)
        factors = [] if scale is None else [scale, 1.0 / scale]

        def both(
            number: Tensor,
            images: Tensor,
            labels: Tensor,
            weights: list[Tensor],
            state: list[Tensor],
            factors: list[Tensor],
        ) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                passed = self._pass(turn.tower, number, weights, state, images)
                loss = tf.reduce_mean(loss_of(self._model, passed.logits, labels))
                if passed.added is not None:
                    loss += passed.added
                share = loss * self._share()
                if factors:
                    share *= factors[0]
            # A user's model may hold variables that its output does not depend on.
            gradients = tape.gradient(share, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            if factors:
                gradients = [gradient * factors[1] for gradient in gradients]
            return loss, gradients, passed.state, passed.logits

        loss, gradients, state, logits = self._compiled(both)(
            turn.number, images, labels, turn.weights, turn.state, factors
        )
        return Share(loss, gradients, state, logits, labels)

    def forward(self, turn: Turn, *, scale: float = 1.0, training: bool = True) -> tuple[Forward, Tensor]:
        """Go forward; give the outcome and the labels. `scale`: of the images."""
        images, labels = self._source.read(turn.tower, turn.fed)

        def once(
            number: Tensor, images: Tensor, weights: list[Tensor], state: list[Tensor]
        ) -> tuple[Tensor, list[Tensor]]:
            if scale != 1.0:
                images *= scale
            passed = self._pass(turn.tower, number, weights, state, images, training=training)
            return passed.logits, passed.state

        logits, state = self._compiled(once)(turn.number, images, turn.weights, turn.state)
        return Forward(logits, state), labels

    def added_work(self, turn: Turn) -> list[Tensor]:
        """Go forward again, as often as the spec says for this tower, each time on other numbers.

        The numbers differ so that TensorFlow does not notice that the work is the same. Gives the logits.
        """
        times = self._spec.extra_forward.get(turn.tower, 0)
        return [self.forward(turn, scale=1.0 + (again + 1) / 1024)[0].logits for again in range(times)]

    def _pass(
        self,
        tower: int,
        number: Tensor,
        weights: list[Tensor],
        state: list[Tensor],
        images: Tensor,
        *,
        training: bool = True,
    ) -> Forward:
        images = tf.cast(images, TYPES[self._spec.precision.compute])
        rows = self._rows_at(tower, number)
        return self._model.forward(weights, state, images, rows, self._spec.data_format, training=training)

    def _rows_at(self, tower: int, number: Tensor) -> Rows:
        rows = self._rows[tower]
        return replace(rows, stream=replace(rows.stream, step=number, compiled=self._spec.precision.xla))

    def _compiled(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """Let XLA make one kernel chain of it. A tower each: XLA compiles for one device at a time."""
        if not self._spec.precision.xla:
            return work
        compiled: Callable[..., Any] = tf.function(work, jit_compile=True, autograph=False)
        return compiled

    def _share(self) -> float:
        """Scale of a tower's loss: gradients that are added up give the mean; a lone tower's is its own."""
        averaged = self._spec.grad_reduce == "mean" and self._spec.variable_update != "independent"
        return 1.0 / len(self._rows) if averaged else 1.0
