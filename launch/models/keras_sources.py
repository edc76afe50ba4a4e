"""Runs the user's code inside the worker: an exception becomes a UsageError with the user's line."""

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from gputopo.launch.spec.model_names import ModelName, no_application, no_attribute, no_module
from gputopo.launch.train.user_lines import line_of
from gputopo.values.errors import GputopoError, UsageError

_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_KERAS_FRAME = "Exception encountered when calling"  # Keras puts this line before a layer's own message
_MAX_CHARACTERS = 300  # of a message from foreign code
_OURS = (GputopoError, MemoryError, tf.errors.ResourceExhaustedError)  # reported by other handlers


@contextmanager
def foreign(what: str, hint: str) -> Iterator[None]:
    """Run foreign code in this context: an exception in it becomes a UsageError.

    `what`: what was being done, as the beginning of the message. `hint`: the remedy, if the exception has
    none. `sys.exit` in foreign code counts as an exception; running out of memory does not.
    """
    try:
        yield
    except _OURS:
        raise
    except (Exception, SystemExit) as error:
        line = None if isinstance(error, SyntaxError) else line_of(error)  # its text has the line
        at = "" if line is None else f" ({line})"
        raise UsageError(f"{what}: {last_line(error)}{at}", hint) from error


def last_line(error: BaseException) -> str:
    """Return the last line that Python would print for an exception: its kind and message, shortened.

    Keras puts the cause in the first line of its message and the context below it; the context is dropped.
    """
    text = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, SyntaxError):
        return f"{text.splitlines()[-1]} ({error.filename}, line {error.lineno})"
    first, *rest = [line.strip() for line in _COLOURS.sub("", text).splitlines() if line.strip()]
    return (f"{first} {rest[0]}" if _KERAS_FRAME in first and rest else first)[:_MAX_CHARACTERS]


_SIDE = 224  # image side if a keras.applications model takes any size: its weights were trained with it


def application(name: str) -> keras.Model:
    """Build an untrained model of keras.applications with 1000 classes that outputs logits.

    The case of the name does not matter. Raises UsageError with the most similar names if there is no such
    model.
    """
    known = applications()
    make = known.get(name.lower())
    if make is None:
        raise no_application(name, [build.__name__ for build in known.values()])
    with foreign(f"keras:{make.__name__} cannot be built", "try --data-format NHWC, or another model"):
        # Without its softmax a model has the same variables, and the loss of logits is exact.
        model = make(weights=None, classifier_activation=None)
        if None in model.input_shape[1:]:  # MobileNetV3 takes images of any size
            shape = tuple(_SIDE if side is None else side for side in model.input_shape[1:])
            model = make(weights=None, classifier_activation=None, input_shape=shape)
        return model


def applications() -> dict[str, Callable[..., keras.Model]]:
    """Return the functions of keras.applications that build models, by lower-case name."""
    functions = inspect.getmembers(keras.applications, inspect.isfunction)
    return {name.lower(): function for name, function in functions}


def own_model(asked: ModelName, seed: int) -> keras.Model:
    """Import the user's module and return its model: a keras.Model, or the result of a function.

    The current folder is searched, as in Python. `seed` determines the initial values, whatever numbers the
    module drew while it was imported. Raises UsageError.
    """
    name = f"{asked.module}:{asked.attribute}"
    attribute = _module(asked.module)
    for part in asked.attribute.split("."):
        if not hasattr(attribute, part):
            raise no_attribute(asked, part, dir(attribute))
        attribute = getattr(attribute, part)
    if isinstance(attribute, keras.Model):
        return attribute
    model, says = attribute, "is"
    if callable(attribute):
        keras.utils.set_random_seed(seed)
        with foreign(
            f"{name} failed", f"python -c 'import {asked.module} as m; m.{asked.attribute}()' shows it"
        ):
            model, says = attribute(), "returns"
    if isinstance(model, keras.Model):
        return model
    kind = f"{type(model).__module__.partition('.')[0]}.{type(model).__name__}"
    raise UsageError(
        f"{name} {says} an object of type {kind}, not a keras.Model",
        "give a Keras 3 model, or a function without arguments that returns one",
    )


def _module(name: str) -> Any:
    if os.curdir not in sys.path and "" not in sys.path:
        sys.path.insert(0, "")
    with foreign(f"the module {name} cannot be imported", f"python -c 'import {name}' shows all of it"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # a module that the user's module imports
            raise no_module(error.name) from error
