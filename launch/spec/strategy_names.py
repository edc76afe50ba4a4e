"""The tf.distribute strategies that `--strategy` names, and what does not go with them. Pure."""

import difflib
from dataclasses import dataclass
from typing import Literal

from gputopo.launch.spec.run_spec import Exchange, RunSpec
from gputopo.values.errors import UsageError

Kind = Literal["mirrored", "central", "one-device"]
Reduction = Literal["nccl", "hierarchical", "one"]


@dataclass(frozen=True)
class StrategyName:
    """A strategy and, for mirrored, its reduction; None: what TensorFlow takes by itself."""

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
# What people write for them: class names of tf.distribute and of its reductions, and short forms.
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
    """Read a name, in any case. Raises UsageError that names the nearest ones."""
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


def require_strategy(spec: RunSpec) -> StrategyName:
    """Give the strategy of a spec. Raises UsageError for what does not go with it, with the nearest."""
    if spec.strategy is None:
        raise UsageError("no strategy is named", f"give --strategy {', '.join(STRATEGIES)}")
    asked = read(spec.strategy)
    for wrong, what, hint in (*_of_devices(asked, spec), *_of_options(asked, spec)):
        if wrong:
            raise UsageError(f"--strategy {spec.strategy} {what}", hint)
    return asked


def _of_devices(asked: StrategyName, spec: RunSpec) -> list[tuple[bool, str, str]]:
    count = len(spec.devices)
    return [
        (
            asked.reduction == "nccl" and spec.backend == "cpu",
            "needs GPUs: NCCL has no kernel for CPU devices",
            "use --strategy mirrored, which reduces in a ring there, or mirrored:one",
        ),
        (
            # TensorFlow cuts the list into two halves of count // 2 and forgets the last device.
            asked.reduction == "hierarchical" and count % 2 == 1,
            f"loses the gradients of one of {count} devices without a word (TensorFlow 2.21: odd counts)",
            f"use {count + 1} devices{f' or {count - 1}' if count > 1 else ''}, or --all-reduce hierarchical",
        ),
        (
            asked.kind == "one-device" and count != 1,
            f"takes one device, this run has {count}",
            "use --num-gpus 1, or --strategy mirrored",
        ),
    ]


def _of_options(asked: StrategyName, spec: RunSpec) -> list[tuple[bool, str, str]]:
    leave = "leave it out, or train without --strategy"
    update = "parameter_server" if asked.kind == "central" else "replicated"
    return [
        (spec.method is not None, f"does not go with --method {spec.method}", "leave one of the two out"),
        (spec.exchange != Exchange(), "does not go with another way of exchange", leave),
        (
            spec.all_reduce is not None,
            f"does not go with --all-reduce {spec.all_reduce}: the strategy reduces",
            "leave --all-reduce out, or use --variable-update replicated without --strategy",
        ),
        (
            spec.variable_update == "independent",
            "does not go with --variable-update independent: it keeps its copies equal",
            f"leave --variable-update out (it is {update})",
        ),
        (spec.task != "train", f"does not go with the task {spec.task}", leave),
        (spec.lifecycle.training_accuracy, "does not go with --training-accuracy", leave),
        (bool(spec.extra_forward), "does not go with --add-work", leave),
    ]
