"""The models that gputopo trains, as values: shapes, sizes, costs, training defaults. No TensorFlow."""

import functools

import msgspec

from gputopo.values.errors import UsageError
from gputopo.values.option import listed, nearest
from gputopo.workload.architectures import known_architectures
from gputopo.workload.sketch import BlockCost

# `--model` of tensorpack's benchmark (ResNet-MultiGPU/resnet-multigpu.py): one network, written twice.
_ELSEWHERE = {"tfbench": "resnet50", "tensorpack": "resnet50"}

# Fields of an Architecture that its Workload also has.
_ALIKE: tuple[str, ...] = ("name", "data_name", "input_shape", "classes", "gpu_batch", "cpu_batch")
_ALIKE += ("learning_rate", "source", "note")


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One model.

    `state`: numbers that change without a gradient (moving statistics of norms). `gpu_batch`,
    `learning_rate`, `cpu_batch`, `source` and `note`: see Architecture.
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


@functools.cache
def _workload_of(name: str) -> Workload:
    """Count the costs of one network."""
    architecture = known_architectures()[name]
    drawn = architecture.sketch()
    trained = sum(variable.size for variable in drawn.variables if variable.trainable)
    return Workload(
        **{field: getattr(architecture, field) for field in _ALIKE},
        parameters=trained,
        state=sum(variable.size for variable in drawn.variables) - trained,
        blocks=tuple(block.cost for block in drawn.blocks),
    )


def workload_names() -> tuple[str, ...]:
    """Return the names that `--model` accepts."""
    return tuple(known_architectures())


def require_workload(name: str) -> Workload:
    """Return the workload of that name. Raises UsageError with the nearest names."""
    models = known_architectures()
    if name in models:
        return _workload_of(name)
    if (meant := _ELSEWHERE.get(name.lower())) is not None:
        raise UsageError(
            f"there is no model '{name}'", f"use {meant}: tensorpack's benchmark calls it {name}"
        )
    near = nearest(name, models)
    hint = f"did you mean {listed(near)}?" if near else f"the models are: {', '.join(models)}"
    raise UsageError(f"there is no model '{name}'", hint)
