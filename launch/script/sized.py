"""The model of the user's script as the planner needs it: a name, and what a step of it costs.

Its code is counted in a child process, because building a model makes TensorFlow's devices: here that must
wait until the strategy has set them.
"""

import math
import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import msgspec

from gputopo.launch.jobs.model_costs import PATIENCE_S, workload_of
from gputopo.launch.spec import model_names
from gputopo.launch.spec.env import NO_GPU
from gputopo.values.errors import GputopoError, UsageError
from gputopo.workload import workloads
from gputopo.workload.workloads import Workload

OWN = "own:model"  # stands for a model without a name


class Sized(NamedTuple):
    """A model. `name`: None for none; `workload`: None where its table has it; `says`: what is not exact."""

    name: str | None = None
    workload: Workload | None = None
    says: str | None = None


NO_MODEL = Sized()


def sized(
    model: object,
    environ: Mapping[str, str],
    *,
    by_name: Callable[[str, Mapping[str, str]], Workload] = workload_of,
    by_building: Callable[[Callable[[], Any]], "Workload | int"] | None = None,
) -> Sized:
    """Return the sizes of a model: a name, a number of parameters, a function that builds it, or itself.

    A number is planned for as the nearest model of the table. Raises UsageError for anything else, and for a
    model that cannot be built.
    """
    if model is None:
        return NO_MODEL
    if isinstance(model, str):
        asked = model_names.read(model)
        return Sized(asked.attribute) if asked.kind == "network" else Sized(model, by_name(model, environ))
    if isinstance(model, int) and not isinstance(model, bool):
        return _nearest(model)
    if is_built(model):
        return _counted(cost_of(model))
    if not callable(model):
        raise UsageError(
            f"a model cannot be a {type(model).__name__}",
            "give a name, a number of parameters, or the function that builds a Keras model",
        )
    return _counted((by_building or in_child)(model))


def is_built(model: object) -> bool:
    """Return whether it is a Keras model, not a class or function that makes one."""
    return hasattr(model, "trainable_weights") and not isinstance(model, type)


def cost_of(model: Any) -> "Workload | int":
    """Return the costs of a Keras model, or its number of parameters where its steps cannot be followed."""
    from gputopo.launch.models.keras_building import KerasModel
    from gputopo.launch.models.keras_costs import costs_of

    try:
        return costs_of(KerasModel(model, name=OWN), OWN)
    except GputopoError:
        return sum(math.prod(map(int, one.shape)) for one in model.trainable_weights)


def in_child(build: Callable[[], Any]) -> "Workload | int":
    """Build a model in a fork of this process without GPUs, and return its costs.

    Raises UsageError where it cannot be built.
    """
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_build, args=(build, sending), daemon=True)
    child.start()
    sending.close()
    try:
        answer: str = receiving.recv() if receiving.poll(PATIENCE_S) else "it does not end"
    except EOFError:
        child.join()
        answer = f"its process ended with {child.exitcode}"
    finally:
        child.kill()
        child.join()
        receiving.close()
    if answer.isdecimal():
        return int(answer)
    if answer.startswith("{"):
        return msgspec.json.decode(answer, type=Workload)
    raise UsageError(f"the model cannot be built: {answer}", "call its function alone to see where it fails")


def _build(build: Callable[[], Any], answers: Connection) -> None:
    os.environ.update(NO_GPU)
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    try:
        model = build()
        if not is_built(model):
            raise TypeError(f"it returns a {type(model).__name__}, no Keras model")
        found = cost_of(model)
        answers.send(str(found) if isinstance(found, int) else msgspec.json.encode(found).decode())
    except Exception as error:  # noqa: BLE001  whatever the user's code raises is the answer
        answers.send(f"{type(error).__name__}: {error}".splitlines()[0])


def _counted(found: "Workload | int") -> Sized:
    return _nearest(found) if isinstance(found, int) else Sized(OWN, found)


def _nearest(parameters: int) -> Sized:
    """Return the model of the table whose number of parameters is nearest, by their ratio."""
    if parameters < 1:
        raise UsageError(
            f"{parameters} is no number of parameters", "give that of model.count_params(), 1 or more"
        )
    known = [workloads.require(name) for name in workloads.names()]
    near = min(known, key=lambda one: abs(math.log(one.parameters / parameters)))
    says = f"{parameters:,} parameters are planned for as {near.name} with {near.parameters:,}"
    return Sized(near.name, None, says)
