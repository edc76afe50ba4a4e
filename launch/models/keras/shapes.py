"""Input and output shapes of a Keras model."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from gputopo.launch.models.keras.foreign import Foreign
from gputopo.values.errors import UsageError

Shape = tuple[int | None, ...]
_ONE_EACH = "give one with one input and one output"


def shapes_of(model: keras.Model, name: str) -> tuple[tuple[int, ...], int]:
    """Return the shape of one example and the number of classes.

    Raises UsageError for a model that has not one input of floats and one output [batch, classes].
    """
    given, made = _inputs(model, name), _outputs(model, name)
    dtype = model.inputs[0].dtype if getattr(model, "inputs", None) else "float32"
    if len(given) < 2 or None in given[1:]:
        raise UsageError(
            f"the model '{name}' has no fixed input shape: {_shown(given)}",
            "give its Input all sizes but the batch's, such as keras.Input((224, 224, 3))",
        )
    if not str(dtype).startswith(("float", "bfloat")) or len(given) > 4:
        raise UsageError(
            f"the model '{name}' takes {dtype} of shape {_shown(given)}",
            "give one that takes images or rows of numbers in float32",
        )
    if len(made) != 2 or made[1] is None:
        raise UsageError(
            f"the model '{name}' outputs {_shown(made)}, not one row of classes for each example",
            "end it in a layer such as Flatten or GlobalAveragePooling2D, and Dense(classes)",
        )
    return tuple(size for size in given[1:] if size is not None), made[1]


def only(outputs: Any) -> Any:
    """Return the one output of a model, which may be a list of one."""
    return outputs[0] if isinstance(outputs, (list, tuple)) else outputs


def _inputs(model: keras.Model, name: str) -> Shape:
    if getattr(model, "inputs", None):
        return _one([tuple(one.shape) for one in model.inputs], name, "inputs")
    if not model.built:
        return None, None
    given = model.get_build_config()
    shape = None if given is None else given.get("input_shape", given)
    if shape and isinstance(shape, (list, tuple)) and isinstance(shape[0], (int, type(None))):
        return tuple(shape)
    if isinstance(shape, (list, tuple, Mapping)) and len(shape) > 1:
        raise UsageError(f"the model '{name}' has {len(shape)} inputs", _ONE_EACH)
    raise UsageError(f"the model '{name}' has no input shape", "build() it with the shape of a batch")


def _outputs(model: keras.Model, name: str) -> Shape:
    if not getattr(model, "inputs", None) and not model.built:
        return None, 1
    with Foreign(f"the model '{name}' has no known shapes", "give it a keras.Input, or build() it"):
        known = getattr(model, "inputs", None)
        made = model.compute_output_spec(known[0] if known else keras.KerasTensor(_inputs(model, name)))
    if isinstance(made, Mapping):
        listed = ", ".join(map(str, made))
        raise UsageError(f"the model '{name}' returns a dict of outputs: {listed}", _ONE_EACH)
    of_outputs = made if isinstance(made, (list, tuple)) else [made]
    return _one([tuple(one.shape) for one in of_outputs], name, "outputs")


def _one(found: Sequence[Shape], name: str, what: str) -> Shape:
    if len(found) != 1:
        raise UsageError(f"the model '{name}' has {len(found)} {what}", _ONE_EACH)
    return found[0]


def _shown(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("?" if size is None else str(size) for size in shape) + ")"
