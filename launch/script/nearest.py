"""The strategy of tf.distribute that does what a plan chose, or the nearest to it. Pure.

| the plan                                  | tf.distribute                                               |
|-------------------------------------------|-------------------------------------------------------------|
| one device                                | OneDeviceStrategy                                           |
| parameter server on a device              | CentralStorageStrategy, variables there                     |
| parameter server spread over the devices  | none: the reduction of copies, as below                     |
| copies, `nccl`, `nccl_op`                 | MirroredStrategy, NcclAllReduce                             |
| copies, `tf_hierarchical`, even number    | MirroredStrategy, HierarchicalCopyAllReduce                 |
| copies, `one_device`                      | MirroredStrategy, ReductionToOneDevice                      |
| copies, `collective` or none named        | MirroredStrategy, TensorFlow's own choice                   |
| copies, `hierarchical`                    | none: HierarchicalCopyAllReduce, or as below for odd numbers |
| copies, other reductions                  | none: NCCL on GPUs, ReductionToOneDevice on CPU devices     |
"""

from dataclasses import dataclass

from gputopo.launch.spec.run_spec import Backend
from gputopo.launch.spec.strategy_names import STRATEGIES, StrategyName
from gputopo.planner.request import SPREAD
from gputopo.values.run.all_reduce import parse
from gputopo.values.run.plan import Candidate

_SAME = {
    "nccl": "mirrored:nccl",
    "nccl_op": "mirrored:nccl",
    "one_device": "mirrored:one",
    "collective": "mirrored",
}
_CLASSES = {
    "mirrored": "MirroredStrategy",
    "central": "CentralStorageStrategy",
    "one-device": "OneDeviceStrategy",
}
_REDUCTIONS = {"nccl": "NCCL", "hierarchical": "hierarchical copies", "one": "reduction to one device"}


@dataclass(frozen=True)
class Nearest:
    """A strategy; `lacks`: what the plan chose and tf.distribute has not, None where it has it."""

    strategy: StrategyName
    lacks: str | None = None

    @property
    def words(self) -> str:
        """The strategy in TensorFlow's words: `MirroredStrategy with NCCL`."""
        reduction = self.strategy.reduction
        by = "" if reduction is None else f" with {_REDUCTIONS[reduction]}"
        return _CLASSES[self.strategy.kind] + by


def nearest(choice: Candidate, backend: Backend, count: int) -> Nearest:
    """Return the strategy for the choice of a plan on `count` devices."""
    if count == 1:
        return Nearest(STRATEGIES["one-device"])
    if choice.variable_update == "parameter_server":
        if choice.ps_device != SPREAD:
            return Nearest(STRATEGIES["central"])
        return Nearest(_between_copies(backend), "variables spread over the devices")
    if choice.all_reduce is None:
        return Nearest(STRATEGIES["mirrored"])
    name = parse(choice.all_reduce).name
    if name in _SAME:
        return Nearest(STRATEGIES[_SAME[name]])
    lacks = None if name == "tf_hierarchical" else f"the reduction {choice.all_reduce}"
    if name.endswith("hierarchical") and parse("tf_hierarchical").why_not(backend, count) is None:
        return Nearest(STRATEGIES["mirrored:hierarchical"], lacks)
    return Nearest(_between_copies(backend), lacks)


def _between_copies(backend: Backend) -> StrategyName:
    return STRATEGIES["mirrored:nccl" if backend == "gpu" else "mirrored:one"]
