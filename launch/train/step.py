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

from gputopo.launch.models.models import Model
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.accuracy import hits
from gputopo.launch.train.inputs.source import Source
from gputopo.launch.train.marks import Marks, clock, row_of
from gputopo.launch.train.ordering import needed_for, put_after, readers_of
from gputopo.launch.train.placement.devices import HOST, turn_width
from gputopo.launch.train.placement.placements import Placement, read_state, write_state
from gputopo.launch.train.precision import LossScale
from gputopo.launch.train.towers import Share, TowerMath, Turn
from gputopo.launch.train.updating import Updater

Tensor = Any
_START, _WEIGHTS, _GRADIENTS = range(3)  # a tower's marks

# A variable of so many numbers (4 MiB) changes as soon as nothing reads it any more. With all of them so,
# resnet20, which has none of this size, takes 1 to 2 % more time, and ResNet-50 no less memory.
_LARGE = 1 << 20
_HUGE = 8 << 20  # 32 MiB: dense layers of AlexNet and VGG; that of AlexNet's widest is 144 MiB


@dataclass(frozen=True)
class StepOutcome:
    """What one step gives: losses [towers], and marks [towers, 3] in seconds from the step's start.

    Marks: the tower starts; its weights are on its device; its gradients are done. `hits` [towers, 2], where
    they were asked for: examples whose label was the first guess, and among the first five. `examples`
    [towers]: how many there were, None: a whole batch each.
    """

    losses: np.ndarray[Any, Any]
    marks: np.ndarray[Any, Any]
    hits: np.ndarray[Any, Any] | None = None
    examples: np.ndarray[Any, Any] | None = None


@dataclass(frozen=True)
class _Tower:
    loss: Tensor
    weights: list[Tensor]
    gradients: list[Tensor]
    state: list[Tensor]
    marks: Tensor  # [3], seconds of the host's clock
    hits: Tensor  # [2], on the host; zeros where nobody asked


class TrainingStep:
    """The compiled step. Call it with a step number; variables change where they live."""

    def __init__(self, model: Model, spec: RunSpec, placement: Placement, source: Source) -> None:
        self._model = model
        self._spec = spec
        self._placement = placement
        self._source = source
        scale = LossScale(spec)
        self._math = TowerMath(model, spec, source, scale)
        self.updater = Updater(placement, spec.optimization, spec.learning_rate, scale)
        self._marks = Marks()
        self._width = turn_width(spec)
        # What was kept of the step before is reduced while the towers compute.
        at_end = placement.waits != "turn" and not placement.buffers
        self._common_at_end = at_end and self._width < len(spec.devices)
        is_plain = placement.waits in ("all", "turn") and not placement.buffers
        self._early = is_plain and not self._common_at_end and spec.backend == "cpu"
        # wrap_function: unlike tf.function it does not put the clock readings of all towers in one row.
        signature = [tf.TensorSpec((), tf.int64), *source.signature]
        self._graph = tf.compat.v1.wrap_function(self._build, signature)

    def __call__(self, number: int) -> StepOutcome:
        """Run one step and wait for its losses and marks. Raises StopIteration at the end of the input."""
        fed = self._source.feed(number)
        losses, begin, marks, _, hits = self._graph(tf.constant(number, tf.int64), *fed)
        asked = self._spec.lifecycle.training_accuracy
        return StepOutcome(
            losses.numpy(), marks.numpy() - begin.numpy(), hits=hits.numpy() if asked else None
        )

    def graph_nodes(self) -> Sequence[Any]:
        """Give the nodes of the step as built, before TensorFlow rewrites it: name, op, device, attr."""
        nodes: Sequence[Any] = self._graph.graph.as_graph_def().node
        return nodes

    def _build(self, number: Tensor, *fed: Tensor) -> tuple[Tensor, ...]:
        begin = clock([])
        towers: list[_Tower] = []
        updates: list[Tensor] = []
        before = [begin]
        for first in range(0, len(self._spec.devices), self._width):
            turn = [self._tower(tower, number, fed, before) for tower in range(first, first + self._width)]
            before = [tower.marks for tower in turn]
            if self._placement.waits == "turn":
                ended = self._own_updates(turn, number, first=first)
                before = [*before, *ended]
                updates += ended
            towers += turn
        if self._placement.waits != "turn":
            updates = self._common_updates(towers, number)
        kept = self._keep(towers, updates)
        with tf.device(HOST), tf.control_dependencies(updates + kept):
            losses = tf.stack([tower.loss for tower in towers])  # [towers]
            marks = tf.stack([tower.marks for tower in towers])  # [towers, 3]
            # The probes are part of the outcome so that no graph optimiser may drop their copies to the host.
            hits = tf.stack([tower.hits for tower in towers])  # [towers, 2]
            return losses, tf.identity(begin), marks, tf.add_n(self._marks.probes), hits

    def _tower(self, tower: int, number: Tensor, fed: Sequence[Tensor], turn: list[Tensor]) -> _Tower:
        """Build one tower: it starts when `turn` is done."""
        device = self._spec.devices[tower].device
        with tf.name_scope(f"tower_{tower}"):
            start = clock(turn)
            with tf.control_dependencies([start]):
                weights = self._placement.weights(tower)
                state = read_state(self._placement, tower, device)
            ready = clock([self._marks.arrived(weights, device)])
            has = Turn(tower, number, weights, state, fed)
            # CPU devices have few threads: without this a mark could come after the work that it precedes.
            gate = [ready] if self._spec.backend == "cpu" else []
            with tf.control_dependencies(gate), tf.device(device):
                share = self._math.differentiate(has)
            with tf.control_dependencies(share.gradients), tf.device(device):
                added = self._math.added_work(has)
            work = [self._marks.arrived([logits], device) for logits in added]
            done = clock([self._marks.arrived(share.gradients, device), *work])
            marks = row_of([start, ready, done])
            hits = self._hits(share, device)
        with tf.device(HOST):
            return _Tower(
                tf.identity(share.loss), weights, share.gradients, share.state, marks, tf.identity(hits)
            )

    def _hits(self, share: Share, device: str) -> Tensor:
        if not self._spec.lifecycle.training_accuracy:
            with tf.device(HOST):
                return tf.zeros((2,))
        with tf.device(device):
            return hits(self._model, share.logits, share.labels)

    def _own_updates(self, turn: Sequence[_Tower], number: Tensor, *, first: int) -> list[Tensor]:
        """Change the variables of independent towers, whose places begin with `first`.

        On CPU devices that run at once half of the towers make their huge gradients last, when those of the
        other half are used up: AlexNet on 4 devices of 2 cores takes 140 to 200 MiB less so; the gradient
        of its widest layer has 144. (Not last, only after the other half's, they cost 5 % of its speed on 2
        devices, as one thread then had nothing to do at the end.)
        """
        ended = [
            self._update([tower], number, after=[tower.marks], first=place)
            for place, tower in enumerate(turn, start=first)
        ]
        if self._early and self.updater.has_op_for_each:
            for ops, later in zip(ended, turn[(len(turn) + 1) // 2 :], strict=False):
                rest = [one.op for one in later.gradients if not _has(one, _HUGE)]
                for op, gradient in zip(ops, later.gradients, strict=False):
                    if _has(gradient, _HUGE):
                        put_after(gradient, [op, *rest])
        return [op for ops in ended for op in ops]

    def _common_updates(self, towers: Sequence[_Tower], number: Tensor) -> list[Tensor]:
        """Change the variables that the towers have in common, or that are to stay equal."""
        if self._placement.waits == "own":
            part = 1.0 / len(towers)
            return [
                op for tower in towers for op in self._update([tower], number, after=[tower.marks], part=part)
            ]
        after = [tower.marks for tower in towers] if self._placement.waits == "all" else []
        return self._update(towers, number, after=after)

    def _update(
        self,
        towers: Sequence[_Tower],
        number: Tensor,
        *,
        after: Sequence[Tensor],
        first: int = 0,
        part: float = 1.0,
    ) -> list[Tensor]:
        """Change the places from `first` on by these towers' gradients; wait for `after`.

        `part`: see `Updater.update`.
        """
        with tf.name_scope("update"):
            gradients = [tower.gradients for tower in towers]
            # CPU devices that take turns: beside the last turn a reduction would count as its computing.
            with tf.control_dependencies(list(after) if self._common_at_end else []):
                totals = self._placement.totals(gradients)
            # Waiting keeps the update in place. A weight still being read would be copied first, and then lie
            # elsewhere: ResNet-50 comes to take 230 MiB more so on a CPU, the memory around it in pieces.
            if self._early:
                held = self._held_back(totals, towers, first=first, after=after)
                return self.updater.update(held, number, first=first, part=part)
            with tf.control_dependencies(list(after)):
                return self.updater.update(totals, number, first=first, part=part)

    def _held_back(
        self,
        totals: Sequence[Sequence[Tensor]],
        towers: Sequence[_Tower],
        *,
        first: int,
        after: Sequence[Tensor],
    ) -> list[list[Tensor]]:
        """Hold a large variable's total back until no tower reads it any more, a small one's for `after`.

        So a large gradient's memory is free again while the backward pass goes on.
        """
        needed = needed_for([*after, *(gradient for tower in towers for gradient in tower.gradients)])
        held: list[list[Tensor]] = []
        for place, own in enumerate(totals, start=first):
            held.append([])
            for index, (variable, total) in enumerate(zip(self._placement.places[place], own, strict=True)):
                reads = [op for tower in towers for op in readers_of(tower.weights[index], needed)]
                before = reads if _has(variable, _LARGE) else after
                with tf.device(variable.device), tf.control_dependencies(before):
                    held[-1].append(tf.identity(total))
        return held

    def _keep(self, towers: Sequence[_Tower], updates: Sequence[Tensor]) -> list[Tensor]:
        """Keep what the next step needs beside the variables."""
        placement = self._placement
        with tf.name_scope("update"):
            kept = placement.keep(
                [tower.weights for tower in towers], [tower.gradients for tower in towers], updates
            )
            with tf.control_dependencies([tower.marks for tower in towers]):
                states = self.updater.admitted([tower.state for tower in towers])
                return kept + write_state(placement, states)


def _has(numbers: Any, least: int) -> bool:
    count = numbers.shape.num_elements()
    return count is not None and count >= least


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
