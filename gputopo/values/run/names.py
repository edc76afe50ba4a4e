"""The tf.distribute strategies, and the Keras programs, that `--strategy` accepts."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from gputopo.values.errors import UsageError
from gputopo.values.option import listed, nearest
from gputopo.values.run.plan import CPU_DEVICES

Kind = Literal["mirrored", "central", "one-device", "multi_worker_mirrored"]
Reduction = Literal["nccl", "hierarchical", "one", "ring"]
Method = Literal["kuza55", "avolkov1", "fchollet"]

METHODS = get_args(Method)  # multi-GPU Keras programs, each with its own training

MULTI_WORKER: Kind = "multi_worker_mirrored"  # for several hosts, with one process on each


@dataclass(frozen=True)
class StrategyName:
    """A strategy and, if it has copies, its reduction; None: TensorFlow's default."""

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
_ALSO = {  # class names of tf.distribute without "Strategy", and short forms
    "centralstorage": "central",
    "onedevice": "one-device",
    "one": "one-device",
    "multiworkermirrored": MULTI_WORKER,
    "multi-worker-mirrored": MULTI_WORKER,
    "mwms": MULTI_WORKER,
}


def cpu_devices_of(strategy: str | None) -> int:
    """Return the default number of CPU devices of each host: one for tf.distribute on several hosts."""
    if strategy is None or strategy.lower() in METHODS:
        return CPU_DEVICES
    return 1 if read(strategy).kind == MULTI_WORKER else CPU_DEVICES


def read(name: str) -> StrategyName:
    """Parse a name, in any case. Raises UsageError with the nearest names."""
    kind, colon, reduction = name.lower().partition(":")
    kind = kind.removesuffix("strategy")
    asked = _ALSO.get(kind, kind) + colon + reduction
    if asked in STRATEGIES:
        return STRATEGIES[asked]
    known = (*STRATEGIES, *METHODS)
    near = nearest(asked, known)
    hint = f"did you mean {listed(near)}?" if near else f"the strategies are: {', '.join(known)}"
    raise UsageError(f"there is no strategy '{name}'", hint)


def read_strategy(_flag: str, text: str) -> dict[str, Any]:
    """Return the field of a spec that `--strategy` sets. Raises UsageError."""
    if text.lower() in METHODS:
        return {"method": text.lower()}
    read(text)
    return {"strategy": text}
