"""The training step of a Keras method: one model over all towers, one loss, Keras's optimizer."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import msgspec
import numpy as np
import tensorflow as tf

from gputopo.launch.compare.keras_methods.optimizing import KerasUpdate
from gputopo.launch.compare.keras_methods.recipes import RECIPES, rows_of_towers
from gputopo.launch.compare.keras_methods.serial import serial_of
from gputopo.launch.compare.keras_methods.tower import Merge, Statistics, Tower, TowerMarks
from gputopo.launch.models.keras.building import KerasModel, seeds, summed
from gputopo.launch.models.keras.checks import is_seed
from gputopo.launch.models.keras.foreign import Foreign
from gputopo.launch.models.keras.shapes import shapes_of
from gputopo.launch.models.layers import Rows
from gputopo.launch.models.model import Model, loss_of
from gputopo.launch.models.randomness import Stream
from gputopo.launch.spec.rules import remarks
from gputopo.launch.spec.run_spec import Exchange, Method, RunSpec
from gputopo.launch.train.inputs.factory import source_of
from gputopo.launch.train.loop import ScaleReport, StepOutcome
from gputopo.launch.train.marks.reading import Marks, clock
from gputopo.launch.train.placement import checking
from gputopo.launch.train.placement.devices import HOST, require
from gputopo.launch.train.placement.variables import VariableSet
from gputopo.values.errors import UsageError

Tensor = Any
_DROPOUT = 6  # purpose of a random stream


class MethodStep:
    """Takes the steps of `--method`: the whole batch is on the host, and every tower gets its rows of it.

    A graph for both passes, and a function that applies the gradients: so the clock readings of the towers
    do not wait for one another, and Keras's optimizer works as it does in a program of Keras.
    Raises UsageError for what cannot be combined with a method, HardwareError if a device is not there.
    """

    def __init__(self, model: Model, spec: RunSpec) -> None:
        method = require_method(spec)
        self._model = model
        self._spec = spec
        self._server = spec.ps_device or HOST
        self._devices = [device.device for device in spec.devices]
        require(self._server)
        self._serial = serial_of(model, spec, server=self._server)
        self._joint = joint_spec(spec)
        self._parallel = make_parallel(
            self._serial,
            method,
            self._devices,
            server=self._server,
            batch=self._joint.joint_batch,
            xla=spec.precision.xla,
            ending=model.head.logits if isinstance(model, KerasModel) else None,
        )
        self.source = source_of(model, self._joint)
        self._update = KerasUpdate(self._serial, spec, self._server)
        signature = [tf.TensorSpec((), tf.int64), *self.source.signature]
        self._graph = tf.compat.v1.wrap_function(self._build, signature)
        self.says = (*getattr(model, "says", ()), *remarks(spec), RECIPES[method].says)
        seedless = [one for one in self._serial.non_trainable_variables if not is_seed(one)]
        self.placement = VariableSet(
            ([one.value for one in self._serial.trainable_variables],), ([one.value for one in seedless],)
        )

    @property
    def slots(self) -> Sequence[Sequence[Sequence[Any]]]:
        """The optimizer's slots: one place."""
        return [self._update.slots]

    @property
    def own_slots(self) -> int:
        """Number of slots of each variable itself."""
        return self._update.own_slots

    @property
    def scale_variables(self) -> Sequence[Sequence[Any]]:
        """The state of an automatic loss scale, which a checkpoint holds as well."""
        return self._update.scale.variables

    def scale_report(self) -> ScaleReport | None:
        """Return the current loss scale, after a step; None where nothing is scaled."""
        return self._update.scale.report()

    def __call__(self, number: int) -> StepOutcome:
        """Take one step; there is one loss."""
        fed = self.source.feed(number)
        step = tf.constant(number, tf.int64)
        loss, begin, marks, _, gradients, state = self._graph(step, *fed)
        self._update(gradients, state, step)
        return StepOutcome(np.array([loss.numpy()]), marks.numpy() - begin.numpy())

    def graph_nodes(self) -> Sequence[Any]:
        """Return the nodes of both passes as built: name, op, device, attr."""
        nodes: Sequence[Any] = self._graph.graph.as_graph_def().node
        return nodes

    def update_nodes(self) -> Sequence[Any]:
        """Return the nodes of the optimizer's function as built."""
        return self._update.nodes()

    def check_variables(self) -> dict[str, int]:
        """All variables are on the server."""
        sets = (self.placement.places[0], self.placement.states[0])
        return checking.check_variables([(one, [self._server] * len(one)) for one in sets])

    def check_ops(self, counts: Counter[tuple[int, str]]) -> dict[str, int]:
        """Both passes of each tower are on its device."""
        return checking.check_ops(counts, self._spec)

    def _build(self, number: Tensor, *fed: Tensor) -> tuple[Any, ...]:
        begin = clock([])
        marks = Marks()
        towers = towers_of(self._parallel)
        for tower in towers:
            tower.marks = TowerMarks(marks, begin, gates=self._spec.backend == "cpu")
        images, labels = self._source_on_host(fed)
        with tf.device(self._server):
            weights = [tf.identity(one.value) for one in self._parallel.trainable_variables]
            state = self._state(number)
            scale = self._update.scale.of(0)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                with self._foreign():
                    outputs, new, added = self._parallel.stateless_call(
                        weights, state, images, training=True, return_losses=True
                    )
                loss = tf.reduce_mean(loss_of(self._model, outputs, tf.identity(labels)))
                if added:
                    loss += summed(added)
                scaled = loss if scale is None else loss * scale
            gradients = tape.gradient(scaled, weights)
            if scale is not None:
                gradients = [gradient * (1.0 / scale) for gradient in gradients]
        rows = [tower.marks.row for tower in towers if tower.marks is not None]
        for tower in towers:
            tower.marks = None
        with tf.device(HOST):
            return (
                tf.identity(loss),
                tf.identity(begin),
                tf.stack(rows),
                tf.add_n(marks.probes),
                gradients,
                new,
            )

    def _state(self, number: Tensor) -> list[Tensor]:
        """Read the moving statistics; seeds follow the step, so that a resumed run draws the same."""
        drawn = seeds(Rows(0, self._joint.joint_batch, Stream(self._spec.seed, _DROPOUT, number)))
        return [
            next(drawn) if is_seed(one) else tf.identity(one.value)
            for one in self._parallel.non_trainable_variables
        ]

    def _foreign(self) -> AbstractContextManager[None]:
        """Where a user's own layers run."""
        return Foreign(*self._model.fails) if isinstance(self._model, KerasModel) else nullcontext()

    def _source_on_host(self, fed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        with tf.device(HOST):
            images, labels = self.source.read(0, fed)
            if isinstance(self._model, KerasModel):
                images = self._model.own_layout(images, self._spec.data_format)
            return images, labels


def require_method(spec: RunSpec) -> Method:
    """Return the method of a spec. Raises UsageError for what cannot be combined with it."""
    method = spec.method
    if method is None:
        raise UsageError("no method is named", "give --method kuza55, avolkov1 or fchollet")
    refused = (
        (spec.strategy is not None, f"--strategy {spec.strategy}", "leave one of the two out"),
        (
            spec.variable_update != "parameter_server",
            f"--variable-update {spec.variable_update}",
            "leave it out: the variables of these methods are in one place",
        ),
        (spec.exchange != Exchange(), "a method of exchange", "leave it out, or use parameter_server"),
        (spec.grad_reduce == "sum", "--grad-reduce sum", "leave it out: there is one loss, a mean"),
        (spec.task != "train", f"the task {spec.task}", "use it without --method"),
        (bool(spec.drills), "--drill", "use it without --method"),
        (spec.lifecycle.training_accuracy, "--training-accuracy", "use it without --method"),
    )
    for wrong, what, hint in refused:
        if wrong:
            raise UsageError(f"{what} cannot be combined with --method {method}", hint)
    return method


def joint_spec(spec: RunSpec) -> RunSpec:
    """Return the spec of the input: all towers' rows as one batch on the host."""
    first = msgspec.structs.replace(spec.devices[0], tower=0, device=HOST)
    return msgspec.structs.replace(spec, devices=(first,), batch_size=spec.joint_batch)


def make_parallel(
    serial: keras.Model,
    method: Method,
    devices: Sequence[str],
    *,
    server: str = HOST,
    batch: int | None = None,
    xla: bool = False,
    ending: Callable[[Tensor], Tensor] | None = None,
) -> keras.Model:
    """Return a Keras model that cuts its batch over `devices` (`/GPU:0`) as the method does.

    It shares the variables of `serial`, which stay where they are; `server` is that device. `batch`: the
    joint batch, None for any. `xla`: each tower is compiled by itself, forward and backward. `ending`
    changes a tower's outputs on its device and keeps their shape. Compile the model with jit_compile=False:
    a cluster has one device. Raises HardwareError if TensorFlow has no such device, UsageError for fewer
    rows than devices, or a serial model that has not one input and one output of a known shape.
    """
    for device in {*devices, server}:
        require(device)
    recipe = RECIPES[method]
    if batch is not None:
        rows_of_towers(batch, len(devices), recipe.cut)
    shape, classes = shapes_of(serial, serial.name)
    statistics = Statistics()
    joint = keras.Input(shape, batch_size=batch)
    towers = [
        Tower(serial, recipe, tower, devices, statistics, classes=classes, xla=xla, ending=ending)
        for tower in range(len(devices))
    ]
    merge = Merge(server if recipe.merge_on == "server" else HOST, serial, statistics)
    return keras.Model(joint, merge([tower(joint) for tower in towers]), name=f"{method}_{len(devices)}")


def towers_of(parallel: keras.Model) -> list[Tower]:
    """Return the towers in order."""
    return [layer for layer in parallel.layers if isinstance(layer, Tower)]
