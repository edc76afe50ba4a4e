"""What `--model` may be: a network of gputopo, `keras:NAME`, or the user's own `module:function`. Pure.

Of the last two nothing is known without TensorFlow but the name: sizes and costs are found when the model
is built.
"""

import re
from dataclasses import dataclass
from typing import Literal

from gputopo.values.errors import UsageError
from gputopo.workload import workloads as workload

KERAS_PREFIX = "keras:"
# The Keras examples of the multi-GPU comparisons that gputopo starts from train with batches of 32 per GPU.
KERAS_GPU_BATCH = 32
# A step of ResNet50 with 4 images on each of two CPU devices stays near a second or two on two cores.
KERAS_CPU_BATCH = 4
KERAS_LEARNING_RATE = 0.005  # tf_cnn_benchmarks' default for a model that it knows no rate for
_NAME = r"[A-Za-z_]\w*"
_IMPORT = re.compile(rf"(?P<module>{_NAME}(\.{_NAME})*):(?P<attribute>{_NAME}(\.{_NAME})*)")
_FILE = re.compile(r"(?P<path>[^:]+)\.py(:(?P<attribute>.*))?")


@dataclass(frozen=True)
class ModelName:
    """A model's name in its parts.

    kind network: `attribute` is a name in gputopo.workload.workloads. keras: a keras.applications function.
    own: `attribute` of the user's `module`.
    """

    kind: Literal["network", "keras", "own"]
    attribute: str
    module: str = ""


@dataclass(frozen=True)
class Defaults:
    """How a model is trained unless the user says otherwise. Batches are per device."""

    gpu_batch: int
    cpu_batch: int
    learning_rate: float


def read(name: str) -> ModelName:
    """Take a name apart. Raises UsageError with the nearest thing that can be a name."""
    if name.lower().startswith(KERAS_PREFIX):
        return _keras(name, name[len(KERAS_PREFIX) :])
    found = _IMPORT.fullmatch(name)
    if found:
        return ModelName("own", found["attribute"], found["module"])
    if ":" in name or name.endswith(".py"):
        raise UsageError(f"'{name}' names no function of a module", _nearest_import(name))
    return ModelName("network", workload.require(name).name)


def defaults(name: str) -> Defaults:
    """Give the defaults of a model by its name. Raises UsageError as `read` does."""
    asked = read(name)
    if asked.kind == "network":
        known = workload.require(asked.attribute)
        return Defaults(known.gpu_batch, known.cpu_batch, known.learning_rate)
    return Defaults(KERAS_GPU_BATCH, KERAS_CPU_BATCH, KERAS_LEARNING_RATE)


def _keras(name: str, attribute: str) -> ModelName:
    if not re.fullmatch(_NAME, attribute):
        raise UsageError(
            f"'{name}' names no model of keras.applications", "write it as in Keras: keras:ResNet50"
        )
    return ModelName("keras", attribute)


def _nearest_import(name: str) -> str:
    """Say how a file's path would be written."""
    found = _FILE.fullmatch(name)
    if not found:
        return "write the module, a colon and the function: mypackage.models:build"
    module = re.sub(r"[\\/]+", ".", found["path"]).strip(".")
    return f"write the module as Python imports it: {module}:{found['attribute'] or 'build'}"
