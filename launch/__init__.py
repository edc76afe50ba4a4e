"""Starts and watches training; the TensorFlow core lives here. TensorFlow loads only in the worker.

`strategy` is for the user's own script, and loads TensorFlow when it is called.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf


def strategy(model: object = None, **asked: Any) -> "tf.distribute.Strategy":
    """Return the strategy of the plan: `gputopo.launch.user_strategy.strategy`, arguments and errors."""
    from gputopo.launch.user_strategy import strategy as of_plan

    return of_plan(model, **asked)
