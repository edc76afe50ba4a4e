"""One tower's arithmetic: forward and backward of its share of the batch, on the device in scope."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from gputopo.launch.core.inputs.source import Source, rows_of
from gputopo.launch.core.models import Forward, Model, loss_of
from gputopo.launch.spec import RunSpec

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
    """What a tower gives: its mean loss, the gradients of its share, and the state after its batch."""

    loss: Tensor
    gradients: list[Tensor]
    state: list[Tensor]


class TowerMath:
    """Forward and backward of any tower of a run."""

    def __init__(self, model: Model, spec: RunSpec, source: Source) -> None:
        self._model = model
        self._spec = spec
        self._source = source
        self._rows = rows_of(spec)

    def differentiate(self, turn: Turn) -> Share:
        """Go forward and backward."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(turn.weights)
            passed, labels = self.forward(turn)
            loss = tf.reduce_mean(loss_of(self._model, passed.logits, labels))
            share = loss * self._share()
        return Share(loss, tape.gradient(share, turn.weights), passed.state)

    def forward(self, turn: Turn, *, scale: float = 1.0) -> tuple[Forward, Tensor]:
        """Go forward; give the outcome and the labels. `scale`: of the images."""
        images, labels = self._source.read(turn.tower, turn.fed)
        if scale != 1.0:
            images *= scale
        rows = self._rows[turn.tower]
        rows = replace(rows, stream=replace(rows.stream, step=turn.number))
        passed = self._model.forward(turn.weights, turn.state, images, rows, self._spec.data_format)
        return passed, labels

    def added_work(self, turn: Turn) -> list[Tensor]:
        """Go forward again, as often as the spec says for this tower, each time on other numbers.

        The numbers differ so that TensorFlow does not notice that the work is the same. Gives the logits.
        """
        times = self._spec.extra_forward.get(turn.tower, 0)
        return [self.forward(turn, scale=1.0 + (again + 1) / 1024)[0].logits for again in range(times)]

    def _share(self) -> float:
        """Scale of a tower's loss: gradients that are added up give the mean; a lone tower's is its own."""
        averaged = self._spec.grad_reduce == "mean" and self._spec.variable_update != "independent"
        return 1.0 / len(self._rows) if averaged else 1.0
