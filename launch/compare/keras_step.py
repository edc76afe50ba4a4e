"""The step of a Keras multi-GPU program, for a Keras model or a gputopo network as a Keras layer."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import msgspec
import numpy as np
import tensorflow as tf

from gputopo.launch.compare.keras_tower import RECIPES, Merge, PassMarks, Statistics, Tower
from gputopo.launch.models.keras_building import KerasModel, seeds, summed
from gputopo.launch.models.keras_checks import is_seed, shapes_of
from gputopo.launch.models.keras_sources import Foreign
from gputopo.launch.models.layers import TYPES, DataFormat, Stream, TowerRows
from gputopo.launch.models.model import Model, loss_of
from gputopo.launch.spec.rules import remarks
from gputopo.launch.train.graph_step import GraphStep
from gputopo.launch.train.inputs.factory import source_of
from gputopo.launch.train.loss_scale import LossScale
from gputopo.launch.train.marks import clock
from gputopo.launch.train.placement import checking
from gputopo.launch.train.placement.devices import HOST, require
from gputopo.launch.train.placement.variables import (
    VariableSet,
    assign,
    create,
    create_state,
    write_state,
)
from gputopo.launch.train.stepper import StepOutcome
from gputopo.values.run.names import Method
from gputopo.values.run.spec import Precision, RunSpec

Tensor = Any
_LAYER_DROPOUT = 5  # purpose of a random stream
_DROPOUT = 6  # purpose of the stream for random layers in a Keras model


def serial_of(model: Model, spec: RunSpec, *, server: str) -> keras.Model:
    """Return the Keras model for one device, with its variables on `server` and the initial values of a run.

    A `KerasModel` is already built there in the spec's type.
    """
    if isinstance(model, KerasModel):
        return model.keras
    with tf.device(server):
        layer = NetworkLayer(model, spec.data_format, spec.seed, spec.precision)
        height, width, channels = model.input_shape
        shape = (channels, height, width) if spec.data_format == "NCHW" else (height, width, channels)
        images = keras.Input(shape)
        return keras.Model(images, layer(images), name="serial")


class NetworkLayer(keras.layers.Layer):  # type: ignore[misc]
    """A network of gputopo as a Keras layer: images in, logits (float32) out.

    Its variables and its Keras dtype are float32; the network computes in the type of `precision`, as in
    gputopo's own towers. If XLA compiles it, it draws random numbers in the form for XLA. The batch size must
    be known if the network has dropout.
    """

    def __init__(self, model: Model, data_format: DataFormat, seed: int, precision: Precision) -> None:
        super().__init__(name="network", dtype="float32")
        self.model = model
        self._data_format = data_format
        self._seed = seed
        self._precision = precision
        self._draws = keras.random.SeedGenerator(seed)

    def build(self, shape: Any) -> None:
        """Create the variables with the same initial values as gputopo's own towers."""
        first = create(self.model, "/CPU:0", self._seed)
        self._trained = [self._weight(one, trainable=True) for one in first]
        self._moving = [self._weight(one, trainable=False) for one in create_state(self.model, "/CPU:0")]

    def call(self, images: Tensor, training: bool | None = None) -> Tensor:
        """Run the network; training updates its moving statistics."""
        draw = self._draws.next()[1]  # int64: a different one for each step and each tower
        stream = Stream(self._seed, _LAYER_DROPOUT, draw, compiled=self._precision.xla)
        rows = TowerRows(0, -1 if images.shape[0] is None else images.shape[0], stream)
        passed = self.model.forward(
            [one.value for one in self._trained],
            [one.value for one in self._moving],
            tf.cast(images, TYPES[self._precision.compute]),
            rows,
            self._data_format,
            training=bool(training),
        )
        if training:
            for variable, value in zip(self._moving, passed.state, strict=True):
                variable.assign(value)
        return passed.logits

    def compute_output_shape(self, shape: Sequence[int | None]) -> tuple[int | None, int]:
        """Return the shape of the logits [batch, classes]."""
        return shape[0], self.model.classes

    def _weight(self, first: Any, *, trainable: bool) -> Any:
        made = self.add_weight(
            shape=tuple(first.shape),
            dtype=first.dtype.name,
            initializer="zeros",
            trainable=trainable,
            name=first.name.partition(":")[0].replace("/", "_"),
        )
        made.assign(first)
        return made


class MethodStep(GraphStep):
    """Takes the steps of a Keras program: the whole batch is on the host, and every tower gets its rows.

    The optimizer is the same as for gputopo's own towers and runs on the device of the variables. Constraints
    on weights are applied after it, as in Keras. Raises HardwareError if a device is not there.
    """

    scale: LossScale

    def __init__(self, model: Model, spec: RunSpec) -> None:
        method = spec.method
        assert method is not None
        self._model = model
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
        super().__init__(model, spec, source_of(model, self._joint))
        seedless = [one.value for one in self._serial.non_trainable_variables if not is_seed(one)]
        self.placement = VariableSet(([one.value for one in self._serial.trainable_variables],), (seedless,))
        self.optimize(self.placement)
        self.graph = self.compiled(self._build)
        self.says += (*remarks(spec), RECIPES[method].says)

    def __call__(self, number: int) -> StepOutcome:
        """Take one step. Its outcome has one loss for all towers."""
        fed = self.source.feed(number)
        loss, begin, marks, _ = self.graph(tf.constant(number, tf.int64), *fed)
        return StepOutcome(np.array([loss.numpy()]), marks.numpy() - begin.numpy())

    def check_variables(self) -> dict[str, int]:
        """Check that all variables are on the server; return their bytes by device."""
        sets = (self.placement.places[0], self.placement.states[0])
        return checking.check_variables([(one, [self._server] * len(one)) for one in sets])

    def _build(self, number: Tensor, *fed: Tensor) -> tuple[Any, ...]:
        begin = clock([])
        towers = towers_of(self._parallel)
        for tower, device in zip(towers, self._devices, strict=True):
            tower.marks = PassMarks(self.marks, device, [begin], gates=self.spec.backend == "cpu")
        images, labels = self._source_on_host(fed)
        with tf.device(self._server):
            weights = [tf.identity(one.value) for one in self._parallel.trainable_variables]
            state = self._state(number)
            scale = self.scale.of(0)
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
        with tf.device(HOST), tf.control_dependencies(self._changed(gradients, new, number, rows)):
            return tf.identity(loss), tf.identity(begin), tf.stack(rows), tf.add_n(self.marks.probes)

    def _changed(
        self, gradients: list[Tensor], state: list[Tensor], number: Tensor, after: list[Tensor]
    ) -> list[Any]:
        """Change the variables once `after` is done, and store the new state."""
        with tf.name_scope("update"):
            changes = self.updater.update([gradients], number, after=after)
            with tf.control_dependencies(changes):
                for one in self._serial.trainable_variables:
                    if one.constraint is not None:
                        changes += assign([one.value], [one.constraint(one.value.read_value())])
            seeds_apart = zip(self._serial.non_trainable_variables, state, strict=True)
            kept = [value for one, value in seeds_apart if not is_seed(one)]
            with tf.control_dependencies(after):
                return changes + write_state(self.placement, self.updater.accepted([kept]))

    def _state(self, number: Tensor) -> list[Tensor]:
        """Read the moving statistics. Seeds depend on the step: a resumed run draws the same numbers."""
        drawn = seeds(TowerRows(0, self._joint.joint_batch, Stream(self.spec.seed, _DROPOUT, number)))
        return [
            next(drawn) if is_seed(one) else tf.identity(one.value)
            for one in self._parallel.non_trainable_variables
        ]

    def _foreign(self) -> AbstractContextManager[None]:
        """Return the context in which a user's own layers run."""
        return Foreign(*self._model.fails) if isinstance(self._model, KerasModel) else nullcontext()

    def _source_on_host(self, fed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        with tf.device(HOST):
            images, labels = self.source.read(0, fed)
            if isinstance(self._model, KerasModel):
                images = self._model.own_layout(images, self.spec.data_format)
            return images, labels


def joint_spec(spec: RunSpec) -> RunSpec:
    """Return the spec for the input: all towers' rows as one batch on the host."""
    first = msgspec.structs.replace(spec.devices[0], tower=0, device=HOST)
    return msgspec.structs.replace(spec, devices=(first,), batch_size=spec.joint_batch)


def make_parallel(
    serial: keras.Model,
    method: Method,
    devices: Sequence[str],
    *,
    batch: int,
    server: str = HOST,
    xla: bool = False,
    ending: Callable[[Tensor], Tensor] | None = None,
) -> keras.Model:
    """Return a Keras model that splits its batch over `devices` (`/GPU:0`) as the method does.

    It shares the variables of `serial`, which stay on their device, `server`. `batch`: the joint batch size.
    `xla`: each tower is compiled by itself, forward and backward. `ending` changes a tower's outputs on its
    device and keeps their shape. Compile the model with jit_compile=False: an XLA cluster has one device.
    Raises HardwareError if TensorFlow has no such device. Raises UsageError if there are fewer rows than
    devices, or if `serial` does not have exactly one input and one output of known shapes.
    """
    for device in {*devices, server}:
        require(device)
    recipe = RECIPES[method]
    shape, classes = shapes_of(serial, serial.name)
    statistics = Statistics()
    joint = keras.Input(shape, batch_size=batch)
    towers = [
        Tower(
            serial, recipe, tower, devices, statistics, batch=batch, classes=classes, xla=xla, ending=ending
        )
        for tower in range(len(devices))
    ]
    merge = Merge(server if recipe.merge_on == "server" else HOST, serial, statistics)
    return keras.Model(joint, merge([tower(joint) for tower in towers]), name=f"{method}_{len(devices)}")


def towers_of(parallel: keras.Model) -> list[Tower]:
    """Return the towers of a parallel model in order."""
    return [layer for layer in parallel.layers if isinstance(layer, Tower)]
