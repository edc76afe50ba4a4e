"""Starts and watches training; the TensorFlow core lives here. TensorFlow loads only in the worker.

`strategy` is for the user's own script, and loads TensorFlow when it is called.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputopo.launch.user_strategy import strategy as strategy

__all__ = ["strategy"]


def __getattr__(name: str) -> object:
    """Load the module of a public name when the name is used."""
    if name not in __all__:
        raise AttributeError(f"module 'gputopo.launch' has no attribute {name!r}")
    from gputopo.launch import user_strategy

    return user_strategy.strategy
