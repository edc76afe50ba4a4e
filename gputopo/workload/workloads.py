"""The models that gputopo trains, as data that needs no TensorFlow: shapes, sizes, costs, default batches.

The data is `gputopo/reference/data/workloads.json`, written by `python -m gputopo.workload.architectures`.
"""

import difflib
import functools
from importlib import resources

import msgspec

from gputopo.values.errors import UsageError

# `--model` of tensorpack's benchmark (ResNet-MultiGPU/resnet-multigpu.py): one network, written twice.
_ELSEWHERE = {"tfbench": "resnet50", "tensorpack": "resnet50"}


class BlockCost(msgspec.Struct, frozen=True, kw_only=True):
    """One block of layers, per example: what `gputopo.workload.sketch` counts."""

    name: str
    variables: tuple[int, ...]  # the numbers of each trainable variable, in order
    multiply_accumulates: int
    features: int  # numbers of the outputs that training keeps

    @property
    def parameters(self) -> int:
        """Trainable numbers."""
        return sum(self.variables)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One model.

    `state`: numbers that change without a gradient (moving statistics of norms). `gpu_batch` and
    `learning_rate` are the defaults of tf_cnn_benchmarks, or of the Keras example that a model comes from;
    `cpu_batch` keeps a step of two CPU devices near a second on two cores. `source`, `note`: as of
    `gputopo.workload.architectures.Architecture`.
    """

    name: str
    data_name: str
    input_shape: tuple[int, int, int]  # height, width, channels
    classes: int
    parameters: int  # trainable, at `classes` classes
    state: int
    gpu_batch: int
    cpu_batch: int
    learning_rate: float
    source: str = ""
    note: str = ""
    blocks: tuple[BlockCost, ...] = ()

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the parameters in float32."""
        return 4 * self.parameters

    @property
    def multiply_accumulates(self) -> int:
        """Products of convolutions and dense layers in one forward pass of one example."""
        return sum(block.multiply_accumulates for block in self.blocks)

    @property
    def feature_bytes(self) -> int:
        """Bytes of one example's features in float32."""
        return 4 * sum(block.features for block in self.blocks)


class WorkloadTable(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.workloads/1"):
    """The document that holds all models."""

    workloads: tuple[Workload, ...]


@functools.cache
def _models() -> dict[str, Workload]:
    data = resources.files("gputopo.reference.data").joinpath("workloads.json").read_bytes()
    return {one.name: one for one in msgspec.json.decode(data, type=WorkloadTable).workloads}


def names() -> tuple[str, ...]:
    """Return the names that `--model` takes."""
    return tuple(_models())


def require(name: str) -> Workload:
    """Return the workload of that name. Raises UsageError that names the nearest ones."""
    models = _models()
    if name in models:
        return models[name]
    if (meant := _ELSEWHERE.get(name.lower())) is not None:
        raise UsageError(
            f"there is no model '{name}'", f"write {meant}, which tensorpack's benchmark calls so"
        )
    near = difflib.get_close_matches(name.lower(), models, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the models are: {', '.join(models)}"
    raise UsageError(f"there is no model '{name}'", hint)
