"""What the options of a run imply for the place of its variables, where that was left to gputopo."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gputopo.cli.plan.options import update_of

if TYPE_CHECKING:
    from gputopo.launch.spec.target import Target

# Options of a run, as typed, that need replicas, or a parameter server.
_OF_REPLICAS = (
    "all_reduce",
    "gradient_repacking",
    "agg_small_grads_max_bytes",
    "agg_small_grads_max_group",
    "fp16_transfer",
)
_OF_A_SERVER = ("staged_vars", "async")


def as_strategy_reduces(chosen: "Target", asked: Mapping[str, Any]) -> "Target":
    """Return the target without a reduction where a strategy of tf.distribute has its own."""
    if not strategy_has_copies(asked):
        return chosen
    from gputopo.launch.spec.prepare import reduced_by_strategy

    return replace(chosen, plan=reduced_by_strategy(chosen.plan))


def implied_update(asked: Mapping[str, Any]) -> str:
    """Return the --variable-update that the options need, where it was left to gputopo."""
    update = update_of(asked.get("variable_update", "auto"))
    if update != "auto":
        return update
    relaxed = str(asked.get("variable_consistency", "")).lower() == "relaxed"
    if relaxed or any(asked.get(name) for name in _OF_REPLICAS):
        return "replicated"
    return "parameter_server" if any(asked.get(name) for name in _OF_A_SERVER) else update


def strategy_has_copies(asked: Mapping[str, Any]) -> bool:
    """Whether --strategy alone decides where variables are, and that is on every device. Raises UsageError.

    What was asked for beside it is planned as it was typed, so that the rules of the core can refuse it.
    """
    if "strategy" not in asked or "ps" in asked or implied_update(asked) != "auto":
        return False
    from gputopo.launch.spec.strategy_names import read

    return read(asked["strategy"]).kind != "central"
