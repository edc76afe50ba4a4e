"""Exports the trained model to files for one device, which TensorFlow, Keras or numpy load without gputopo.

| file           | what it is                                                                           |
|----------------|--------------------------------------------------------------------------------------|
| saved_model/   | `tf.saved_model.load(...)`: signature serving_default, images [n, h, w, c] float32 in, |
|                | `logits` and `probabilities` [n, classes] out, with the moving statistics              |
| weights.npz    | variables and moving statistics by name, as numpy arrays                             |
| model.json     | model, input shape, classes, steps trained, and the shape of each array              |
| model.keras    | for Keras models: `keras.models.load_model(...)`                                     |
"""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from gputopo.launch.models.layers import Stream, TowerRows
from gputopo.launch.models.model import Model
from gputopo.launch.train.lifecycle.checkpoint_files import names_of
from gputopo.launch.train.lifecycle.folders import (
    DiskError,
    move_all,
    require_empty,
    require_writable,
    temporary_in,
)
from gputopo.launch.train.op_errors import disk_reason
from gputopo.launch.train.placement.devices import HOST
from gputopo.launch.train.stepper import Emit, VariableSets
from gputopo.values import schema
from gputopo.values.run.events import Exported, Noticed, PhaseBegun
from gputopo.values.run.spec import RunSpec

Array = np.ndarray[Any, Any]
_ANY = -1  # any number of rows


class ExportedModel(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.export/1"):
    """Contents of model.json. `arrays`: the shape of each array in weights.npz, trained variables first."""

    model: str
    input_shape: tuple[int, int, int]
    classes: int
    loss: str
    steps: int
    parameters: int
    arrays: dict[str, tuple[int, ...]]


class Export:
    """Writes the model of a run to the spec's export folder, if there is one."""

    def __init__(self, model: Model, spec: RunSpec, emit: Emit) -> None:
        """Check the folder before training. Raises UsageError if it is not empty, and DiskError."""
        self._model = model
        self._spec = spec
        self._emit = emit
        self._folder = None if spec.lifecycle.export is None else Path(spec.lifecycle.export)
        if self._folder is not None:
            require_writable(self._folder, "--export")
            require_empty(self._folder)

    def write(self, placement: VariableSets, *, steps: int) -> None:
        """Write the first place's variables: all files or none. Raises DiskError."""
        if self._folder is None:
            return
        self._emit(PhaseBegun(time_s=time.time(), phase="export"))
        began = time.perf_counter()
        if self._spec.variable_update == "independent" and len(placement.places) > 1:
            says = "The devices trained independently: the first one's model is exported."
            self._emit(Noticed(time_s=time.time(), says=says))
        short = getattr(self._model, "short_types", ())
        if short:
            says = (
                f"The exported model's layers compute in {' and '.join(short)}, as they did in training; its "
                "weights are in float32."
            )
            self._emit(Noticed(time_s=time.time(), says=says))
        weights = [variable.numpy() for variable in placement.places[0]]
        state = [variable.numpy() for variable in placement.states[0]] if placement.states else []
        temporary = temporary_in(self._folder)
        try:
            temporary.mkdir()
            formats = self._write_all(temporary, weights, state, steps)
            move_all(temporary, self._folder)
        except (OSError, tf.errors.OpError) as error:
            raise DiskError(
                f"cannot write the exported model in {self._folder}: {disk_reason(error)}",
                "free some space, or use another folder with --export",
                "export",
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._emit(
            Exported(
                time_s=time.time(),
                path=str(self._folder),
                formats=formats,
                seconds=time.perf_counter() - began,
            )
        )

    def _write_all(
        self, folder: Path, weights: list[Array], state: list[Array], steps: int
    ) -> tuple[str, ...]:
        _save_arrays(folder, self._model, self._spec.model, weights, state, steps)
        module = serving(self._model, weights, state)
        tf.saved_model.save(
            module,
            str(folder / "saved_model"),
            signatures={"serving_default": module.serve},
            # Only the forward pass is exported: custom gradients are not needed.
            options=tf.saved_model.SaveOptions(experimental_custom_gradients=False),
        )
        if not hasattr(self._model, "put"):
            return ("saved_model", "npz")
        self._model.put(weights, state)
        self._model.keras.save(folder / "model.keras")  # type: ignore[attr-defined]
        return ("saved_model", "npz", "keras")


def serving(model: Model, weights: Sequence[Array], state: Sequence[Array]) -> Any:
    """Return a tf.Module with the values as its variables, and a function `serve` from images to logits."""
    module = tf.Module()
    with tf.device(HOST):
        module.weights = [tf.Variable(value, trainable=True) for value in weights]
        module.statistics = [tf.Variable(value, trainable=False) for value in state]
    signature = [tf.TensorSpec((None, *model.input_shape), tf.float32, name="images")]

    def serve(images: Any) -> dict[str, Any]:  # [n, h, w, c]
        rows = TowerRows(0, _ANY, Stream(0, 0))
        passed = model.forward(
            [weight.read_value() for weight in module.weights],
            [variable.read_value() for variable in module.statistics],
            images,
            rows,
            "NHWC",
            training=False,
        )
        likely = tf.sigmoid if model.loss == "sigmoid" else tf.nn.softmax
        return {"logits": passed.logits, "probabilities": likely(passed.logits)}  # [n, classes]

    module.serve = tf.function(serve, input_signature=signature, autograph=False)
    return module


def _save_arrays(
    folder: Path, model: Model, name: str, weights: list[Array], state: list[Array], steps: int
) -> None:
    names = names_of([spec.name for spec in (*model.variables, *model.state)])
    arrays = dict(zip(names, [*weights, *state], strict=True))
    np.savez(folder / "weights.npz", **arrays)  # type: ignore[arg-type]
    described = ExportedModel(
        model=name,
        input_shape=model.input_shape,
        classes=model.classes,
        loss=model.loss,
        steps=steps,
        parameters=sum(value.size for value in weights),
        arrays={name: tuple(array.shape) for name, array in arrays.items()},
    )
    (folder / "model.json").write_text(schema.encode_pretty(described))
