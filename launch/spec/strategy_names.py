"""The tf.distribute strategies that `--strategy` names. Pure."""

import difflib
from dataclasses import dataclass
from typing import Literal

from gputopo.values.errors import UsageError
from gputopo.values.run.plan import CPU_DEVICES

Kind = Literal["mirrored", "central", "one-device", "multi_worker_mirrored"]
Reduction = Literal["nccl", "hierarchical", "one", "ring"]

MULTI_WORKER: Kind = "multi_worker_mirrored"  # of several hosts, with a process on each


@dataclass(frozen=True)
class StrategyName:
    """A strategy and, for those with copies, its reduction; None: the default of TensorFlow."""

    kind: Kind
    reduction: Reduction | None = None


STRATEGIES: dict[str, StrategyName] = {
    "mirrored": StrategyName("mirrored"),
    "mirrored:nccl": StrategyName("mirrored", "nccl"),
    "mirrored:hierarchical": StrategyName("mirrored", "hierarchical"),
    "mirrored:one": StrategyName("mirrored", "one"),
    "central": StrategyName("central"),
    "one-device": StrategyName("one-device"),
    "multi_worker_mirrored": StrategyName(MULTI_WORKER),
    "multi_worker_mirrored:nccl": StrategyName(MULTI_WORKER, "nccl"),
    "multi_worker_mirrored:ring": StrategyName(MULTI_WORKER, "ring"),
}
# Other spellings: class names of tf.distribute and of its reductions, and short forms.
_ALSO = {
    "mirroredstrategy": "mirrored",
    "mirrored:ncclallreduce": "mirrored:nccl",
    "mirrored:hierarchicalcopyallreduce": "mirrored:hierarchical",
    "mirrored:hier": "mirrored:hierarchical",
    "mirrored:reductiontoonedevice": "mirrored:one",
    "centralstoragestrategy": "central",
    "centralstorage": "central",
    "onedevicestrategy": "one-device",
    "onedevice": "one-device",
    "one": "one-device",
    "multiworkermirroredstrategy": MULTI_WORKER,
    "multiworkermirrored": MULTI_WORKER,
    "multi-worker-mirrored": MULTI_WORKER,
    "mwms": MULTI_WORKER,
}
_ELSEWHERE = {
    "parameterserver": "processes for the variables",
    "ps": "processes for the variables",
    "tpu": "TPUs",
}


def cpu_devices_of(strategy: str | None) -> int:
    """Return the CPU devices of each host by default: tf.distribute takes one on each of several hosts."""
    return 1 if strategy is not None and read(strategy).kind == MULTI_WORKER else CPU_DEVICES


def read(name: str) -> StrategyName:
    """Parse a name, in any case. Raises UsageError that names the nearest ones."""
    asked = name.lower()
    asked = _ALSO.get(asked, asked)
    kind, colon, reduction = asked.partition(":")
    asked = _ALSO.get(kind, kind) + colon + reduction
    if asked in STRATEGIES:
        return STRATEGIES[asked]
    for other, needs in _ELSEWHERE.items():
        if asked.removesuffix("strategy").startswith(other):
            raise UsageError(
                f"--strategy {name} needs {needs}, which a run of gputopo does not have",
                "use --strategy mirrored, or --variable-update parameter_server",
            )
    near = difflib.get_close_matches(asked, STRATEGIES, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the strategies are: {', '.join(STRATEGIES)}"
    raise UsageError(f"there is no strategy '{name}'", hint)
