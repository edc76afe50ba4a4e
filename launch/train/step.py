"""One training step of all towers as one graph: forward, backward, reduce, update.

Each tower reads its weights and runs its forward and backward pass (`towers`). The placement reduces the
gradients to one total for each variable. The updater changes the variables by the totals (`updating`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gputopo.launch.models.model import Model
from gputopo.launch.spec.rules import remarks
from gputopo.launch.train.graph_step import GraphStep
from gputopo.launch.train.inputs.source import InputSource
from gputopo.launch.train.marks import HostMarks, clock
from gputopo.launch.train.placement.cut_variables import slots_of
from gputopo.launch.train.placement.devices import HOST, done_by_host, home, tower_groups
from gputopo.launch.train.placement.placements import Placement
from gputopo.launch.train.placement.variables import VariableSet, write_state
from gputopo.launch.train.stepper import StepOutcome, unequal_batches
from gputopo.launch.train.towers import TowerMath
from gputopo.values.run.spec import RunSpec

Tensor = Any


@dataclass(frozen=True)
class _Tower:
    """A tower's tensors in the step's graph."""

    loss: Tensor
    weights: list[Tensor]
    gradients: list[Tensor]
    state: list[Tensor]
    marks: Tensor  # [3], seconds of its host's clock


class TrainingStep(GraphStep):
    """The compiled step of gputopo's own towers. Variables are updated on their own devices."""

    placement: Placement

    def __init__(self, model: Model, spec: RunSpec, placement: Placement, source: InputSource) -> None:
        super().__init__(model, spec, source)
        self.placement = placement
        self.optimize(
            VariableSet(placement.stored, placement.states), independent=placement.waits == "own_copy"
        )
        self.math = TowerMath(model, spec, source, self.scale)
        self.slots = [
            slots_of(variables, slots) for variables, slots in zip(placement.places, self.slots, strict=True)
        ]
        self.says += remarks(spec)
        self._clocks = HostMarks(spec.devices)
        self._exchange: list[Tensor] = []  # its marks, if hosts exchange this step's gradients
        self.graph = self.compiled(self._build)

    def __call__(self, number: int) -> StepOutcome:
        """Run one step and wait for its losses and marks. Raises StopIteration at the end of the input."""
        fed = self.source.feed(number)
        losses, begin, marks, _, *exchange = self.graph(tf.constant(number, tf.int64), *fed)
        began = begin.numpy()
        since = self._clocks.since(began, marks.numpy())
        exchanged = self._clocks.exchanges(began, since, exchange[0].numpy()) if exchange else ()
        return StepOutcome(losses.numpy(), since, exchange=exchanged, examples=unequal_batches(self.spec))

    def _build(self, number: Tensor, *fed: Tensor) -> tuple[Tensor, ...]:
        """Build the step: forward and backward of all towers, then reduce and update (`Placement.waits`)."""
        waits = self.placement.waits
        towers: list[_Tower] = []
        changes: list[Tensor] = []
        with home():
            begin = clock([])
            for groups in tower_groups(self.spec):  # the groups of a host run one after another
                start = [begin]
                for group in groups:
                    passed = []
                    for place in group:
                        (loss, *gradients), weights, state, marks = self.passed(place, number, fed, start)
                        with tf.device(HOST):
                            loss = tf.identity(loss)
                        passed.append(_Tower(loss, weights, gradients, state, marks))
                    start = [tower.marks for tower in passed]
                    towers += passed
                    if waits == "own_copy":
                        for place, tower in zip(group, passed, strict=True):
                            start += self._reduce_update([tower], number, after=[tower.marks], place=place)
                        changes += start[len(group) :]
            if waits == "each_tower":
                for count, (tower, batch) in enumerate(zip(towers, self.spec.batches, strict=True)):
                    part = batch / self.spec.joint_batch
                    with tf.device(HOST):
                        update = number * len(towers) + count
                    changes += self._reduce_update(
                        [tower], number, after=[tower.marks], part=part, update=update
                    )
            elif waits != "own_copy":
                after = [tower.marks for tower in towers] if waits == "all" else []
                changes += self._reduce_update(towers, number, after=after)
            stored = self._store(towers, changes)
            with tf.device(HOST), tf.control_dependencies(done_by_host(changes + stored)):
                losses = tf.stack([tower.loss for tower in towers])  # [towers]
                marks = tf.stack([tower.marks for tower in towers])  # [towers, 3]
                # The probes are outputs so that no optimizer drops their copies to the host.
                return losses, tf.identity(begin), marks, tf.add_n(self.marks.probes), *self._exchange

    def _reduce_update(
        self,
        towers: Sequence[_Tower],
        number: Tensor,
        *,
        after: Sequence[Tensor],
        place: int = 0,
        part: float = 1.0,
        update: Tensor | None = None,
    ) -> list[Tensor]:
        """Reduce these towers' gradients, and update the places from `place` on once `after` is done.

        `part`, `update`: see `Updater.update`.
        """
        gradients = [tower.gradients for tower in towers]
        # If groups of CPU towers run in turn, a reduction during the last group would count as its computing.
        # Buffered gradients of the previous step are reduced while the towers compute.
        in_groups = any(len(of_host) > 1 for of_host in tower_groups(self.spec))
        last = in_groups and not self.placement.stale and self.placement.waits != "own_copy"
        operations = tf.compat.v1.get_default_graph().get_operations
        with tf.name_scope("update"):
            begun = len(operations())
            with tf.control_dependencies(list(after) if last else []):
                totals = self.placement.totals(gradients)  # reduce
            ops = operations()[begun:]
            self._exchange = self._clocks.exchange(self.marks, self.placement, gradients, totals, ops)
            early = self.placement.waits in ("all", "own_copy") and not self.placement.stale
            return self.updater.update(
                totals, number, after=after, early=early, first=place, part=part, update=update
            )

    def _store(self, towers: Sequence[_Tower], changes: Sequence[Tensor]) -> list[Tensor]:
        """Store the statistics, and the buffers that the next step needs in addition to the variables."""
        with tf.name_scope("update"):
            stored = self.placement.store(
                [tower.weights for tower in towers], [tower.gradients for tower in towers], changes
            )
            with tf.control_dependencies([tower.marks for tower in towers]):
                states = self.updater.accepted([tower.state for tower in towers])
                return stored + write_state(self.placement, states)
