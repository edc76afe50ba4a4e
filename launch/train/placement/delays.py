"""Strategies that are stale by one step, so that moving and computing overlap.

Both change the variables in step t by the gradients of step t - 1, which one-step buffers on the towers'
devices hold: w(t+1) = w(t) - change by the gradients at w(t-1). The first step has none yet and applies
zeros (an optimizer or a weight decay that does not stand still for zeros moves). The losses are those of
w(t), as ever. A buffer takes a tensor over without a copy and gives it away at the start of the next step,
so that the price is one more set of gradients on every tower between steps, and for the staged server one of
weights.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.models.models import Model
from gputopo.launch.train.placement.direct import ParameterServer, Replicated, Waits
from gputopo.launch.train.placement.variables import assign, read
from gputopo.launch.train.reductions.reducer import Reducer

Tensor = Any


class StagedServer(ParameterServer):
    """A parameter server whose towers compute with weights that they fetched in the step before.

    In step t, while the towers compute: the gradients that they kept in step t - 1 go to the server and are
    applied, and then the new weights go to the towers, for step t + 1. This is what --staged_vars of
    tf_cnn_benchmarks does, with one difference: there nothing orders the update and the fetch of a step, so
    that weights may be one step older still; here the fetch comes after the update. Moving statistics are not
    staged.
    """

    waits: Waits = "none"

    def __init__(self, model: Model, devices: Sequence[str], servers: Sequence[str], seed: int) -> None:
        super().__init__(model, devices, servers, seed)
        self._staged = [_copies(self.places[0], device) for device in devices]
        self._kept = _kept_gradients(model, devices)
        self.buffers = [*_flat(self._staged), *_flat(self._kept)]

    def weights(self, tower: int) -> list[Tensor]:
        """Read what was fetched in the step before."""
        return read(self._staged[tower])

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Add the gradients of the step before where each variable is."""
        return super().totals([[one.take() for one in kept] for kept in self._kept])

    def keep(
        self,
        weights: Sequence[Sequence[Tensor]],
        gradients: Sequence[Sequence[Tensor]],
        updates: Sequence[Any],
    ) -> list[Any]:
        """Fetch the changed weights, and keep the gradients."""
        with tf.control_dependencies(list(updates)):
            fetched = read(self.places[0])
        ops = _keep_gradients(self._kept, gradients)
        for device, staged, in_use in zip(self._devices, self._staged, weights, strict=True):
            with tf.device(device):
                copies = [tf.identity(value) for value in fetched]
            with tf.control_dependencies(list(in_use)):  # this step's have been read
                ops += assign(staged, copies)
        return ops

    def start_afresh(self) -> None:
        """Fetch the weights, and forget the gradients."""
        for staged in self._staged:
            for copy, variable in zip(staged, self.places[0], strict=True):
                copy.assign(variable.read_value())
        _forget(self._kept)


class RelaxedReplicas(Replicated):
    """Replicas that apply the reduced gradients of the step before (relaxed consistency).

    In step t, while the towers compute: the gradients of step t - 1 are reduced. They are applied when all
    towers have computed, so that no tower's weights change under its hands. As --variable_consistency=relaxed
    of tf_cnn_benchmarks.
    """

    def __init__(self, model: Model, devices: Sequence[str], reducer: Reducer, seed: int) -> None:
        super().__init__(model, devices, reducer, seed)
        self._kept = _kept_gradients(model, devices)
        self.buffers = _flat(self._kept)

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Reduce the gradients of the step before."""
        return super().totals([[one.take() for one in kept] for kept in self._kept])

    def keep(
        self,
        weights: Sequence[Sequence[Tensor]],
        gradients: Sequence[Sequence[Tensor]],
        updates: Sequence[Any],
    ) -> list[Any]:
        """Keep the gradients."""
        return _keep_gradients(self._kept, gradients)

    def start_afresh(self) -> None:
        """Forget the gradients."""
        _forget(self._kept)


class Kept:
    """A gradient that its device carries to the next step: given away there, not copied.

    So its memory is free again as soon as the next step has used it, and not only when that step's own
    gradient takes its place.

    What is in its place until then is a variable's value, of no numbers. TensorFlow's optimizer of graphs
    takes all that a variable is given to be of one shape, and concludes others from it: with a constant there
    it made filters of no numbers (gradients with momentum, reduced after 3 or 4 towers), and with one
    variable for all gradients it took them for gradients of one shape.
    """

    def __init__(self, shape: Sequence[int], device: str) -> None:
        self.shape = tuple(shape)
        self._variable = _of_any_shape(tf.zeros(self.shape), device)
        self._nothing = _of_any_shape(tf.zeros((0,)), device)
        self.device: str = self._variable.device
        self._taken: Tensor = None

    def take(self) -> Tensor:
        """Give what was kept, and keep nothing (builds ops)."""
        with tf.device(self.device):
            value = tf.ensure_shape(self._variable.read_value(), self.shape)
            with tf.control_dependencies([value]):
                self._taken = self._assign(self._nothing.read_value())
        return value

    def put(self, value: Tensor) -> Any:
        """Keep a value after the one before was taken; give the op."""
        with tf.control_dependencies([self._taken]), tf.device(self.device):
            return self._assign(value)

    def assign(self, value: Any) -> None:
        """Keep a value from outside the step (eagerly)."""
        self._variable.assign(value)

    def numpy(self) -> Any:
        """Give what is kept between two steps."""
        return self._variable.numpy()

    def _assign(self, value: Tensor) -> Any:
        return tf.raw_ops.AssignVariableOp(resource=self._variable.handle, value=value)


def _of_any_shape(value: Tensor, device: str) -> Any:
    with tf.device(device):
        return tf.Variable(value, trainable=False, name="kept/gradient", shape=tf.TensorShape(None))


def _copies(variables: Sequence[Any], device: str) -> list[Any]:
    copies = []
    for variable in variables:
        value = variable.read_value()
        with tf.device(device):
            copies.append(tf.Variable(value, trainable=False, name="staged/weights"))
    return copies


def _kept_gradients(model: Model, devices: Sequence[str]) -> list[list[Kept]]:
    return [[Kept(spec.shape, device) for spec in model.variables] for device in devices]


def _keep_gradients(kept: Sequence[Sequence[Kept]], gradients: Sequence[Sequence[Tensor]]) -> list[Any]:
    return [
        one.put(value)
        for row, values in zip(kept, gradients, strict=True)
        for one, value in zip(row, values, strict=True)
    ]


def _forget(kept: Sequence[Sequence[Kept]]) -> None:
    for one in _flat(kept):
        one.assign(tf.zeros(one.shape))


def _flat(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [one for row in rows for one in row]
