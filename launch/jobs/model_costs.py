"""Costs of models that gputopo has no table for: `keras:NAME` and the user's `module:function`.

Such a model is built once, in a child without GPUs. Its costs are stored under a hash of their inputs: the
name, the version of Keras, and the files of the user's module. They are in `$GPUTOPO_HOME/models`, else in
the user's data folder, and later reads need no TensorFlow.
"""

import contextlib
import hashlib
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gputopo.launch.spec import model_names
from gputopo.launch.spec.env import NO_GPU
from gputopo.launch.spec.model_names import ModelName
from gputopo.runs import data_folder
from gputopo.values import schema
from gputopo.values.errors import GputopoError, InputError, UsageError
from gputopo.workload import Workload, require_workload, workload_names

# TensorFlow loads within seconds, from a cold disk within a minute; the largest Keras models take as long to
# build.
PATIENCE_S = 300.0
_RULES = 1  # version of the counting; a new one makes stored costs invalid


class _Costs(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.model_costs/1"):
    """The costs of one model. A child's answer can also have the number of parameters, or an error."""

    workload: Workload | None = None
    parameters: int | None = None
    refused: tuple[str, str] | None = None  # what and hint
    failed: str | None = None


def workload_of(name: str) -> Workload:
    """Return the costs of any model by its name: from a table, as stored, or by building it in a child.

    Raises UsageError for an unknown name or a model that cannot be built, and InputError if the child fails.
    """
    known = known_workload(name)
    if known is not None:
        return known
    workload = _built(name)
    file = _file(model_names.read_model_name(name))
    with contextlib.suppress(OSError, InputError):  # the next plan builds the model again
        file.parent.mkdir(parents=True, exist_ok=True)
        schema.write(file, _Costs(workload=workload))
    return workload


def known_workload(name: str) -> Workload | None:
    """Return the costs of a model from a table or as stored; None if it has not been built yet.

    Raises UsageError for an unknown name.
    """
    asked = model_names.read_model_name(name)
    if asked.kind == "network":
        return require_workload(asked.attribute)
    file = _file(asked)
    try:
        return schema.decode(file.read_bytes(), _Costs, origin=str(file)).workload
    except (OSError, InputError):
        return None


def content_of(asked: ModelName) -> str:
    """Return the hash (SHA-256, hex) of everything that determines the costs of a model.

    From the user's code, this includes the file of the module, or all files of its package, but not its
    imports from elsewhere.
    """
    digest = hashlib.sha256()
    for part in (str(_RULES), asked.kind, asked.module, asked.attribute, _keras_version()):
        digest.update(f"{part}\0".encode())
    for file in _files(asked.module) if asked.kind == "own" else ():
        with contextlib.suppress(OSError):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _file(asked: ModelName) -> Path:
    return data_folder(os.environ) / "models" / f"{content_of(asked)}.json"


def _keras_version() -> str:
    try:
        return metadata.version("keras")
    except metadata.PackageNotFoundError:
        return ""


def _files(module: str) -> Iterator[Path]:
    """Yield the user's files in a fixed order; none for a module that is not found."""
    first = module.partition(".")[0]
    for folder in map(Path, [os.curdir, *os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]):
        if (folder / f"{first}.py").is_file():
            yield folder / f"{first}.py"
            return
        if (folder / first).is_dir():
            yield from sorted((folder / first).rglob("*.py"))
            return


def _built(name: str) -> Workload:
    """Build a model in a child."""

    def count() -> Workload:
        from gputopo.launch.models import build_keras, count_costs

        return count_costs(build_keras(model_names.read_model_name(name), None), name)

    answer = _answer_of(count)
    if answer.workload is None:
        raise InputError(
            f"the model '{name}' cannot be built here: {answer.failed}",
            "install TensorFlow and Keras as gputopo run needs them, or plan with a model of gputopo",
        )
    return answer.workload


OWN = "own:model"  # represents a model without a name


class Sized(NamedTuple):
    """A model. `name`: None without a name; `workload`: None if a table has it; `says`: what is inexact."""

    name: str | None = None
    workload: Workload | None = None
    says: str | None = None


NO_MODEL = Sized()


def sized(model: object) -> Sized:
    """Return the sizes of a model: a name, a number of parameters, a function that builds it, or a model.

    For a number, the nearest model of the table is used. If TensorFlow has looked for devices, nothing is
    built, because a fork of a process with TensorFlow's threads hangs. Raises UsageError for any other type,
    and for a model that cannot be built.
    """
    if model is None:
        return NO_MODEL
    if isinstance(model, str) and (asked := model_names.read_model_name(model)).kind == "network":
        return Sized(asked.attribute)
    if isinstance(model, int) and not isinstance(model, bool):
        return _nearest(model)
    if is_built(model):
        return _counted(cost_of(model))
    if not isinstance(model, str) and not callable(model):
        raise UsageError(
            f"a model cannot be a {type(model).__name__}",
            "give a name, a number of parameters, or the function that builds a Keras model",
        )
    is_stored = isinstance(model, str) and known_workload(model) is not None
    if not is_stored and of_tensorflow("_physical_devices"):
        return Sized(says="the costs of the model are not counted, since TensorFlow has started")
    if isinstance(model, str):
        return Sized(model, workload_of(model))
    return _counted(in_child(model))


def of_tensorflow(fact: str) -> bool:
    """Return whether a field of TensorFlow's context is set, without loading TensorFlow or making devices.

    `_physical_devices`: TensorFlow has looked for devices; `_initialized`: it has made them. The public
    functions for this make the devices.
    """
    context = sys.modules.get("tensorflow.python.eager.context")
    return context is not None and bool(getattr(context.context(), fact))


def is_built(model: object) -> bool:
    """Return whether an object is a Keras model, and not a class or function that makes one."""
    return hasattr(model, "trainable_weights") and not isinstance(model, type)


def cost_of(model: Any) -> "Workload | int":
    """Return the costs of a Keras model, or its number of parameters if its steps cannot be traced."""
    from gputopo.launch.models import KerasModel, count_costs

    try:
        return count_costs(KerasModel(model, name=OWN), OWN)
    except GputopoError:
        return sum(math.prod(map(int, weight.shape)) for weight in model.trainable_weights)


def in_child(build: Callable[[], Any]) -> "Workload | int":
    """Build a model in a child, and return its costs. Raises UsageError if it cannot be built."""

    def count() -> "Workload | int":
        model = build()
        if not is_built(model):
            raise TypeError(f"it returns a {type(model).__name__}, not a Keras model")
        return cost_of(model)

    answer = _answer_of(count)
    costs = answer.parameters if answer.workload is None else answer.workload
    if costs is None:
        raise UsageError(
            f"the model cannot be built: {answer.failed}",
            "call its function separately to see where it fails",
        )
    return costs


def _answer_of(count: Callable[[], "Workload | int"]) -> _Costs:
    """Count in a fork of this process that sees no GPUs and prints nothing.

    Raises UsageError if gputopo refuses the model.
    """
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_count, args=(count, sending), daemon=True)
    child.start()
    sending.close()
    answer = _Costs(failed=f"it does not end within {PATIENCE_S:.0f} s")
    try:
        if receiving.poll(PATIENCE_S):
            answer = msgspec.json.decode(receiving.recv_bytes(), type=_Costs)
    except EOFError:
        child.join()
        answer = _Costs(failed=f"its process ended with {child.exitcode}")
    finally:
        child.kill()
        child.join()
        receiving.close()
    if answer.refused is not None:
        raise UsageError(*answer.refused)
    return answer


def _count(count: Callable[[], "Workload | int"], answers: Connection) -> None:
    os.environ.update(NO_GPU)
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    try:
        costs = count()
        answer = _Costs(parameters=costs) if isinstance(costs, int) else _Costs(workload=costs)
    except GputopoError as error:
        answer = _Costs(refused=(error.what, error.hint))
    except BaseException as error:  # noqa: BLE001  whatever the user's code raises is the answer
        answer = _Costs(failed=f"{type(error).__name__}: {error}".splitlines()[0])
    answers.send_bytes(msgspec.json.encode(answer))


def _counted(answer: "Workload | int") -> Sized:
    return _nearest(answer) if isinstance(answer, int) else Sized(OWN, answer)


def _nearest(parameters: int) -> Sized:
    """Return the model of the table with the nearest number of parameters, by ratio."""
    if parameters < 1:
        raise UsageError(
            f"{parameters} is not a number of parameters",
            "give the number from model.count_params(), 1 or more",
        )
    known = [require_workload(name) for name in workload_names()]
    near = min(known, key=lambda workload: abs(math.log(workload.parameters / parameters)))
    says = f"{parameters:,} parameters: planned as {near.name} with {near.parameters:,}"
    return Sized(near.name, None, says)
