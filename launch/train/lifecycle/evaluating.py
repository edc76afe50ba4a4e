"""Runs without training: the speed of the input or of a forward pass, and the accuracy of a checkpoint.

Passes run in inference mode: norms use moving statistics; there is no dropout, gradient or update.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from gputopo.launch.compare.multi_worker import Hosts
from gputopo.launch.models.model import Model, loss_of
from gputopo.launch.train.graph_step import OF_HOST, GraphStep
from gputopo.launch.train.inputs.factory import source_of
from gputopo.launch.train.inputs.source import Fact, InputSource, Shape, noticing
from gputopo.launch.train.lifecycle.checkpoints import load_for_evaluation, share, variables_of
from gputopo.launch.train.loop import Loop
from gputopo.launch.train.marks import HostMarks, clock
from gputopo.launch.train.placement.devices import HOST, home, tower_groups
from gputopo.launch.train.placement.placements import Placement, place
from gputopo.launch.train.placement.trial_step import require_gpus
from gputopo.launch.train.stepper import Emit, Observer, StepOutcome, Stepper, Stopped, VariableSets
from gputopo.launch.train.towers import TOP, TowerMath, hits
from gputopo.launch.train.training import NO_START, WorkerStart, built, observers
from gputopo.values.run.events import (
    Evaluated,
    Noticed,
    PhaseBegun,
    Resumed,
    Step,
)
from gputopo.values.run.spec import Exchange, RunSpec

Tensor = Any


def measure_input(
    model: Shape, spec: RunSpec, emit: Emit, *, start: WorkerStart = NO_START
) -> Mapping[str, Fact]:
    """Take batches as in training and copy them to the devices; return the input's description.

    The events are the same as in training. A Step has no loss. In its marks `weights_s` is the time of
    waiting for the batch on the host, and `compute_s` the time from then until it was on the tower's device.
    The step ends when all towers have their batches. Raises what the input raises.
    """
    began = time.perf_counter()
    with noticing(source_of(model, spec), emit) as source:
        loop = _InputLoop(Arrival(source, spec), spec, emit)
        start.emit_built(source, emit, began)
        loop.run()
        images = loop.trained * spec.joint_batch
        for notice in _read_again(source, spec, images):
            emit(Noticed(time_s=time.time(), says=notice))
        return source.describe()


class _InputLoop(Loop):
    """A loop without a model. The first step compiles, so it is always part of the warm-up."""

    def __init__(self, step: Stepper, spec: RunSpec, emit: Emit) -> None:
        super().__init__(step, spec, emit)
        self._warmup = max(self._warmup, 1)

    def _first_step(self, number: int) -> None:
        self._one(number)

    def step_event(self, number: int, seconds: float, outcome: StepOutcome) -> Step:
        """Return the event of a step, in which nothing is trained."""
        return msgspec.structs.replace(super().step_event(number, seconds, outcome), global_step=None)


class Arrival(Stepper):
    """A graph that only copies each tower's batch to its device."""

    def __init__(self, source: InputSource, spec: RunSpec) -> None:
        self.source = source
        self._devices = [device.device for device in spec.devices]
        self.graph = tf.compat.v1.wrap_function(self._build, list(source.signature))

    def __call__(self, number: int) -> StepOutcome:
        """Take the batch of a step. Marks: the step starts; the batch is there; it is on the device."""
        began = time.time()
        fed = self.source.feed(number)
        ready = time.time()
        marks, _ = self.graph(*fed)
        arrived = np.maximum(marks.numpy(), ready) - began
        times = np.stack([np.zeros_like(arrived), np.full_like(arrived, ready - began), arrived], axis=1)
        return StepOutcome(np.array([np.nan]), times, waited_s=ready - began)

    def _build(self, *fed: Tensor) -> tuple[Tensor, Tensor]:
        marks, probes = [], []
        with home():
            for tower, device in enumerate(self._devices):
                with tf.name_scope(f"tower_{tower}"):
                    images, labels = self.source.read(tower, fed)
                    with tf.device(device), tf.control_dependencies([images, labels]):
                        first = tf.strided_slice(tf.reshape(images, (-1,)), [0], [1])  # [1]
                with tf.device(HOST):
                    probes.append(tf.negative(first))
                marks.append(clock(probes[-1:]))
            with tf.device(HOST):
                return tf.stack(marks), tf.add_n(probes)


def _read_again(source: InputSource, spec: RunSpec, images: int) -> tuple[str, ...]:
    """Return a remark if more images were read than the data set has: later passes do not read the disk."""
    known = source.images_per_epoch
    if spec.data.folder is None or not known or images <= known:
        return ()
    return (
        f"The {known} images were read {images / known:.1f} times: after the first pass they come from "
        "memory, so this is not the rate of the disk.",
    )


class ForwardStep(GraphStep):
    """One forward pass of all towers as one graph, with the time marks of a training step.

    Its outcome has each tower's mean loss over its real examples (labels of at least 0), the number of real
    examples, and the number of hits. With a `strategy` of several hosts each process runs its own towers.
    """

    placement: Placement

    def __init__(self, model: Model, spec: RunSpec, strategy: tf.distribute.Strategy | None = None) -> None:
        """Create the variables and the graph. Raises HardwareError if a GPU cannot compute."""
        require_gpus(spec)
        # The exchange of gradients does not matter here, and buffers for it would only use memory.
        plain = msgspec.structs.replace(
            spec,
            exchange=Exchange(ps_spread=spec.exchange.ps_spread),
            all_reduce=None,
            devices=spec.own_devices,
        )
        self._model = model
        self.placement = place(model, plain)
        hosts = None if strategy is None else Hosts(spec)
        super().__init__(model, plain, source_of(model, spec), hosts)
        ran = f"Strategy {spec.strategy}: each host passes its own examples forward, in its own process."
        self.says += () if strategy is None else (ran,)
        self.math = TowerMath(model, spec, self.source)
        self._clocks = HostMarks(spec.devices)
        self.graph = self.compiled(self._build, OF_HOST)

    def __call__(self, number: int) -> StepOutcome:
        """Take one step. Raises StopIteration at the end of the input."""
        fed = self.source.feed(number)
        rows, begin, ended, _ = self.graph(tf.constant(number, tf.int64), self.of_host(), *fed)
        losses, examples, hits, marks, of_hosts = np.split(rows.numpy(), (1, 2, 4, 7), axis=1)
        outcome = StepOutcome(
            losses[:, 0].astype(np.float32), marks - begin.numpy(), hits=hits, examples=examples[:, 0]
        )
        if self.hosts is not None:
            return self.hosts.adapted(outcome, of_hosts, float(ended))
        return replace(outcome, marks=self._clocks.since(begin.numpy(), marks))

    def _build(self, number: Tensor, of_host: Tensor, *fed: Tensor) -> tuple[Tensor, ...]:
        """Build all towers. Each has a row with its loss, number of examples, hits, marks and `of_host`."""
        with home():
            begin = clock([])
            towers: list[tuple[Tensor, Tensor]] = []
            for groups in tower_groups(self.spec):
                start = [begin]
                for numbers in groups:
                    begun = len(towers)
                    for tower in numbers:
                        _, _, (loss, count, right), marks = self.passed(tower, number, fed, start)
                        with tf.device(HOST):
                            row = tf.cast(tf.concat([[loss, count], right], axis=0), tf.float64)
                        towers.append((row, marks))
                    start = [marks for _, marks in towers[begun:]]
            with tf.device(HOST):
                rows = tf.stack([tf.concat([*tower, of_host], axis=0) for tower in towers])  # [towers, 9]
                rows = rows if self.hosts is None else self.hosts.of_all_towers(rows)
                return rows, tf.identity(begin), clock([rows]), tf.add_n(self.marks.probes)

    def work(
        self, tower: int, number: Tensor, fed: Sequence[Tensor], weights: list[Tensor], state: list[Tensor]
    ) -> tuple[list[Tensor], Any]:
        """Run the forward pass: return the logits, and (mean loss, number of examples, hits)."""
        logits, labels = self.math.forward(tower, number, weights, state, fed)
        real = tf.cast(labels >= 0, tf.float32)  # [batch]
        count = tf.reduce_sum(real)
        zero = tf.zeros_like(labels)
        of_each = loss_of(self._model, logits, tf.maximum(labels, zero))
        # where, not times: a row without an example may have a loss of NaN
        loss = tf.reduce_sum(tf.where(real > 0, of_each, tf.zeros_like(of_each)))
        loss /= tf.maximum(count, 1.0)
        return [logits], (loss, count, hits(self._model, logits, labels))


def pass_forward(
    model: Model,
    spec: RunSpec,
    emit: Emit,
    *,
    start: WorkerStart = NO_START,
    stopped: Stopped = lambda: False,
    strategy: tf.distribute.Strategy | None = None,
) -> VariableSets:
    """Time forward passes as `training.train` times steps. Nothing is trained, saved or exported."""
    make = partial(ForwardStep, strategy=strategy)
    with built(make, model, spec, emit, start) as step, observers(spec, emit) as watching:
        watching += step.observers(emit)
        Loop(step, spec, emit, watching, stopped=stopped).run()
    return step.placement


def evaluate(
    model: Model,
    spec: RunSpec,
    emit: Emit,
    *,
    start: WorkerStart = NO_START,
    stopped: Stopped = lambda: False,
    strategy: tf.distribute.Strategy | None = None,
) -> VariableSets:
    """Evaluate the newest checkpoint in the spec's folder, and emit `Evaluated`.

    Uses all examples of the data, or the spec's number of batches on every device. Raises InputError if there
    is no checkpoint, or it is from another model. Processes of other hosts get the variables from rank 0.
    """
    checkpoint = None
    with built(partial(ForwardStep, strategy=strategy), model, spec, emit, start) as step:
        if not spec.rank:
            checkpoint, remarks = load_for_evaluation(model, spec, step.placement)
            for remark in remarks:
                emit(Noticed(time_s=time.time(), says=remark))
            emit(Resumed(time_s=time.time(), path=str(checkpoint.path), steps=checkpoint.header.steps))
        if step.from_first is not None:
            share(variables_of(model, spec, step.placement, together=True), step.from_first)
        emit(PhaseBegun(time_s=time.time(), phase="evaluation"))
        tally = Tally()
        passes = msgspec.structs.replace(spec, num_batches=spec.batch_limit, time_budget_s=None)
        with observers(spec, emit) as watching:
            watching += [*step.observers(emit), tally]
            ended = Loop(step, passes, emit, watching, stopped=stopped).run_evaluation()
        if stopped():
            return step.placement
        left_out = None if ended else tally.left_out(step.source.images_per_epoch)
        if left_out is not None:
            emit(Noticed(time_s=time.time(), says=left_out))
    if checkpoint is not None:
        emit(tally.evaluated(model, spec, steps=checkpoint.header.steps, checkpoint=str(checkpoint.path)))
    return step.placement


class Tally(Observer):
    """Adds up losses, hits and examples over all steps of an evaluation."""

    def __init__(self) -> None:
        self._examples = 0.0
        self._hits = np.zeros(2)
        self._loss = 0.0
        self._seconds = 0.0

    def after(self, step: Step, outcome: StepOutcome) -> None:
        """Add a step."""
        assert outcome.examples is not None
        assert outcome.hits is not None
        self._examples += float(outcome.examples.sum())
        self._hits += outcome.hits.sum(axis=0)
        # A tower without an example has the loss 0, so it adds nothing.
        self._loss += float((outcome.losses.astype(np.float64) * outcome.examples).sum())
        self._seconds += step.seconds

    def left_out(self, images: int | None) -> str | None:
        """Return a remark if not all of the data's examples (None: unknown) were evaluated."""
        if images is None or images <= self._examples:
            return None
        return f"Evaluated on {self._examples:.0f} of {images} examples (--num-batches); without it, on all."

    def evaluated(self, model: Model, spec: RunSpec, *, steps: int, checkpoint: str) -> Evaluated:
        """Return the result: accuracies and the mean loss over all examples."""
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
