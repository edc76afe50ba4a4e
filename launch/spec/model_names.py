"""Names of `--model`: a network of gputopo, `keras:NAME`, or the user's `module:function`.

For the last two, only the name is known without TensorFlow. Sizes and costs are known once the model is
built. `--model alexnet --data-name cifar10` is alexnet-cifar10.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gputopo.values.errors import UsageError
from gputopo.values.option import listed, nearest
from gputopo.workload import require_workload, workload_names

KERAS_PREFIX = "keras:"
_CIFAR10 = "-cifar10"
# The Keras examples of the multi-GPU comparisons that gputopo is based on train with batches of 32 per GPU.
KERAS_GPU_BATCH = 32
# With 4 images per device, a step of ResNet50 on two CPU devices takes one to two seconds on two cores.
KERAS_CPU_BATCH = 4
KERAS_LEARNING_RATE = 0.005  # tf_cnn_benchmarks' default for models without their own rate
_NAME = r"[A-Za-z_]\w*"
_IMPORT = re.compile(rf"(?P<module>{_NAME}(\.{_NAME})*):(?P<attribute>{_NAME}(\.{_NAME})*)")
_FILE = re.compile(r"(?P<path>[^:]+)\.py(:(?P<attribute>.*))?")


@dataclass(frozen=True)
class ModelName:
    """A parsed model name.

    kind network: `attribute` is a name in gputopo.workload.workloads. keras: a keras.applications function.
    own: `attribute` of the user's `module`.
    """

    kind: Literal["network", "keras", "own"]
    attribute: str
    module: str = ""


def read_model_name(name: str) -> ModelName:
    """Parse a name. Raises UsageError with the nearest valid name."""
    if name.lower().startswith(KERAS_PREFIX):
        attribute = name[len(KERAS_PREFIX) :]
        if not re.fullmatch(_NAME, attribute):
            raise UsageError(
                f"'{name}' is not a model of keras.applications", "write it as in Keras: keras:ResNet50"
            )
        return ModelName("keras", attribute)
    imported = _IMPORT.fullmatch(name)
    if imported:
        return ModelName("own", imported["attribute"], imported["module"])
    if ":" in name or name.endswith(".py"):
        hint = "write the module, a colon and the function: mypackage.models:build"
        if file := _FILE.fullmatch(name):
            module = re.sub(r"[\\/]+", ".", file["path"]).strip(".")
            hint = f"write the module as Python imports it: {module}:{file['attribute'] or 'build'}"
        raise UsageError(f"'{name}' is not a function of a module", hint)
    return ModelName("network", require_workload(name).name)


def defaults(name: str) -> tuple[int, int, float]:
    """Return a model's batch per GPU, batch per CPU device, and rate. Raises UsageError."""
    asked = read_model_name(name)
    if asked.kind == "network":
        known = require_workload(asked.attribute)
        return known.gpu_batch, known.cpu_batch, known.learning_rate
    return KERAS_GPU_BATCH, KERAS_CPU_BATCH, KERAS_LEARNING_RATE


def no_module(name: str) -> UsageError:
    """Return the error for a module that does not exist."""
    return UsageError(
        f"there is no module {name} in this folder or on PYTHONPATH",
        "run in the folder that holds it, or add that folder to PYTHONPATH",
    )


def no_attribute(asked: ModelName, missing: str, known: Iterable[str]) -> UsageError:
    """Return the error for a module without the function `missing`. `known`: its functions."""
    near = nearest(missing, [name for name in known if name[0] != "_"])
    hint = f"did you mean {asked.module}:{near[0]}?" if near else "use one of its functions"
    return UsageError(f"{asked.module} has no '{asked.attribute}'", hint)


def no_application(name: str, known: Iterable[str]) -> UsageError:
    """Return the error for an unknown name of keras.applications. `known`: the valid names."""
    near = [f"keras:{application}" for application in nearest(name, sorted(known))]
    hint = f"did you mean {listed(near)}?" if near else f"there are: {', '.join(sorted(known))}"
    return UsageError(f"keras.applications has no model '{name}'", hint)


def model_for(name: str, data_name: str | None) -> str:
    """Return the model's full name for the requested data set; None: the model's default data set.

    Raises UsageError for an unknown model, or a model without a variant for this data set.
    """
    asked = read_model_name(name)
    if data_name is None or asked.kind != "network":
        return name
    if require_workload(name).data_name == data_name:
        return name
    if data_name == "cifar10" and name + _CIFAR10 in workload_names():
        return name + _CIFAR10
    if data_name == "imagenet" and name.removesuffix(_CIFAR10) in workload_names() and _CIFAR10 in name:
        return name.removesuffix(_CIFAR10)
    of_data = [other for other in workload_names() if require_workload(other).data_name == data_name]
    near = difflib.get_close_matches(name, of_data, n=1, cutoff=0.0)
    raise UsageError(
        f"--data-name {data_name} cannot be combined with --model {name}: "
        f"its data set is {require_workload(name).data_name}",
        f"remove --data-name, or use --model {near[0]}",
    )


def data_of(model: str) -> str | None:
    """Return the data set of a model's examples; None if it is unknown until the model is built."""
    asked = read_model_name(model)
    return require_workload(model).data_name if asked.kind == "network" else None
