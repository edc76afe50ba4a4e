"""Placements that are stale by one step, so that transfers and computing overlap.

Both change the variables in step t by the gradients of step t - 1, which one-step buffers on the towers'
devices hold: w(t+1) = w(t) - change by the gradients at w(t-1). The first step has none yet and applies
zeros (which still moves weights under weight decay, or with an optimizer that changes them for zeros). The
losses are those of w(t). Memory: one more set of gradients on every tower between steps, and for the staged
server one of weights.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.models.model import Model
from gputopo.launch.train.placement.cut_variables import whole_on
from gputopo.launch.train.placement.direct import ParameterServer, Replicated
from gputopo.launch.train.placement.interface import Waits
from gputopo.launch.train.placement.variables import assign, read
from gputopo.launch.train.reductions.reducer import Reducer

Tensor = Any


class StagedServer(ParameterServer):
    """A parameter server whose towers compute with weights that they fetched in the step before.

    In step t, while the towers compute: the gradients buffered in step t - 1 go to the server and are
    applied, and then the new weights go to the towers, for step t + 1. This is what --staged_vars of
    tf_cnn_benchmarks does, with one difference: there nothing orders the update and the fetch of a step, so
    that weights may be one step older still; here the fetch comes after the update. Moving statistics are not
    staged.
    """

    waits: Waits = "nothing"

    def __init__(
        self, model: Model, devices: Sequence[str], servers: Sequence[Sequence[str]], seed: int
    ) -> None:
        super().__init__(model, devices, servers, seed)
        self._staged = [_copies(self.places[0], device) for device in devices]
        self._gradients = _gradient_buffers(model, devices)
        self.buffers = [*_flat(self._staged), *_flat(self._gradients)]

    def weights(self, tower: int) -> list[Tensor]:
        """Read what was fetched in the step before."""
        return read(self._staged[tower])

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Add the gradients of the step before where each variable is."""
        return super().totals([[buffer.take() for buffer in of_tower] for of_tower in self._gradients])

    def store(
        self,
        weights: Sequence[Sequence[Tensor]],
        gradients: Sequence[Sequence[Tensor]],
        updates: Sequence[Any],
    ) -> list[Any]:
        """Fetch the changed weights, and buffer the gradients."""
        with tf.control_dependencies(list(updates)):
            fetched = read(self.stored[0])
        ops = _store_gradients(self._gradients, gradients)
        for device, staged, in_use in zip(self._devices, self._staged, weights, strict=True):
            copies = whole_on(device, self.places[0], fetched)
            with tf.control_dependencies(list(in_use)):  # this step's have been read
                ops += assign(staged, copies)
        return ops

    def reset_buffers(self) -> None:
        """Fetch the weights, and clear the gradients."""
        for staged in self._staged:
            for copy, variable in zip(staged, self.places[0], strict=True):
                copy.assign(variable.read_value())
        _clear(self._gradients)


class RelaxedReplicas(Replicated):
    """Replicas that apply the reduced gradients of the step before (relaxed consistency).

    In step t, while the towers compute: the gradients of step t - 1 are reduced. They are applied when all
    towers have computed, so that no weights change while a tower reads them. As
    --variable_consistency=relaxed of tf_cnn_benchmarks.
    """

    def __init__(self, model: Model, devices: Sequence[str], reducer: Reducer, seed: int) -> None:
        super().__init__(model, devices, reducer, seed)
        self._gradients = _gradient_buffers(model, devices)
        self.buffers = _flat(self._gradients)

    def totals(self, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """Reduce the gradients of the step before."""
        return super().totals([[buffer.take() for buffer in of_tower] for of_tower in self._gradients])

    def store(
        self,
        weights: Sequence[Sequence[Tensor]],
        gradients: Sequence[Sequence[Tensor]],
        updates: Sequence[Any],
    ) -> list[Any]:
        """Buffer the gradients."""
        return _store_gradients(self._gradients, gradients)

    def reset_buffers(self) -> None:
        """Clear the gradients."""
        _clear(self._gradients)


class Buffer:
    """A gradient that its device carries to the next step without a copy.

    `take` moves it out at the start of the step, so that its memory is free again as soon as it was used, and
    not only when this step's gradient is stored.

    In between it holds an empty tensor read from a variable, so that Grappler infers no shape: it takes all
    values assigned to a variable for tensors of one shape. With a constant it made filters of no numbers
    (gradients with momentum, reduced after 3 or 4 towers), and with one variable for all gradients it took
    them for gradients of one shape.
    """

    def __init__(self, shape: Sequence[int], device: str) -> None:
        self.shape = tuple(shape)
        self._variable = _of_any_shape(tf.zeros(self.shape), device)
        self._empty = _of_any_shape(tf.zeros((0,)), device)
        self.device: str = self._variable.device
        self._emptied: Tensor = None

    def take(self) -> Tensor:
        """Return the stored value and leave an empty tensor (builds ops)."""
        with tf.device(self.device):
            value = tf.ensure_shape(self._variable.read_value(), self.shape)
            with tf.control_dependencies([value]):
                self._emptied = self._assign(self._empty.read_value())
        return value

    def put(self, value: Tensor) -> Any:
        """Return the op that stores a value after the one before was taken."""
        with tf.control_dependencies([self._emptied]), tf.device(self.device):
            return self._assign(value)

    def assign(self, value: Any) -> None:
        """Store a value from outside the step (eagerly)."""
        self._variable.assign(value)

    def numpy(self) -> Any:
        """Return the value stored between two steps."""
        return self._variable.numpy()

    def _assign(self, value: Tensor) -> Any:
        return tf.raw_ops.AssignVariableOp(resource=self._variable.handle, value=value)


def _of_any_shape(value: Tensor, device: str) -> Any:
    with tf.device(device):
        return tf.Variable(value, trainable=False, name="buffered/gradient", shape=tf.TensorShape(None))


def _copies(variables: Sequence[Any], device: str) -> list[Any]:
    copies = []
    for variable in variables:
        value = variable.read_value()
        with tf.device(device):
            copies.append(tf.Variable(value, trainable=False, name="staged/weights"))
    return copies


def _gradient_buffers(model: Model, devices: Sequence[str]) -> list[list[Buffer]]:
    return [[Buffer(spec.shape, device) for spec in model.variables] for device in devices]


def _store_gradients(buffers: Sequence[Sequence[Buffer]], gradients: Sequence[Sequence[Tensor]]) -> list[Any]:
    return [
        buffer.put(value)
        for of_tower, values in zip(buffers, gradients, strict=True)
        for buffer, value in zip(of_tower, values, strict=True)
    ]


def _clear(buffers: Sequence[Sequence[Buffer]]) -> None:
    for buffer in _flat(buffers):
        buffer.assign(tf.zeros(buffer.shape))


def _flat(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [one for row in rows for one in row]
