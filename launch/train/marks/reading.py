"""Time marks inside a step's graph: readings of the host's clock that depend on what was done on a device.

A mark depends on a scalar copied back from a tower's device. So synchronous training still shows which device
is slow, and nothing more than the step's own result is waited for. A tower's marks are read on its own host:
the network is in none of them, and they are of that host's clock.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.spec.names import host_of
from gputopo.launch.train.placement.devices import HOST

Tensor = Any
_SCOPE = "marks/"  # beside those of the towers: these ops are the host's on purpose


class Marks:
    """Makes the marks of one graph.

    `probes` have to be part of the graph's outcome, so that no optimizer drops their copies to the host.
    """

    def __init__(self) -> None:
        self.probes: list[Tensor] = []

    def arrived(self, tensors: Sequence[Tensor], device: str) -> Tensor:
        """Return a number [1] on the device's host that left the device after all the tensors were done.

        A slice of the last tensor, taken on the device after the others were queued, and copied back.
        """
        with tf.control_dependencies(list(tensors)):
            with tf.device(device):
                first = tf.strided_slice(tf.reshape(tensors[-1], (-1,)), [0], [1])  # [1]
            with tf.device(host_of(device)), tf.name_scope(_SCOPE):
                probe = tf.cast(tf.negative(first), tf.float32)
        self.probes.append(probe)
        return probe


def clock(after: Sequence[Tensor], host: str = HOST) -> Tensor:
    """Read a host's clock (seconds since the epoch, float64) after the given tensors are there."""
    with tf.device(host), tf.name_scope(_SCOPE), tf.control_dependencies(list(after)):
        return tf.timestamp()


def host_call(function: Callable[..., Any], given: Sequence[Tensor], kind: Any) -> Tensor:
    """Call a Python function on the host in each step, with these tensors as numpy values.

    It returns a number: the shape, which TensorFlow cannot know, is ().
    """
    with tf.device(HOST), tf.name_scope(_SCOPE):
        return tf.ensure_shape(tf.numpy_function(function, list(given), kind), ())


def row_of(marks: Sequence[Tensor], host: str = HOST) -> Tensor:
    """Put a tower's marks side by side on a host."""
    with tf.device(host), tf.name_scope(_SCOPE):
        return tf.stack(list(marks))
