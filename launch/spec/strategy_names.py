"""The tf.distribute strategies that `--strategy` names. Pure."""

import difflib
from dataclasses import dataclass
from typing import Literal

from gputopo.values.errors import UsageError

Kind = Literal["mirrored", "central", "one-device"]
Reduction = Literal["nccl", "hierarchical", "one"]


@dataclass(frozen=True)
class StrategyName:
    """A strategy and, for mirrored, its reduction; None: the default of TensorFlow."""

    kind: Kind
    reduction: Reduction | None = None


STRATEGIES: dict[str, StrategyName] = {
    "mirrored": StrategyName("mirrored"),
    "mirrored:nccl": StrategyName("mirrored", "nccl"),
    "mirrored:hierarchical": StrategyName("mirrored", "hierarchical"),
    "mirrored:one": StrategyName("mirrored", "one"),
    "central": StrategyName("central"),
    "one-device": StrategyName("one-device"),
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
}
_ELSEWHERE = {
    "multiworkermirrored": "several hosts",
    "mwms": "several hosts",
    "parameterserver": "several processes",
    "ps": "several processes",
    "tpu": "TPUs",
}


def read(name: str) -> StrategyName:
    """Parse a name, in any case. Raises UsageError that names the nearest ones."""
    asked = name.lower()
    asked = _ALSO.get(asked, asked)
    if asked in STRATEGIES:
        return STRATEGIES[asked]
    for other, needs in _ELSEWHERE.items():
        if asked.removesuffix("strategy").startswith(other):
            raise UsageError(
                f"--strategy {name} needs {needs}, and a run has one process on one host",
                "use --strategy mirrored, or --variable-update parameter_server",
            )
    near = difflib.get_close_matches(asked, STRATEGIES, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the strategies are: {', '.join(STRATEGIES)}"
    raise UsageError(f"there is no strategy '{name}'", hint)
