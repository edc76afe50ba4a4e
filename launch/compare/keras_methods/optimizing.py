"""Keras's optimizers with the settings of a run, and the preparation of their gradients."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from gputopo.launch.spec.run_spec import Optimization, RunSpec
from gputopo.launch.train.precision import LossScale, run_if
from gputopo.launch.train.updating import learning_rate

Tensor = Any


def optimizer_of(spec: Optimization, rate: float) -> keras.optimizers.Optimizer:
    """Return the optimizer that a spec names. Decay and clipping are left to `prepared`."""
    if spec.optimizer == "rmsprop":
        return keras.optimizers.RMSprop(
            rate, rho=spec.rmsprop_decay, momentum=spec.rmsprop_momentum, epsilon=spec.rmsprop_epsilon
        )
    if spec.optimizer == "adam":
        return keras.optimizers.Adam(rate, spec.adam_beta1, spec.adam_beta2, spec.adam_epsilon)
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
