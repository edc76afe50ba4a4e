"""Calls of Python functions in the processes of other hosts: rank 0 asks by an op on that host's device.

An op finds a Python function in its own process alone, by a token. So the server of another host registers
what answers there before it serves (`server.answers`).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

Tensor = Any
Answer = np.bool_ | np.int64 | bytes
Answering = Callable[..., Answer]
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


def ask(answering: Answering | None, question: str, *given: Any, dtype: Any) -> Tensor:
    """Ask by an op on the device in scope. `answering`: in this process; None: the server on that device."""
    arguments = [tf.constant(question), *map(tf.convert_to_tensor, given)]
    if answering is None:
        (answer,) = tf.raw_ops.PyFunc(input=arguments, token=_TOKEN, Tout=[dtype])
    else:
        answer = tf.numpy_function(answering, arguments, dtype)
    answer.set_shape(())
    return answer


def ask_host(device: str, question: str, *given: Any, dtype: Any) -> Any:
    """Ask the server on a device now, and return the answer as a numpy value or bytes."""
    with tf.device(device):
        return ask(None, question, *given, dtype=dtype).numpy()
