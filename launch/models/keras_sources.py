"""The user's own code run inside the worker: what it raises becomes a message of ours, with its line."""

import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import keras
import tensorflow as tf

from gputopo.launch.spec.model_names import ModelName, no_application, no_attribute, no_module
from gputopo.launch.train.op_errors import line_of
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


_SIDE = 224  # of pictures, where a model of keras.applications takes any: what its weights were trained with


def application(name: str) -> keras.Model:
    """Build a model of keras.applications by its name in any case: untrained, 1000 classes, giving logits.

    Raises UsageError that names the nearest ones.
    """
    known = applications()
    found = known.get(name.lower())
    if found is None:
        raise no_application(name, [one.__name__ for one in known.values()])
    with Foreign(f"keras:{found.__name__} cannot be built", "try --data-format NHWC, or another model"):
        # A model without its softmax has the same variables; the loss takes logits, which is exact.
        model = found(weights=None, classifier_activation=None)
        if None in model.input_shape[1:]:  # MobileNetV3 takes pictures of any size
            shape = tuple(_SIDE if side is None else side for side in model.input_shape[1:])
            model = found(weights=None, classifier_activation=None, input_shape=shape)
        return model


def applications() -> dict[str, Callable[..., keras.Model]]:
    """Return the functions of keras.applications that build models, by their names in lower case."""
    found = inspect.getmembers(keras.applications, inspect.isfunction)
    return {name.lower(): function for name, function in found}


def own_model(asked: ModelName, seed: int) -> keras.Model:
    """Import the user's module and return its model: a keras.Model, or the result of a function.

    The current folder counts, as in Python itself. `seed`: of the model's first values, whatever the module
    drew while it was imported. Raises UsageError.
    """
    name = f"{asked.module}:{asked.attribute}"
    module = _module(asked.module)
    _require_eager(asked.module)
    found = _attribute(module, asked)
    if isinstance(found, keras.Model):
        return found
    if not callable(found):
        raise UsageError(f"{name} is a {type(found).__name__}, no function", "name one that builds the model")
    _check_arguments(found, name)
    tried = f"python -c 'import {asked.module} as m; m.{asked.attribute}()' shows all of it"
    keras.utils.set_random_seed(seed)
    with Foreign(f"{name} failed", tried):
        model = found()
    _require_eager(name)
    if isinstance(model, keras.Model):
        return model
    if model is None:
        raise UsageError(f"{name} returns nothing (None)", "let the function return the model")
    if inspect.isclass(model):
        raise UsageError(
            f"{name} returns the class {model.__name__}, no model", "let it return one of the class"
        )
    if hasattr(model, "fit") and hasattr(model, "trainable_variables"):
        raise UsageError(
            f"{name} returns a model of {type(model).__module__.partition('.')[0]}, not of Keras 3",
            "build it with 'import keras', and without TF_USE_LEGACY_KERAS",
        )
    raise UsageError(
        f"{name} returns an object of type {type(model).__name__}, no keras.Model",
        "let the function return the model",
    )


def _module(name: str) -> Any:
    here = _here()
    if here is not None and str(here) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(here))
    hint = f"python -c 'import {name}' shows all of it"
    with Foreign(f"the module {name} cannot be imported", hint):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # one that the user's module asks for
            raise no_module(error.name) from error


def _here() -> Path | None:
    """Return the current folder; None if it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _require_eager(name: str) -> None:
    """Raise UsageError if the user's code has switched off what the training core computes with."""
    if not tf.executing_eagerly():
        raise UsageError(
            f"{name} switches off TensorFlow's eager execution, which a run needs",
            "leave out tf.compat.v1.disable_eager_execution() and tf.compat.v1.disable_v2_behavior()",
        )


def _attribute(module: Any, asked: ModelName) -> Any:
    found = module
    for part in asked.attribute.split("."):
        if not hasattr(found, part):
            missing = no_attribute(asked, part, dir(found))
            raise UsageError(missing.what, _shadowed(module, asked.module) or missing.hint)
        found = getattr(found, part)
    return found


def _shadowed(module: Any, name: str) -> str | None:
    """Return a hint if a module of this folder is shadowed by another one of the same name."""
    first = name.partition(".")[0]
    here = _here()
    if here is None:
        return None
    own = next((one for one in (here / f"{first}.py", here / first) if one.exists()), None)
    taken = getattr(module, "__file__", None)
    if own is None or (taken is not None and Path(taken).resolve().is_relative_to(here.resolve())):
        return None
    return f"Python has another module '{first}' ({taken or 'built in'}): rename {own.name} of this folder"


def _check_arguments(function: Callable[..., Any], name: str) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise UsageError(
            f"{name} cannot be called without arguments: {error}", "name a function that needs none"
        ) from error
    except ValueError:  # a builtin without a signature: calling it will show
        return
