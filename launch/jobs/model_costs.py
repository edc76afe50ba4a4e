"""Costs of models that gputopo has no table of: `keras:NAME` and the user's `module:function`.

Such a model is built once, in a child without GPUs. Its costs are stored by the content of what they follow
from (the name, the version of Keras, the files of the user's module) in `$GPUTOPO_HOME/models`, else in the
user's data folder, and read from there without TensorFlow.
"""

import contextlib
import hashlib
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gputopo.launch.failure import last_words
from gputopo.launch.spec import model_names
from gputopo.launch.spec.env import NO_GPU
from gputopo.launch.spec.model_names import ModelName
from gputopo.probes.processes import in_session, tethered
from gputopo.values import schema
from gputopo.values.errors import GputopoError, InputError, UsageError
from gputopo.workload import workloads
from gputopo.workload.workloads import Workload

# TensorFlow loads in seconds, from a cold disk in up to a minute; the largest Keras models build in as long.
PATIENCE_S = 300.0
_RULES = 1  # of counting: other numbers for the same model make it a new content


Command = Callable[[str, Path], Sequence[str]]
"""Makes the command line that builds a model by its name and writes its costs to a file."""


def child_command(name: str, answer: Path) -> Sequence[str]:
    """Return the command of the real child. -P: files of the current folder do not shadow packages."""
    return (sys.executable, "-P", "-m", "gputopo.launch.jobs.model_costs", name, str(answer))


class _Refused(msgspec.Struct, frozen=True):
    """Why a model cannot be built."""

    what: str
    hint: str


class _Costs(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.model_costs/1"):
    """The costs of one model, or why it cannot be built."""

    workload: Workload | None = None
    refused: _Refused | None = None


def workload_of(
    name: str, environ: Mapping[str, str] = os.environ, *, command: Command = child_command
) -> Workload:
    """Return the costs of any model by its name: from a table, as stored, or by building it in a child.

    Call it from the main thread.

    Raises UsageError for a name of nothing or a model that cannot be built, InputError where the child fails.
    """
    known = known_workload(name, environ)
    if known is not None:
        return known
    found = _built(name, environ, command)
    file = _file(model_names.read(name), environ)
    with contextlib.suppress(OSError, InputError):  # the next plan builds it again
        file.parent.mkdir(parents=True, exist_ok=True)
        schema.write(file, _Costs(workload=found))
    return found


def known_workload(name: str, environ: Mapping[str, str] = os.environ) -> Workload | None:
    """Return the costs of a model from a table or as stored, None before it was built.

    Raises UsageError for a name of nothing.
    """
    asked = model_names.read(name)
    if asked.kind == "network":
        return workloads.require(asked.attribute)
    file = _file(asked, environ)
    try:
        return schema.decode(file.read_bytes(), _Costs, origin=str(file)).workload
    except (OSError, InputError):
        return None


def models_home(environ: Mapping[str, str]) -> Path:
    """Return the folder of stored costs: `$GPUTOPO_HOME/models`, else in the user's data folder."""
    home = environ.get("GPUTOPO_HOME")
    if home:
        return Path(home) / "models"
    import platformdirs

    return Path(platformdirs.user_data_dir("gputopo")) / "models"


def content_of(asked: ModelName) -> str:
    """Return the hash (SHA-256, hex) of all that the costs of a model follow from.

    Of the user's code: the file of the module, or all of its package. What it imports from elsewhere is not
    looked at.
    """
    digest = hashlib.sha256()
    for part in (str(_RULES), asked.kind, asked.module, asked.attribute, _keras_version()):
        digest.update(f"{part}\0".encode())
    for file in _files(asked.module) if asked.kind == "own" else ():
        with contextlib.suppress(OSError):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _file(asked: ModelName, environ: Mapping[str, str]) -> Path:
    return models_home(environ) / f"{content_of(asked)}.json"


def _keras_version() -> str:
    try:
        return metadata.version("keras")
    except metadata.PackageNotFoundError:
        return ""


def _files(module: str) -> Iterator[Path]:
    """Yield the user's files in a fixed order; none for a module that is found nowhere."""
    first = module.partition(".")[0]
    for folder in map(Path, [os.curdir, *os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path]):
        if (folder / f"{first}.py").is_file():
            yield folder / f"{first}.py"
            return
        if (folder / first).is_dir():
            yield from sorted((folder / first).rglob("*.py"))
            return


def _built(name: str, environ: Mapping[str, str], command: Command) -> Workload:
    """Build a model in a child. What its code prints is shown only where it fails."""
    with tempfile.TemporaryDirectory(prefix="gputopo-") as folder:
        answer = Path(folder) / "costs.json"
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **environ, **NO_GPU}
        with in_session(tethered(list(command(name, answer))), environment) as child:
            try:
                printed, _ = child.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired as error:
                raise InputError(
                    f"the model '{name}' is not built after {PATIENCE_S:.0f} s",
                    "build it alone in Python to see where it waits",
                ) from error
        if not answer.is_file():
            words = last_words(printed.decode(errors="replace").splitlines())
            raise InputError(
                f"the model '{name}' cannot be built here: {words or f'exit code {child.returncode}'}",
                "install TensorFlow and Keras as gputopo run needs them, or plan with a model of gputopo",
            )
        costs = schema.decode(answer.read_bytes(), _Costs, origin=str(answer))
    if costs.workload is None:
        refused = costs.refused or _Refused("the model cannot be built", "")
        raise UsageError(refused.what, refused.hint)
    return costs.workload


def _main(name: str, answer: Path) -> None:
    from gputopo.launch.models.keras_building import build_keras
    from gputopo.launch.models.keras_costs import costs_of

    try:
        costs = _Costs(workload=costs_of(build_keras(model_names.read(name), None), name))
    except GputopoError as error:
        costs = _Costs(refused=_Refused(error.what, error.hint))
    schema.write(answer, costs)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))


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
