"""Runs without training: how fast forward passes are, and how well a checkpoint does on examples.

Both follow the model as it is used: moving statistics in the norms, nothing dropped, no gradient, no update.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from gputopo.launch.models.model import Model, loss_of
from gputopo.launch.spec.names import host_of
from gputopo.launch.spec.run_spec import Exchange, RunSpec
from gputopo.launch.train.inputs.factory import source_of
from gputopo.launch.train.lifecycle.checkpoints import load_for_evaluation
from gputopo.launch.train.loop import Loop, StepOutcome, Stopped, VariableSets, never
from gputopo.launch.train.marks.hosts import HostClocks
from gputopo.launch.train.marks.reading import Marks, clock, row_of
from gputopo.launch.train.placement import checking
from gputopo.launch.train.placement.devices import HOST, home, tower_groups
from gputopo.launch.train.placement.placements import place
from gputopo.launch.train.placement.variables import read_state
from gputopo.launch.train.towers import TOP, TowerInput, TowerMath, hits
from gputopo.launch.train.training import NO_START, Start, built, observers
from gputopo.values.errors import UsageError
from gputopo.values.run.events import Evaluated, Event, Noticed, PhaseBegun, Resumed, Step

Tensor = Any
Emit = Callable[[Event], None]


class ForwardStep:
    """One forward pass of all towers as one graph, with the time marks of a training step.

    Its outcome holds the towers' mean losses over their real examples (labels below 0 stand for none), the
    number of these, and how many were right.
    """

    slots: Sequence[Sequence[Sequence[Any]]] = ()
    own_slots = 0

    def __init__(self, model: Model, spec: RunSpec) -> None:
        """Create the variables and the graph. Raises UsageError where somebody else takes the steps."""
        if spec.method is not None or spec.strategy is not None:
            raise UsageError(
                "forward passes and evaluations are made by gputopo's own towers",
                "leave out --method and --strategy: they differ in how gradients are taken and exchanged",
            )
        # How gradients travel plays no part; a strategy that buffers some would only use memory.
        plain = msgspec.structs.replace(
            spec, exchange=Exchange(ps_spread=spec.exchange.ps_spread), all_reduce=None
        )
        self._model = model
        self._spec = plain
        self.placement = place(model, plain)
        self.source = source_of(model, spec)
        self.says: tuple[str, ...] = tuple(getattr(model, "says", ()))
        self._math = TowerMath(model, plain, self.source)
        self._marks = Marks()
        self._clocks = HostClocks(spec.devices)
        signature = [tf.TensorSpec((), tf.int64), *self.source.signature]
        self._graph = tf.compat.v1.wrap_function(self._build, signature)  # as in TrainingStep

    def __call__(self, number: int) -> StepOutcome:
        """Take one step. Raises StopIteration at the end of the input."""
        fed = self.source.feed(number)
        losses, examples, right, begin, marks, _ = self._graph(tf.constant(number, tf.int64), *fed)
        return StepOutcome(
            losses.numpy(),
            self._clocks.since(begin.numpy(), marks.numpy()),
            hits=right.numpy(),
            examples=examples.numpy(),
        )

    def graph_nodes(self) -> Sequence[Any]:
        """Return the nodes of the step as built."""
        nodes: Sequence[Any] = self._graph.graph.as_graph_def().node
        return nodes

    def check_variables(self) -> dict[str, int]:
        """Compare the variables' devices with the spec."""
        return checking.check_placement(self.placement, self._spec)

    def check_ops(self, counts: Counter[tuple[int, str]]) -> dict[str, int]:
        """Compare the ops' devices with the towers'."""
        return checking.check_ops(counts, self._spec)

    def _build(self, number: Tensor, *fed: Tensor) -> tuple[Tensor, ...]:
        with home():
            return self._outcome(number, fed)

    def _outcome(self, number: Tensor, fed: Sequence[Tensor]) -> tuple[Tensor, ...]:
        begin = clock([])
        towers: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        starts: dict[int, list[Tensor]] = {}  # of the next group of a host, by its rank
        for numbers in tower_groups(self._spec):
            rank = self._spec.devices[numbers[0]].rank
            start = starts.get(rank, [begin])
            group = [self._tower(tower, number, fed, start) for tower in numbers]
            starts[rank] = [marks for *_, marks in group]
            towers += group
        with tf.device(HOST):
            losses, examples, right, marks = (tf.stack(column) for column in zip(*towers, strict=True))
            return losses, examples, right, tf.identity(begin), marks, tf.add_n(self._marks.probes)

    def _tower(
        self, tower: int, number: Tensor, fed: Sequence[Tensor], after: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Build one tower: return its loss, its number of examples, its hits [2] and its marks [3]."""
        device = self._spec.devices[tower].device
        host = host_of(device)
        with tf.name_scope(f"tower_{tower}"):
            start = clock(after, host)
            with tf.control_dependencies([start]):
                weights = self.placement.weights(tower)
                state = read_state(self.placement, tower, device)
            ready = clock([self._marks.arrived(weights, device)], host)
            gate = [ready] if self._spec.backend == "cpu" else []
            with tf.control_dependencies(gate), tf.device(device):
                given = TowerInput(tower, number, weights, state, fed)
                passed, labels = self._math.forward(given, training=False)
                real = tf.cast(labels >= 0, tf.float32)  # [batch]
                count = tf.reduce_sum(real)
                zero = tf.zeros_like(labels)
                of_each = loss_of(self._model, passed.logits, tf.maximum(labels, zero))
                # where, not times: a row of no example may have a loss of NaN
                loss = tf.reduce_sum(tf.where(real > 0, of_each, tf.zeros_like(of_each)))
                loss /= tf.maximum(count, 1.0)
                right = hits(self._model, passed.logits, labels)
            done = clock([self._marks.arrived([passed.logits], device)], host)
            marks = row_of([start, ready, done], host)
        with tf.device(HOST):
            return tf.identity(loss), tf.identity(count), tf.identity(right), marks


def pass_forward(
    model: Model,
    spec: RunSpec,
    emit: Emit,
    *,
    start: Start = NO_START,
    stopped: Stopped = never,
) -> VariableSets:
    """Time forward passes, as `training.train` times steps: nothing is trained, saved or exported."""
    with built(ForwardStep, model, spec, emit, start) as step, observers(spec, emit) as watching:
        Loop(step, spec, emit, watching, stopped=stopped).run()
    return step.placement


def evaluate(
    model: Model,
    spec: RunSpec,
    emit: Emit,
    *,
    start: Start = NO_START,
    stopped: Stopped = never,
) -> VariableSets:
    """Evaluate the newest checkpoint of the folder that the spec names, and emit `Evaluated`.

    Over all examples of the data, or the spec's number of batches of every device. Raises UsageError
    without a folder, InputError without a checkpoint or for one of another model.
    """
    if spec.lifecycle.checkpoints is None:
        raise UsageError(
            "there is nothing to evaluate: no folder of checkpoints was named",
            "name the folder that a training run wrote with --checkpoints",
        )
    with built(ForwardStep, model, spec, emit, start) as step:
        found, remarks = load_for_evaluation(Path(spec.lifecycle.checkpoints), model, spec, step.placement)
        for remark in remarks:
            emit(Noticed(time_s=time.time(), says=remark))
        emit(Resumed(time_s=time.time(), path=str(found.path), steps=found.header.steps))
        emit(PhaseBegun(time_s=time.time(), phase="evaluation"))
        tally = Tally()
        passes = msgspec.structs.replace(spec, num_batches=spec.batch_limit, time_budget_s=None)
        with observers(spec, emit) as watching:
            ended = Loop(step, passes, emit, [*watching, tally], stopped=stopped).run_evaluation()
        if stopped():
            return step.placement
        left_out = None if ended else tally.left_out(step.source.images_per_epoch)
        if left_out is not None:
            emit(Noticed(time_s=time.time(), says=left_out))
    emit(tally.evaluated(model, spec, steps=found.header.steps, checkpoint=str(found.path)))
    return step.placement


class Tally:
    """Adds up what the passes over the data gave."""

    def __init__(self) -> None:
        self._examples = 0.0
        self._hits = np.zeros(2)
        self._loss = 0.0
        self._seconds = 0.0

    def before(self, number: int) -> None:
        """Nothing to do."""

    def after(self, step: Step, outcome: StepOutcome) -> None:
        """Take a pass."""
        assert outcome.examples is not None
        assert outcome.hits is not None
        self._examples += float(outcome.examples.sum())
        self._hits += outcome.hits.sum(axis=0)
        # A tower without an example has the loss 0, and does not count.
        self._loss += float((outcome.losses.astype(np.float64) * outcome.examples).sum())
        self._seconds += step.seconds

    def close(self) -> None:
        """Nothing to do."""

    def left_out(self, images: int | None) -> str | None:
        """Return a remark if not all of the data's examples (None: unknown) were evaluated."""
        if images is None or images <= self._examples:
            return None
        return f"Evaluated on {self._examples:.0f} of {images} examples (--num-batches); without it, on all."

    def evaluated(self, model: Model, spec: RunSpec, *, steps: int, checkpoint: str) -> Evaluated:
        """Return the whole: shares and the mean loss over all examples."""
        count = max(self._examples, 1.0)
        loss = self._loss / count
        return Evaluated(
            time_s=time.time(),
            examples=int(self._examples),
            top1=float(self._hits[0] / count),
            top5=float(self._hits[1] / count) if model.classes > TOP else None,
            loss=loss if math.isfinite(loss) else None,
            seconds=self._seconds,
            steps=steps,
            checkpoint=checkpoint,
            data=spec.data.name or "synthetic",
        )
