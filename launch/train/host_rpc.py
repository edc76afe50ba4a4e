"""Calls of Python functions in the processes of other hosts: rank 0 asks by an op on that host's device.

An op finds a Python function in its own process alone, by a token. So the server of another host registers
what answers there before it serves (`server.answers`).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

Answering = Callable[..., np.int64 | bytes]
"""Answers a question (bytes) about what is given (numpy values)."""
_TOKEN = "pyfunc_0"  # of the first function that a process registers


def register(answering: Answering) -> Any:
    """Let ops that another process puts on this one's devices ask, while the returned is referenced.

    It must be the first Python function that this process gives TensorFlow.
    """
    with tf.Graph().as_default() as kept:
        op = tf.numpy_function(answering, [""], tf.bool).op
    assert op.get_attr("token") == _TOKEN.encode(), "another function was registered first"
    return kept


def ask_host(device: str, question: str, *given: Any, dtype: Any) -> Any:
    """Ask the server on a device now, and return the answer as a numpy value or bytes."""
    with tf.device(device):
        arguments = [tf.constant(question), *map(tf.convert_to_tensor, given)]
        (answer,) = tf.raw_ops.PyFunc(input=arguments, token=_TOKEN, Tout=[dtype])
        return answer.numpy()
