"""One training step of all towers as one graph: forward, backward, reduce, update.

Each tower reads its weights and goes forward and backward (`towers`). The placement reduces the gradients to
one total for each variable, and the updater changes the variables by the totals (`updating`).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from gputopo.launch.models.model import Model
from gputopo.launch.spec.names import host_of
from gputopo.launch.spec.rules import remarks
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.drills import Drills, drilled
from gputopo.launch.train.inputs.source import Source
from gputopo.launch.train.loop import ScaleReport, StepOutcome, unequal_batches
from gputopo.launch.train.marks.exchange import exchange_marks
from gputopo.launch.train.marks.hosts import HostClocks
from gputopo.launch.train.marks.reading import Marks, clock, row_of
from gputopo.launch.train.placement import checking
from gputopo.launch.train.placement.cut_variables import parts_of, slots_of
from gputopo.launch.train.placement.devices import HOST, done_by_host, home, tower_groups
from gputopo.launch.train.placement.interface import Placement
from gputopo.launch.train.placement.variables import VariableSet, read_state, write_state
from gputopo.launch.train.precision import LossScale
from gputopo.launch.train.towers import TowerInput, TowerMath, TowerOutput, hits
from gputopo.launch.train.updating import Updater

Tensor = Any
Operation = Any

# A variable of so many numbers (4 MiB) changes as soon as nothing reads it any more. With all of them so,
# resnet20, which has none of this size, takes 1 to 2 % more time, and ResNet-50 no less memory.
_LARGE = 1 << 20
# Ops whose output is their input under another name or shape: who reads that reads the same memory.
_VIEWS = frozenset({"Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "StridedSlice"})


@dataclass(frozen=True)
class _Tower:
    """What a tower adds to the step's graph."""

    loss: Tensor
    weights: list[Tensor]
    gradients: list[Tensor]
    state: list[Tensor]
    marks: Tensor  # [3], seconds of the host's clock
    hits: Tensor  # [2], on the host; zeros where not requested


class GraphStep:
    """What a step that is one graph with an `Updater` reports to the loop and to checkpoints.

    A subclass sets `_spec`, `_updater` and `_graph`, the wrapped function of the step.
    """

    _spec: RunSpec
    _updater: Updater
    _graph: Any

    @property
    def slots(self) -> Sequence[Sequence[Sequence[Any]]]:
        """The updater's slots: [place][variable][slot]."""
        return self._updater.slots

    @property
    def own_slots(self) -> int:
        """Number of slots of each variable itself."""
        return self._updater.own_slots

    @property
    def scale_variables(self) -> Sequence[Sequence[Any]]:
        """The state of an automatic loss scale, which a checkpoint holds as well."""
        return self._updater.scale_variables

    def scale_report(self) -> ScaleReport | None:
        """Return the current loss scale, after a step; None where nothing is scaled."""
        return self._updater.report()

    def graph_nodes(self) -> Sequence[Any]:
        """Return the nodes of the step as built, before TensorFlow rewrites it: name, op, device, attr."""
        nodes: Sequence[Any] = self._graph.graph.as_graph_def().node
        return nodes

    def check_ops(self, counts: Counter[tuple[int, str]]) -> dict[str, int]:
        """Compare the ops' devices with the towers'."""
        return checking.check_ops(counts, self._spec)


class TrainingStep(GraphStep):
    """The compiled step of our own towers: a `Stepper`. Variables change where they live."""

    def __init__(self, model: Model, spec: RunSpec, placement: Placement, source: Source) -> None:
        self._model = model
        self._spec = spec
        self.placement = placement
        self.drills = Drills(spec)
        self.source = source = drilled(source, self.drills)
        scale = LossScale(spec)
        self._math = TowerMath(model, spec, source, scale)
        self._updater = Updater(
            VariableSet(placement.stored, placement.states),
            spec.optimization,
            spec.learning_rate,
            scale,
            independent=placement.waits == "own_copy",
        )
        self._marks = Marks()
        self._exchange: list[Tensor] = []  # its marks, where hosts exchange this step's gradients
        self._groups = tower_groups(spec)
        self._clocks = HostClocks(spec.devices)
        self.says: tuple[str, ...] = (*getattr(model, "says", ()), *remarks(spec))
        # wrap_function: unlike tf.function it does not put the clock readings of all towers in one row.
        signature = [tf.TensorSpec((), tf.int64), *source.signature]
        self._graph = tf.compat.v1.wrap_function(self._build, signature)

    @property
    def slots(self) -> Sequence[Sequence[Sequence[Any]]]:
        """The updater's slots: [place][variable of the model][slot]."""
        return [
            slots_of(variables, slots, self.own_slots)
            for variables, slots in zip(self.placement.places, self._updater.slots, strict=True)
        ]

    def __call__(self, number: int) -> StepOutcome:
        """Run one step and wait for its losses and marks. Raises StopIteration at the end of the input."""
        fed = self.source.feed(number)
        losses, begin, marks, right, _, *exchange = self._graph(tf.constant(number, tf.int64), *fed)
        asked = self._spec.lifecycle.training_accuracy
        began = begin.numpy()
        return StepOutcome(
            losses.numpy(),
            self._clocks.since(began, marks.numpy()),
            exchange=self._clocks.of_hosts(began, exchange[0].numpy()) if exchange else None,
            hits=right.numpy() if asked else None,
            examples=unequal_batches(self._spec),
        )

    def _build(self, number: Tensor, *fed: Tensor) -> tuple[Tensor, ...]:
        with home():
            return self._outcome(number, fed)

    def _outcome(self, number: Tensor, fed: Sequence[Tensor]) -> tuple[Tensor, ...]:
        waits = self.placement.waits
        begin = clock([])
        towers: list[_Tower] = []
        updates: list[Tensor] = []
        starts: dict[int, list[Tensor]] = {}  # of the next group of a host, by its rank
        for numbers in self._groups:
            rank = self._spec.devices[numbers[0]].rank
            start = starts.get(rank, [begin])
            group = [self._forward_backward(tower, number, fed, start) for tower in numbers]
            starts[rank] = [tower.marks for tower in group]
            if waits == "own_copy":
                changed = [
                    op
                    for place, tower in zip(numbers, group, strict=True)
                    for op in self._reduce_update([tower], number, after=[tower.marks], place=place)
                ]
                updates += changed
                starts[rank] += changed
            towers += group
        if waits == "each_tower":
            for tower, batch in zip(towers, self._spec.batches, strict=True):
                part = batch / self._spec.joint_batch
                updates += self._reduce_update([tower], number, after=[tower.marks], part=part)
        elif waits != "own_copy":
            after = [tower.marks for tower in towers] if waits == "all" else []
            updates += self._reduce_update(towers, number, after=after)
        stored = self._store(towers, updates)
        with tf.device(HOST), tf.control_dependencies(done_by_host(updates + stored)):
            losses = tf.stack([tower.loss for tower in towers])  # [towers]
            marks = tf.stack([tower.marks for tower in towers])  # [towers, 3]
            right = tf.stack([tower.hits for tower in towers])  # [towers, 2]
            # The probes are part of the outcome so that no graph optimizer may drop their copies to the host.
            return losses, tf.identity(begin), marks, right, tf.add_n(self._marks.probes), *self._exchange

    def _forward_backward(
        self, tower: int, number: Tensor, fed: Sequence[Tensor], start: Sequence[Tensor]
    ) -> _Tower:
        """Build both passes of one tower and its time marks; it starts after `start`."""
        device = self._spec.devices[tower].device
        host = host_of(device)
        with tf.name_scope(f"tower_{tower}"):
            started = clock(start, host)
            with tf.control_dependencies([started]):
                weights = self.placement.weights(tower)
            # Statistics of another host leave it as the step begins: waiting for this tower's start, they
            # would queue behind the first tower's computing there.
            with tf.control_dependencies([] if self._spec.devices[tower].rank else [started]):
                state = read_state(self.placement, tower, device)
            ready = clock([self._marks.arrived(weights, device)], host)
            late = self.drills.weights_arrived(tower, started, ready)
            if late is not None:
                ready = clock([late], host)
            given = TowerInput(tower, number, weights, state, fed)
            # CPU devices have few threads: without this a mark could come after the work that it precedes.
            gate = [ready] if self._spec.backend == "cpu" or late is not None else []
            with tf.control_dependencies(gate), tf.device(device):
                made = self._math.forward_backward(given)
            done = clock([self._marks.arrived(made.gradients, device)], host)
            late = self.drills.computed(tower, ready, done)
            if late is not None:
                done = clock([late], host)
            made = _as_drilled(made, device, self.drills.spoiled(tower), [] if late is None else [done])
            marks = row_of([started, ready, done], host)
            if self._spec.lifecycle.training_accuracy:
                with tf.device(device):
                    right = hits(self._model, made.logits, made.labels)
            else:
                with tf.device(HOST):
                    right = tf.zeros((2,))
        with tf.device(HOST):
            loss, right = tf.identity(made.loss), tf.identity(right)
        return _Tower(loss, weights, made.gradients, made.state, marks, right)

    def _reduce_update(
        self,
        towers: Sequence[_Tower],
        number: Tensor,
        *,
        after: Sequence[Tensor],
        place: int = 0,
        part: float = 1.0,
    ) -> list[Tensor]:
        """Reduce these towers' gradients, and change the places from `place` on once `after` is there.

        `part`: see `Updater.update`.
        """
        # This step's gradients; buffered ones are reduced while the towers compute.
        fresh = not self.placement.buffers
        # Groups of CPU devices: beside the last group a reduction would count as its computing.
        in_groups = len(self._groups) > len(self._spec.ranks)
        last = fresh and in_groups and self.placement.waits in ("all", "each_tower")
        early = fresh and not last and self._spec.backend == "cpu"
        with tf.name_scope("update"):
            with tf.control_dependencies(list(after) if last else []):
                gradients = [tower.gradients for tower in towers]
                totals = self.placement.totals(gradients)
            if len(self._spec.ranks) > 1 and fresh and self.placement.waits == "all":
                self._exchange = [exchange_marks(self._marks, self._spec.devices, gradients, totals)]
            if early and self.placement.waits in ("all", "own_copy"):
                totals = self._once_read(totals, towers, place=place, after=after)
                after = []
            # Waiting keeps the update in place. A weight still being read would be copied first, and then lie
            # elsewhere: 230 MiB more in ResNet-50 on a CPU, as memory becomes fragmented.
            with tf.control_dependencies(list(after)):
                return self._updater.update(totals, number, first=place, part=part)

    def _once_read(
        self,
        totals: Sequence[Sequence[Tensor]],
        towers: Sequence[_Tower],
        *,
        place: int,
        after: Sequence[Tensor],
    ) -> list[list[Tensor]]:
        """Delay each total: a large variable's until no tower reads the variable any more, others by `after`.

        So a large gradient's memory is free again while the backward pass goes on.
        """
        needed = needed_for([*after, *(gradient for tower in towers for gradient in tower.gradients)])
        delayed: list[list[Tensor]] = []
        for number, own in enumerate(totals, start=place):
            delayed.append([])
            stored = self.placement.stored[number]
            indices = [
                index for index, one in enumerate(self.placement.places[number]) for _ in parts_of(one)
            ]
            for index, variable, total in zip(indices, stored, own, strict=True):
                reads = [op for tower in towers for op in readers_of(tower.weights[index], needed)]
                before = reads if _is_large(variable) else after
                with tf.device(variable.device), tf.control_dependencies(before):
                    delayed[-1].append(tf.identity(total))
        return delayed

    def _store(self, towers: Sequence[_Tower], updates: Sequence[Tensor]) -> list[Tensor]:
        """Store what the next step needs beside the variables."""
        with tf.name_scope("update"):
            stored = self.placement.store(
                [tower.weights for tower in towers], [tower.gradients for tower in towers], updates
            )
            with tf.control_dependencies([tower.marks for tower in towers]):
                states = self._updater.accepted([tower.state for tower in towers])
                return stored + write_state(self.placement, states)

    def check_variables(self) -> dict[str, int]:
        """Compare the variables' devices with the spec."""
        return checking.check_placement(self.placement, self._spec)


def _as_drilled(
    made: TowerOutput, device: str, factor: Tensor | None, after: Sequence[Tensor]
) -> TowerOutput:
    """Return what a tower made, after what it waits for and times a factor, if there is one."""
    if not after and factor is None:
        return made
    with tf.device(device), tf.control_dependencies(list(after)):
        loss, *gradients = (
            tf.identity(one) if factor is None else one * factor for one in (made.loss, *made.gradients)
        )
    return replace(made, loss=loss, gradients=gradients)


def _is_large(variable: Any) -> bool:
    return bool(variable.shape.num_elements() >= _LARGE)


def needed_for(tensors: Iterable[Tensor]) -> frozenset[Operation]:
    """Return the ops that must run for these tensors. TensorFlow prunes all others from a step."""
    found: set[Operation] = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [source.op for source in op.inputs]
            waiting += op.control_inputs
    return frozenset(found)


def readers_of(value: Tensor, needed: frozenset[Operation]) -> list[Operation]:
    """Return the ops among the `needed` that read the value, or a view of it.

    When they are done its memory may change. One that was missed would cost memory and nothing else:
    TensorFlow gives a variable that is still being read new memory for its new value.
    """
    readers: list[Operation] = []
    for op in value.consumers():
        if op in needed:
            views = _views_of(value, op) if op.type in _VIEWS else []
            of_views = [reader for view in views for reader in readers_of(view, needed)]
            readers += of_views or [op]
    return readers


def _views_of(value: Tensor, op: Operation) -> list[Tensor]:
    """Return the outputs of an op that are the value."""
    return [view for source, view in zip(op.inputs, op.outputs, strict=False) if source is value]
