"""One training step of all towers as one graph: read weights, forward, backward, reduce, apply.

Time is marked inside the graph: a mark is a reading of the host's clock that depends on a scalar copied back
from the tower's device. So synchronous training still shows which device is slow, and nothing more than the
step's own result is waited for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.core.devices import HOST, turn_width
from gputopo.launch.core.inputs import SyntheticInput
from gputopo.launch.core.layers import Rows
from gputopo.launch.core.models import Forward, Model, loss_of
from gputopo.launch.core.placements import Placement, read_state, write_state
from gputopo.launch.core.randomness import Stream
from gputopo.launch.core.updating import Updater
from gputopo.launch.spec import RunSpec

Tensor = Any
_DROPOUT = 4  # purpose of a random stream
_MARKS = "marks/"  # a scope beside those of the towers: these ops are the host's on purpose
_START, _WEIGHTS, _GRADIENTS = range(3)  # a tower's marks


@dataclass(frozen=True)
class StepOutcome:
    """What one step gives: losses [towers], and marks [towers, 3] in seconds from the step's start.

    Marks: the tower starts; its weights are on its device; its gradients are done.
    """

    losses: np.ndarray[Any, Any]
    marks: np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Tower:
    loss: Tensor
    gradients: list[Tensor]
    state: list[Tensor]
    marks: Tensor  # [3], seconds of the host's clock


class TrainingStep:
    """The compiled step. Call it with a step number; variables change where they live."""

    def __init__(self, model: Model, spec: RunSpec, placement: Placement) -> None:
        self._model = model
        self._spec = spec
        self._placement = placement
        self._updater = Updater(placement, spec.optimization, spec.learning_rate)
        self._rows = [
            Rows(tower * spec.batch_size, spec.batch_size, Stream(spec.seed, _DROPOUT))
            for tower in range(len(spec.devices))
        ]
        self._inputs = [
            SyntheticInput(model, rows, device.device, seed=spec.seed, data_format=spec.data_format)
            for rows, device in zip(self._rows, spec.devices, strict=True)
        ]
        # wrap_function: unlike tf.function it does not put the clock readings of all towers in one row.
        self._probes: list[Tensor] = []
        self._graph = tf.compat.v1.wrap_function(self._build, [tf.TensorSpec((), tf.int64)])

    def __call__(self, number: int) -> StepOutcome:
        """Run one step and wait for its losses and marks."""
        losses, begin, marks, _ = self._graph(tf.constant(number, tf.int64))
        return StepOutcome(losses.numpy(), marks.numpy() - begin.numpy())

    def graph_nodes(self) -> Sequence[Any]:
        """Give the nodes of the step as built, before TensorFlow rewrites it: name, op, device, attr."""
        nodes: Sequence[Any] = self._graph.graph.as_graph_def().node
        return nodes

    def _build(self, number: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        begin = _clock([])
        towers: list[_Tower] = []
        width = turn_width(self._spec)
        for tower in range(len(self._rows)):
            before = towers[tower // width * width - width : tower // width * width]
            towers.append(self._tower(tower, number, [done.marks for done in before] or [begin]))
        updates = self._update(towers, number)
        with tf.device(HOST), tf.control_dependencies(updates):
            losses = tf.stack([tower.loss for tower in towers])  # [towers]
            marks = tf.stack([tower.marks for tower in towers])  # [towers, 3]
            # The probes are part of the outcome so that no graph optimiser may drop their copies to the host.
            return losses, tf.identity(begin), marks, tf.add_n(self._probes)

    def _tower(self, tower: int, number: Tensor, turn: list[Tensor]) -> _Tower:
        """Build one tower: it starts when `turn` is done."""
        device = self._spec.devices[tower].device
        with tf.name_scope(f"tower_{tower}"):
            start = _clock(turn)
            with tf.control_dependencies([start]):
                weights = self._placement.weights(tower)
                state = read_state(self._placement, tower, device)
            ready = _clock([self._arrived(weights, device)])
            # CPU devices have few threads: without this a mark could come after the work that it precedes.
            gate = [ready] if self._spec.backend == "cpu" else []
            with tf.control_dependencies(gate), tf.device(device):
                loss, gradients, new_state = self._differentiate(tower, number, weights, state)
            with tf.control_dependencies(gradients):
                added = self._added_work(tower, number, weights, state)
            done = _clock([self._arrived(gradients, device), *added])
            with tf.device(HOST), tf.name_scope(_MARKS):
                return _Tower(tf.identity(loss), gradients, new_state, tf.stack([start, ready, done]))

    def _differentiate(
        self, tower: int, number: Tensor, weights: list[Tensor], state: list[Tensor]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Forward and backward on the device in scope: mean loss, gradients of its share, new state."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            passed, labels = self._forward(tower, number, weights, state)
            loss = tf.reduce_mean(loss_of(self._model, passed.logits, labels))
            share = loss * self._share()
        return loss, tape.gradient(share, weights), passed.state

    def _share(self) -> float:
        """Scale of a tower's loss: gradients that are added up give the mean; a lone tower's is its own."""
        averaged = self._spec.grad_reduce == "mean" and self._spec.variable_update != "independent"
        return 1.0 / len(self._rows) if averaged else 1.0

    def _forward(
        self,
        tower: int,
        number: Tensor,
        weights: Sequence[Tensor],
        state: Sequence[Tensor],
        *,
        scale: float = 1.0,
    ) -> tuple[Forward, Tensor]:
        images, labels = self._inputs[tower].read()
        if scale != 1.0:
            images *= scale
        rows = self._rows[tower]
        rows = Rows(rows.first, rows.batch, Stream(rows.stream.seed, rows.stream.purpose, number))
        return self._model.forward(weights, state, images, rows, self._spec.data_format), labels

    def _added_work(
        self, tower: int, number: Tensor, weights: Sequence[Tensor], state: Sequence[Tensor]
    ) -> list[Tensor]:
        """Run the forward pass again, as often as the spec says for this tower, each on other numbers.

        The numbers differ so that TensorFlow does not notice that the work is the same.
        """
        device = self._spec.devices[tower].device
        extra = []
        for again in range(self._spec.extra_forward.get(tower, 0)):
            with tf.device(device):
                passed, _ = self._forward(tower, number, weights, state, scale=1.0 + (again + 1) / 1024)
            extra.append(self._arrived([passed.logits], device))
        return extra

    def _update(self, towers: Sequence[_Tower], number: Tensor) -> list[Tensor]:
        # Waiting for all towers keeps the update in place: a weight still being read would be copied first.
        with tf.name_scope("update"), tf.control_dependencies([tower.marks for tower in towers]):
            totals = self._placement.totals([tower.gradients for tower in towers])
            ops = self._updater.update(totals, number)
            return ops + write_state(self._placement, [tower.state for tower in towers])

    def _arrived(self, tensors: Sequence[Tensor], device: str) -> Tensor:
        """Give a number on the host that left the device after all the tensors were done there.

        A slice of the last tensor, taken on the device after the others were queued, and copied back.
        """
        with tf.control_dependencies(list(tensors)):
            with tf.device(device):
                first = tf.strided_slice(tf.reshape(tensors[-1], (-1,)), [0], [1])  # [1]
            with tf.device(HOST), tf.name_scope(_MARKS):
                probe = tf.negative(first)
        self._probes.append(probe)
        return probe


def _clock(after: Sequence[Tensor]) -> Tensor:
    """Read the host's clock (seconds since the epoch, float64) after the given tensors are there."""
    with tf.device(HOST), tf.name_scope(_MARKS), tf.control_dependencies(list(after)):
        return tf.timestamp()


def marks_of(outcome: StepOutcome) -> list[tuple[float, float, float]]:
    """Give (start, waiting for weights, computing) of each tower in seconds."""
    return [
        (
            float(marks[_START]),
            float(marks[_WEIGHTS] - marks[_START]),
            float(marks[_GRADIENTS] - marks[_WEIGHTS]),
        )
        for marks in outcome.marks
    ]
