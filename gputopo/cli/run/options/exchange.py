"""How weights and gradients move between the devices, beside --ps and --variable-update."""

from collections.abc import Mapping
from typing import Any, get_args

from gputopo.cli.choices import require_choice
from gputopo.cli.run.offers import Offer, at_least
from gputopo.launch.spec.run_spec import Exchange, GradReduce
from gputopo.values import all_reduce

CONSISTENCIES = ("strong", "relaxed")
GRAD_REDUCES: tuple[GradReduce, ...] = get_args(GradReduce)

ALL_REDUCE = Offer(
    "--all-reduce",
    str,
    "NAME[#K]",
    "What adds the gradients of replicated: copy, ring, hierarchical, pscpu, psgpu, collective, nccl.",
)
GRAD_REDUCE = Offer("--grad-reduce", str, "|".join(GRAD_REDUCES), "How gradients become one.", default="mean")
STAGED_VARS = Offer("--staged-vars", bool, None, "Weights and gradients of the step before (stale by one).")
CONSISTENCY = Offer(
    "--variable-consistency",
    str,
    "|".join(CONSISTENCIES),
    "relaxed: replicated applies the gradients of the step before. Default: strong.",
)
ASYNC = Offer("--async", bool, None, "Each tower applies its own gradients as soon as it has them.")
REPACKING = Offer("--gradient-repacking", int, "K", "Reduce all gradients as K equal pieces.")
SMALL_BYTES = Offer("--agg-small-grads-max-bytes", int, "B", "Reduce gradients up to that size together.")
SMALL_GROUP = Offer(
    "--agg-small-grads-max-group", int, "N", "So many small gradients at a time. Default: 10."
)
FP16_TRANSFER = Offer("--fp16-transfer", bool, None, "Gradients travel as float16.")

OFFERS = (
    ALL_REDUCE,
    GRAD_REDUCE,
    STAGED_VARS,
    CONSISTENCY,
    ASYNC,
    REPACKING,
    SMALL_BYTES,
    SMALL_GROUP,
    FP16_TRANSFER,
)
_OF_REPLICAS = (ALL_REDUCE, REPACKING, SMALL_BYTES, SMALL_GROUP, FP16_TRANSFER)
_OF_A_SERVER = (STAGED_VARS, ASYNC)


def exchange_of(typed: Mapping[str, Any]) -> Exchange:
    """Check the options of this theme and give how gradients move. Raises UsageError."""
    asked = typed["variable_consistency"]
    consistency = "strong" if asked is None else asked
    if typed["all_reduce"] is not None:
        all_reduce.parse(typed["all_reduce"])
    group = at_least(1, SMALL_GROUP, typed["agg_small_grads_max_group"])
    return Exchange(
        staged=typed["staged_vars"],
        relaxed=require_choice("--variable-consistency", consistency, CONSISTENCIES) == "relaxed",
        asynchronous=typed[ASYNC.name],
        repacking=at_least(0, REPACKING, typed["gradient_repacking"]) or 0,
        small_bytes=at_least(0, SMALL_BYTES, typed["agg_small_grads_max_bytes"]) or 0,
        small_group=Exchange().small_group if group is None else group,
        transfer="fp16" if typed["fp16_transfer"] else "fp32",
    )


def grad_reduce_of(typed: Mapping[str, Any]) -> GradReduce:
    """Give how gradients become one. Raises UsageError."""
    return require_choice("--grad-reduce", typed["grad_reduce"], GRAD_REDUCES)


def implied_update(typed: Mapping[str, Any]) -> str:
    """Give the --variable-update that is meant: what these options need, where it was left to gputopo."""
    asked: str = typed["variable_update"]
    if asked != "auto":
        return asked
    if any(typed[offer.name] for offer in _OF_REPLICAS) or typed["variable_consistency"] == "relaxed":
        return "replicated"
    return "parameter_server" if any(typed[offer.name] for offer in _OF_A_SERVER) else asked
