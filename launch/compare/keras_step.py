"""The serial Keras model of a run: a Keras model as it is, or a network of gputopo as a Keras layer."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
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
from gputopo.launch.spec.names import Method
from gputopo.launch.spec.rules import remarks
from gputopo.launch.spec.run_spec import Optimization, Precision, RunSpec
from gputopo.launch.train.inputs.factory import source_of
from gputopo.launch.train.loss_scale import LossScale, run_if
from gputopo.launch.train.marks import Marks, clock
from gputopo.launch.train.placement import checking
from gputopo.launch.train.placement.devices import HOST, require
from gputopo.launch.train.placement.variables import VariableSet, create, create_state
from gputopo.launch.train.stepper import StepOutcome, Stepper
from gputopo.launch.train.updating import ADAM, RMSPROP, learning_rate

Tensor = Any
_LAYER_DROPOUT = 5  # purpose of a random stream
_DROPOUT = 6  # the same, of random layers in a Keras model


def serial_of(model: Model, spec: RunSpec, *, server: str) -> keras.Model:
    """Return the Keras model of one device, its variables on `server`, with the first values of a run.

    A `KerasModel` is built there already, in the spec's type.
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

    Its variables are float32, and so is the layer for Keras; the network computes in the type of `precision`,
    as in our own towers, and draws for XLA if that is to compile it. A batch has to have a known size where
    the network drops entries.
    """

    def __init__(self, model: Model, data_format: DataFormat, seed: int, precision: Precision) -> None:
        super().__init__(name="network", dtype="float32")
        self.model = model
        self._data_format = data_format
        self._seed = seed
        self._precision = precision
        self._draws = keras.random.SeedGenerator(seed)

    def build(self, shape: Any) -> None:
        """Make the variables with the first values that our own towers start with."""
        first = create(self.model, "/CPU:0", self._seed)
        self._trained = [self._weight(one, trainable=True) for one in first]
        self._moving = [self._weight(one, trainable=False) for one in create_state(self.model, "/CPU:0")]

    def call(self, images: Tensor, training: bool | None = None) -> Tensor:
        """Follow the network; while training its moving statistics change."""
        draw = self._draws.next()[1]  # int64: another one for each step, and for each tower
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
        """Logits [batch, classes]."""
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


def optimizer_of(spec: Optimization, rate: float) -> keras.optimizers.Optimizer:
    """Return the optimizer that a spec names. Decay and clipping are left to `prepared`."""
    if spec.optimizer == "rmsprop":
        return keras.optimizers.RMSprop(rate, **RMSPROP)
    if spec.optimizer == "adam":
        return keras.optimizers.Adam(rate, *ADAM.values())
    momentum = spec.momentum if spec.optimizer == "momentum" else 0.0
    return keras.optimizers.SGD(rate, momentum, nesterov=spec.nesterov and momentum > 0.0)


class KerasUpdate:
    """Applies gradients to a Keras model's variables on one device, in a separate function.

    `slots`: [variable][slot] of the optimizer, the count of its steps behind those of the first. `scale`: the
    loss scale; with an automatic one a step whose gradients are not all finite changes nothing but the scale.
    """

    def __init__(self, serial: keras.Model, spec: RunSpec, server: str) -> None:
        self._serial = serial
        self._spec = spec.optimization
        self._rate = spec.learning_rate
        self._server = server
        self.scale = LossScale(spec)
        self._trained = serial.trainable_variables
        with tf.device(server):
            self._optimizer = optimizer_of(self._spec, self._rate)
            self._optimizer.build(self._trained)
            if self._spec.optimizer == "rmsprop":  # tf_cnn_benchmarks' mean square starts at 1, Keras's at 0
                for variable in self._optimizer._velocities:
                    variable.assign(tf.ones(variable.shape))
        self.slots = self._aligned()
        self._apply = tf.function(self._build, autograph=False)

    def __call__(self, gradients: Sequence[Tensor], state: Sequence[Tensor], number: Tensor) -> None:
        """Change the variables, and keep the new state (one value for each non-trainable variable)."""
        self._apply(list(gradients), list(state), number)

    def nodes(self) -> Sequence[Any]:
        """Return the nodes of the function as built: name, op, device, attr."""
        gradients = [tf.TensorSpec(one.shape, one.dtype) for one in self._trained]
        state = [tf.TensorSpec(one.shape, one.dtype) for one in self._serial.non_trainable_variables]
        graph = self._apply.get_concrete_function(gradients, state, tf.TensorSpec((), tf.int64)).graph
        nodes: Sequence[Any] = graph.as_graph_def().node
        return nodes

    def _build(self, gradients: list[Tensor], state: list[Tensor], number: Tensor) -> None:
        if not self.scale.automatic:
            self._change(gradients, state, number)
            return
        decisions = self.scale.decide([gradients], [[one.value for one in self._trained]])
        run_if(decisions[0], partial(self._change, gradients, state, number))
        self.scale.settle(decisions)

    def _change(self, gradients: list[Tensor], state: list[Tensor], number: Tensor) -> Sequence[Any]:
        """Take the step. Returns no ops: in a function what changes a variable runs by itself."""
        rate = learning_rate(self._spec.schedule, self._rate, number)
        with tf.device(self._server), tf.name_scope("update/"):
            self._optimizer.learning_rate = rate
            weights = [one.value for one in self._trained]
            self._optimizer.apply(prepared(self._spec, gradients, weights), self._trained)
            for variable, value in zip(self._serial.non_trainable_variables, state, strict=True):
                variable.assign(value)
        return ()

    def _aligned(self) -> list[list[Any]]:
        """Keras keeps a list for each kind of slot, with one entry for each variable."""
        own = {id(one) for one in self._optimizer.variables}
        kinds = [
            kind
            for kind in vars(self._optimizer).values()
            if isinstance(kind, list)
            and len(kind) == len(self._trained)
            and all(id(one) in own for one in kind)
        ]
        slots = [[kind[number].value for kind in kinds] for number in range(len(self._trained))]
        self.own_slots = len(kinds)
        slots[0].append(self._optimizer.iterations.value)
        return slots


def prepared(spec: Optimization, gradients: Sequence[Tensor], weights: Sequence[Any]) -> list[Tensor]:
    """Add weight decay and clip, in the order of our own towers: entries first, then all by their norm."""
    found = list(gradients)
    if spec.weight_decay:
        found = [one + spec.weight_decay * weight for one, weight in zip(found, weights, strict=True)]
    if spec.gradient_clip is not None:
        limit = spec.gradient_clip
        found = [tf.clip_by_value(one, -limit, limit) for one in found]
    if spec.gradient_clip_norm is not None:
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(one)) for one in found]))
        factor = spec.gradient_clip_norm / tf.maximum(norm, spec.gradient_clip_norm)
        found = [one * factor for one in found]
    return found


class MethodStep(Stepper):
    """Takes the steps of a Keras program: the whole batch is on the host, every tower gets its rows.

    A graph for both passes, and a function that applies the gradients: so the clock readings of the towers
    do not wait for one another, and Keras's optimizer works as it does in a program of Keras.
    Raises HardwareError if a device is not there.
    """

    def __init__(self, model: Model, spec: RunSpec) -> None:
        method = spec.method
        assert method is not None
        self._model = model
        self.spec = spec
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
        self.slots, self.own_slots = [self._update.slots], self._update.own_slots
        self.scale = self._update.scale
        signature = [tf.TensorSpec((), tf.int64), *self.source.signature]
        self.graph = tf.compat.v1.wrap_function(self._build, signature)
        self.says = (*getattr(model, "says", ()), *remarks(spec), RECIPES[method].says)
        seedless = [one for one in self._serial.non_trainable_variables if not is_seed(one)]
        self.placement = VariableSet(
            ([one.value for one in self._serial.trainable_variables],), ([one.value for one in seedless],)
        )

    def __call__(self, number: int) -> StepOutcome:
        """Take one step; there is one loss."""
        fed = self.source.feed(number)
        step = tf.constant(number, tf.int64)
        loss, begin, marks, _, gradients, state = self.graph(step, *fed)
        self._update(gradients, state, step)
        return StepOutcome(np.array([loss.numpy()]), marks.numpy() - begin.numpy())

    def update_nodes(self) -> Sequence[Any]:
        """Return the nodes of the optimizer's function as built."""
        return self._update.nodes()

    def check_variables(self) -> dict[str, int]:
        """All variables are on the server."""
        sets = (self.placement.places[0], self.placement.states[0])
        return checking.check_variables([(one, [self._server] * len(one)) for one in sets])

    def _build(self, number: Tensor, *fed: Tensor) -> tuple[Any, ...]:
        begin = clock([])
        marks = Marks()
        towers = towers_of(self._parallel)
        for tower in towers:
            tower.marks = PassMarks(marks, begin, gates=self.spec.backend == "cpu")
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
        drawn = seeds(TowerRows(0, self._joint.joint_batch, Stream(self.spec.seed, _DROPOUT, number)))
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
                images = self._model.own_layout(images, self.spec.data_format)
            return images, labels


def joint_spec(spec: RunSpec) -> RunSpec:
    """Return the spec of the input: all towers' rows as one batch on the host."""
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
    """Return a Keras model that cuts its batch over `devices` (`/GPU:0`) as the method does.

    It shares the variables of `serial`, which stay where they are; `server` is that device. `batch`: the
    joint batch. `xla`: each tower is compiled by itself, forward and backward. `ending`
    changes a tower's outputs on its device and keeps their shape. Compile the model with jit_compile=False:
    a cluster has one device. Raises HardwareError if TensorFlow has no such device, UsageError for fewer
    rows than devices, or a serial model that has not one input and one output of a known shape.
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
    """Return the towers in order."""
    return [layer for layer in parallel.layers if isinstance(layer, Tower)]
