"""The user's own code run inside the worker: what it raises becomes a message of ours, with its line."""

import re
import traceback
from types import TracebackType
from typing import Literal

import tensorflow as tf

from gputopo.launch.models.user_line import line_of
from gputopo.values.errors import GputopoError, UsageError

_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_KERAS_FRAME = "Exception encountered when calling"  # Keras puts this line before what a layer raised
_BAD_NAME = re.compile("is not a valid (root )?scope name")  # TensorFlow on the name of a layer or model
_RENAME = "rename that layer or model: letters a to z and digits, and . _ - after the first of them"
_MAX_CHARACTERS = 300  # characters of someone else's message
_OURS = (GputopoError, MemoryError, tf.errors.ResourceExhaustedError)  # reported by other handlers


class Foreign:
    """A context for foreign code: an exception in it becomes a UsageError.

    `what`: what was being done, as the beginning of a line. `hint`: the remedy, where the exception has none.
    A foreign `sys.exit` counts as an exception; running out of memory does not.
    """

    def __init__(self, what: str, hint: str) -> None:
        self._what = what
        self._hint = hint

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """Raise what went wrong as a line that a user can act on."""
        if isinstance(error, (Exception, SystemExit)) and not isinstance(error, _OURS):
            hint = _RENAME if _BAD_NAME.search(str(error)) else self._hint
            line = None if isinstance(error, SyntaxError) else line_of(error)  # the former's text has it
            at = "" if line is None else f" ({line})"
            raise UsageError(f"{self._what}: {last_line(error)}{at}", hint) from error
        return False


def last_line(error: BaseException) -> str:
    """Return the line that Python would print last for an exception: its kind and message, shortened.

    Keras writes what an exception is about into the first line and its circumstances below.
    """
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SyntaxError):
        return f"{text.splitlines()[-1]} ({error.filename}, line {error.lineno})"
    first, *rest = [line.strip() for line in _COLOURS.sub("", text).splitlines() if line.strip()]
    return (f"{first} {rest[0]}" if _KERAS_FRAME in first and rest else first)[:_MAX_CHARACTERS]
