"""Input and output shapes of a Keras model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from gputopo.launch.models.keras_sources import foreign
from gputopo.values.errors import UsageError
from gputopo.values.run.spec import RunSpec

Shape = tuple[int | None, ...]
_ONE_EACH = "give one with one input and one output"


def shapes_of(model: keras.Model, name: str) -> tuple[tuple[int, ...], int]:
    """Return the shape of one example and the number of classes.

    Raises UsageError if the model does not have exactly one float input and one output [batch, classes].
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
            "use a model that takes images or rows of numbers in float32",
        )
    if len(made) != 2 or made[1] is None:
        raise UsageError(
            f"the model '{name}' outputs {_shown(made)}, not one row of classes for each example",
            "end it in a layer such as Flatten or GlobalAveragePooling2D, and Dense(classes)",
        )
    return tuple(size for size in given[1:] if size is not None), made[1]


def only(outputs: Any) -> Any:
    """Return the only output of a model, also if it is in a list."""
    return outputs[0] if isinstance(outputs, (list, tuple)) else outputs


def _inputs(model: keras.Model, name: str) -> Shape:
    if getattr(model, "inputs", None):
        if len(model.inputs) != 1:
            raise UsageError(f"the model '{name}' has {len(model.inputs)} inputs", _ONE_EACH)
        return tuple(model.inputs[0].shape)
    if not model.built:
        return None, None
    given = model.get_build_config() or {}
    shape = given.get("input_shape")
    if isinstance(shape, (list, tuple)) and shape and isinstance(shape[0], (int, type(None))):
        return tuple(shape)
    raise UsageError(f"the model '{name}' does not have exactly one input of a known shape", _ONE_EACH)


def _outputs(model: keras.Model, name: str) -> Shape:
    known = getattr(model, "inputs", None)
    if not known and not model.built:
        return None, 1
    with foreign(f"the model '{name}' has no known shapes", "give it a keras.Input, or build() it"):
        made = model.compute_output_spec(known[0] if known else keras.KerasTensor(_inputs(model, name)))
    of_outputs = list(made) if isinstance(made, (list, tuple, Mapping)) else [made]
    if isinstance(made, Mapping) or len(of_outputs) != 1:
        raise UsageError(f"the model '{name}' has {len(of_outputs)} outputs", _ONE_EACH)
    return tuple(of_outputs[0].shape)


def _shown(shape: Sequence[int | None]) -> str:
    return "(" + ", ".join("?" if size is None else str(size) for size in shape) + ")"


Tensor = Any
POLICIES = {"fp32": "float32", "bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
_MAX_NAMES = 3  # listed in a message


@dataclass(frozen=True)
class TracedModel:
    """A model that was traced once into a graph, in inference mode."""

    output: Tensor  # the tensor [batch, classes] in that graph
    losses: int  # number of losses that the model adds to the main loss
    read: Sequence[Any]  # the TensorFlow variables that it read


def traced_of(model: keras.Model, shape: Sequence[int], *, batch: int | None = 1) -> TracedModel:
    """Trace a model for `batch` examples of `shape` (None: any number). Raises what its code raises."""
    counted = []

    def once(rows: Tensor) -> Tensor:
        outputs, _, losses = model.stateless_call(
            [variable.value for variable in model.trainable_variables],
            [variable.value for variable in model.non_trainable_variables],
            rows,
            return_losses=True,
        )
        counted.append(len(losses))
        return only(outputs)

    graph = tf.function(once, autograph=False).get_concrete_function(
        tf.TensorSpec((batch, *shape), tf.float32)
    )
    return TracedModel(graph.outputs[0], counted[0], graph.variables)


def require_listed(traced: TracedModel, model: keras.Model, name: str) -> None:
    """Raise UsageError if a model uses variables that Keras does not list."""
    known = {id(variable.value) for variable in (*model.variables, *model.metrics_variables)}
    unknown = [variable.name for variable in traced.read if id(variable) not in known]
    if unknown:
        raise UsageError(
            f"the model '{name}' reads variables that Keras does not list: {named(unknown)}",
            "create them with the layer's add_weight; a tf.Variable is neither trained nor saved",
        )


def require_trainable(model: keras.Model, name: str, spec: RunSpec | None) -> None:
    """Raise UsageError if a run cannot train the model, or cannot train it as the model requires."""
    if not model.trainable_variables:
        raise UsageError(f"the model '{name}' has nothing to train", "give it layers with trainable weights")
    other = [variable for variable in model.trainable_variables if variable.dtype != "float32"]
    if other:
        paths = named([variable.path for variable in other])
        raise UsageError(
            f"the model '{name}' stores weights as {other[0].dtype} ({paths}), and runs keep them in float32",
            "remove the layers' dtype and use --precision, or use a policy such as mixed_bfloat16",
        )
    if spec is None:
        return
    wanted = keras.DTypePolicy(POLICIES[spec.precision.compute]).compute_dtype
    if wanted not in {layer.compute_dtype for layer in layers_of(model)}:
        raise UsageError(
            f"no layer of the model '{name}' computes in {wanted}: it sets its own types",
            "remove --precision, or let the model follow Keras's policy (no dtype arguments)",
        )
    _require_trainer(model, name, spec)


def require_any_batch(model: keras.Model, shape: Sequence[int], name: str) -> None:
    """Raise UsageError if the model needs a fixed batch size: an export accepts any size."""
    with foreign(
        f"the model '{name}' does not take a batch of any size, as --export needs it to",
        "use keras.ops.shape(x)[0] instead of x.shape[0], or remove --export",
    ):
        traced_of(model, shape, batch=None)


def layers_of(layer: Any) -> Iterator[Any]:
    """Yield a layer and all layers that Keras lists within it."""
    yield layer
    yield from layer._flatten_layers(include_self=False, recursive=True)


def computes_in(model: keras.Model) -> set[str]:
    """Return the types that the layers with weights compute in."""
    return {layer.compute_dtype for layer in layers_of(model) if layer._trainable_variables}


def other_types(types: set[str], compute: str) -> list[str]:
    """Return the types of a model's layers that differ from the run's `compute` (fp32, bf16, fp16).

    float32 layers in a model of a shorter type are not reported: Keras recommends float32 for the last layer.
    """
    wanted = POLICIES[compute].removeprefix("mixed_")
    usual = {wanted, "float32"} if wanted in types else {wanted}
    return sorted(types - usual)


def is_seed(variable: Any) -> bool:
    """Return whether a Keras variable is the seed of a random layer."""
    return bool(variable.path.rpartition("/")[2] == "seed_generator_state")


def _require_trainer(model: keras.Model, name: str, spec: RunSpec) -> None:
    """Raise UsageError if the model needs something that Keras's trainer does and gputopo's does not."""
    constrained = [variable.path for variable in model.trainable_variables if variable.constraint is not None]
    if constrained and spec.method is None and spec.task == "train":
        raise UsageError(
            f"the model '{name}' has constraints on weights ({named(constrained)}), which gputopo's "
            "optimizers ignore",
            "use --strategy kuza55, which applies them, or remove the constraints",
        )
    joined = [layer.name for layer in layers_of(model) if getattr(layer, "synchronized", False) is True]
    if joined and spec.strategy is None and spec.task == "train" and len(spec.devices) > 1:
        raise UsageError(
            f"the model '{name}' has norms over the batches of all devices ({named(joined)}), but here "
            "each device uses only its own batch",
            "use --strategy mirrored, or remove synchronized=True",
        )


def named(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are, for a message."""
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
