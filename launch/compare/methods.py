"""The steps of the three multi-GPU Keras programs: one batch on the host, one set of variables, one loss.

Sources: `make_parallel` of kuza55/keras-extras, `make_parallel` and `ModelMGPU` of
avolkov1/keras_experiments, F. Chollet's `multi_gpu_model` of Keras 2.0.9. Keras 3 ignores the devices of
their towers, so the graph of their step is built here. The arithmetic, the rows of the batch and the
optimizer are the same as for gputopo's own towers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import tensorflow as tf

from gputopo.launch.models.model import Model, loss_of
from gputopo.launch.spec.rules import remarks
from gputopo.launch.train.graph_step import GraphStep
from gputopo.launch.train.inputs.factory import source_of
from gputopo.launch.train.inputs.source import rows_of
from gputopo.launch.train.loss_scale import LossScale
from gputopo.launch.train.marks import TowerClock, clock
from gputopo.launch.train.placement import checking
from gputopo.launch.train.placement.algorithms import add, on
from gputopo.launch.train.placement.devices import HOST, require_device
from gputopo.launch.train.placement.variables import (
    VariableSet,
    assign,
    create,
    create_state,
    read,
    read_state,
    write_state,
)
from gputopo.launch.train.stepper import StepOutcome
from gputopo.launch.train.towers import TowerMath
from gputopo.values.run.names import Method
from gputopo.values.run.spec import RunSpec

Tensor = Any


@dataclass(frozen=True)
class MethodRecipe:
    """Where a method splits the batch and merges the outputs.

    `slice_on`: tower: every tower gets the whole batch and takes its rows; host: the CPU cuts the batch, and
    each tower gets only its rows. `merge_on`: server: outputs are merged on the device of the variables;
    host: on the CPU.
    """

    slice_on: Literal["tower", "host"]
    merge_on: Literal["server", "host"]

    def says(self, name: Method) -> str:
        """Return a sentence for the user that describes the transfers."""
        moves = (
            "the whole batch goes from the CPU to every device, which takes its rows"
            if self.slice_on == "tower"
            else "the CPU cuts the batch"
        )
        merged = "where the variables are" if self.merge_on == "server" else "on the CPU"
        return f"Method {name}: {moves}; outputs come together {merged}, for one loss."


RECIPES: dict[Method, MethodRecipe] = {
    "kuza55": MethodRecipe("tower", "server"),
    "avolkov1": MethodRecipe("host", "server"),
    "fchollet": MethodRecipe("tower", "host"),
}


class MethodStep(GraphStep):
    """Takes the steps of a Keras program: the whole batch is on the host, and every tower gets its rows.

    The towers read the variables of one device, which also has the loss and the optimizer. Constraints on
    weights are applied after it, as in Keras. Raises HardwareError if a device is not there.
    """

    scale: LossScale

    def __init__(self, model: Model, spec: RunSpec) -> None:
        assert spec.method is not None
        self._model = model
        self._recipe = RECIPES[spec.method]
        self._server = spec.ps_device or HOST
        self._devices = [device.device for device in spec.devices]
        for device in {*self._devices, self._server}:
            require_device(device)
        self.placement = VariableSet(
            (create(model, self._server, spec.seed),), (create_state(model, self._server),)
        )
        joint = msgspec.structs.replace(
            spec,
            devices=(msgspec.structs.replace(spec.devices[0], tower=0, device=HOST),),
            batch_size=spec.joint_batch,
        )
        super().__init__(model, spec, source_of(model, joint))
        self.optimize(self.placement)
        self.math = TowerMath(model, spec, self.source, self.scale)
        self.graph = self.compiled(self._build)
        self.says += (*remarks(spec), self._recipe.says(spec.method))

    def __call__(self, number: int) -> StepOutcome:
        """Take one step. Its outcome has one loss for all towers."""
        fed = self.source.feed(number)
        loss, begin, marks, _ = self.graph(tf.constant(number, tf.int64), *fed)
        return StepOutcome(np.array([loss.numpy()]), marks.numpy() - begin.numpy())

    def check_variables(self) -> dict[str, int]:
        """Check that all variables are on the server; return their bytes by device."""
        sets = (self.placement.places[0], self.placement.states[0])
        return checking.check_variables((variables, [self._server] * len(variables)) for variables in sets)

    def _build(self, number: Tensor, *fed: Tensor) -> tuple[Tensor, ...]:
        begin = clock([])
        with tf.device(HOST):
            images, labels = self.source.read(0, fed)
        towers = [
            _Tower(self, tower, number, images, self.tower_clock(tower, device, [begin]))
            for tower, device in enumerate(self._devices)
        ]
        merging = self._server if self._recipe.merge_on == "server" else HOST
        with tf.device(merging):
            logits = tf.concat([tower.logits for tower in towers], 0)
        with tf.device(self._server):
            scale = self.scale.of(0)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(logits)
                loss = tf.reduce_mean(loss_of(self._model, logits, tf.identity(labels)))
                scaled = loss if scale is None else loss * scale
            upstream = tape.gradient(scaled, logits)
            loss = add([loss, *(tower.added for tower in towers if tower.added is not None)])
        with tf.device(merging):
            parts = tf.split(upstream, self.spec.batches)
        gradients = [tower.backward(part, scale) for tower, part in zip(towers, parts, strict=True)]
        rows = [tower.marks for tower in towers]
        with tf.device(self._server):
            totals = [add(of_towers) for of_towers in zip(*gradients, strict=True)]
            if scale is not None:
                totals = [total * (1.0 / scale) for total in totals]
        changes = self._change(totals, towers[0].state, number, rows)
        with tf.device(HOST), tf.control_dependencies(changes):
            return tf.identity(loss), tf.identity(begin), tf.stack(rows), tf.add_n(self.marks.probes)

    def rows_on(self, device: str, images: Tensor, rows: slice) -> Tensor:
        """Return a tower's rows of the joint batch on its device."""
        if self._recipe.slice_on == "tower":
            with tf.device(device):
                return tf.identity(images)[rows]
        with tf.name_scope("slices/"), tf.device(HOST):  # not in the tower's scope: the host cuts
            return on(device, images[rows])

    def _change(
        self, totals: list[Tensor], state: list[Tensor], number: Tensor, after: list[Tensor]
    ) -> list[Any]:
        """Change the variables once `after` is done, and store the new state."""
        (variables,) = self.placement.places
        with tf.name_scope("update"):
            constraints = getattr(self._model, "constraints", ())
            changes = self.updater.update([totals], number, after=after)
            with tf.control_dependencies(changes):
                for variable, constraint in zip(variables, constraints, strict=False):
                    if constraint is not None:
                        changes += assign([variable], [constraint(variable.read_value())])
            with tf.control_dependencies(after):
                return changes + write_state(self.placement, self.updater.accepted([state]))


class _Tower:
    """A tower's forward pass in the step's graph, and later its backward pass.

    `logits`: of its rows. `added`: what the model adds to the loss, multiplied by the tower's share of the
    batch; None: nothing. `state`: after its rows. `marks` [3]: set by `backward`.
    """

    marks: Tensor

    def __init__(
        self, step: MethodStep, tower: int, number: Tensor, images: Tensor, times: TowerClock
    ) -> None:
        self._step = step
        self._scope = f"tower_{tower}/"
        self._times = times
        rows = rows_of(step.spec)[tower]
        share = rows.batch / step.spec.joint_batch

        def forward(
            number: Tensor, images: Tensor, weights: list[Tensor], state: list[Tensor]
        ) -> tuple[Tensor, Tensor, list[Tensor]]:
            passed = step.math.run_model(tower, number, weights, state, images)
            return passed.logits, None if passed.added is None else passed.added * share, passed.state

        with tf.name_scope(self._scope):
            with tf.control_dependencies([times.started]):
                tower_images = step.rows_on(times.device, images, slice(rows.first, rows.first + rows.batch))
                self._weights = [on(times.device, value) for value in read(step.placement.places[0])]
                state = read_state(step.placement, 0, times.device)
            gate = times.weights_arrived([*self._weights, tower_images])
            self._tape = tf.GradientTape(watch_accessed_variables=False)
            with tf.control_dependencies(gate), tf.device(times.device), self._tape:
                self._tape.watch(self._weights)
                self.logits, self.added, self.state = step.math.compiled(forward)(
                    number, tower_images, self._weights, state
                )
            times.done([self.logits])

    def backward(self, upstream: Tensor, scale: Tensor | None) -> Sequence[Tensor]:
        """Build the backward pass; return the gradients of the weights, with the loss scale.

        `upstream`: the gradient of the logits. The marks do not include the wait between the passes.
        """
        forward, device = self._times, self._times.device
        with tf.name_scope(self._scope):
            targets, given = [self.logits], [on(device, upstream)]
            back = self._step.tower_clock(0, device, [forward.ended])
            with tf.control_dependencies(back.weights_arrived(given)), tf.device(device):
                if self.added is not None:
                    targets.append(self.added)
                    given.append(tf.ones_like(self.added) if scale is None else tf.identity(scale))
                gradients = self._tape.gradient(
                    targets, self._weights, given, unconnected_gradients=tf.UnconnectedGradients.ZERO
                )
            back.done(gradients)
        with tf.device(HOST), tf.name_scope("marks/"):
            ended = forward.ended + (back.ended - back.ready)
            self.marks = tf.stack([forward.started, forward.ready, ended])
        return list(gradients)
