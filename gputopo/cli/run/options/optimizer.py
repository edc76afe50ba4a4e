"""How gradients become changes: the optimizer, its numbers, the learning rate and its schedule."""

from collections.abc import Mapping
from typing import Any, get_args

from gputopo.cli.choices import require_choice
from gputopo.cli.run.offers import Offer, at_least, number
from gputopo.cli.run.options.schedule import GRAMMAR, OF_THE_MODEL, parse_schedule
from gputopo.launch.spec.run_spec import Optimization, OptimizerName
from gputopo.values.errors import UsageError

OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)

OPTIMIZER = Offer("--optimizer", str, "|".join(OPTIMIZERS), "Default: sgd.")
LEARNING_RATE = Offer("--learning-rate", float, "X", "Default: the model's.")
SCALE_LEARNING_RATE = Offer("--scale-learning-rate", bool, None, "Times the number of devices.")
SCHEDULE = Offer("--learning-rate-schedule", str, "NAME[:...]", f"{GRAMMAR}. Default: constant.")
WARMUP_STEPS = Offer("--learning-rate-warmup-steps", int, "N", "The rate grows from 0 within these steps.")
MOMENTUM = Offer("--momentum", float, "X", "Of momentum. Default: 0.9.")
NESTEROV = Offer("--nesterov", bool, None, "Nesterov's form of momentum, which tf_cnn_benchmarks takes.")
RMSPROP_DECAY = Offer("--rmsprop-decay", float, "X", "Default: 0.9.")
RMSPROP_MOMENTUM = Offer("--rmsprop-momentum", float, "X", "Default: 0.9.")
RMSPROP_EPSILON = Offer("--rmsprop-epsilon", float, "X", "Default: 1.")
ADAM_BETA1 = Offer("--adam-beta1", float, "X", "Default: 0.9.")
ADAM_BETA2 = Offer("--adam-beta2", float, "X", "Default: 0.999.")
ADAM_EPSILON = Offer("--adam-epsilon", float, "X", "Default: 1e-8.")
WEIGHT_DECAY = Offer("--weight-decay", float, "X", "That share of a variable is added to its gradient.")
CLIP = Offer("--gradient-clip", float, "X", "Cut every gradient at plus and minus that.")
CLIP_NORM = Offer("--gradient-clip-norm", float, "X", "Scale all gradients together down to that norm.")

OFFERS = (
    OPTIMIZER,
    LEARNING_RATE,
    SCALE_LEARNING_RATE,
    SCHEDULE,
    WARMUP_STEPS,
    MOMENTUM,
    NESTEROV,
    RMSPROP_DECAY,
    RMSPROP_MOMENTUM,
    RMSPROP_EPSILON,
    ADAM_BETA1,
    ADAM_BETA2,
    ADAM_EPSILON,
    WEIGHT_DECAY,
    CLIP,
    CLIP_NORM,
)
# The numbers that one optimizer has and the others have not; all but epsilons are shares below 1.
_OWN: dict[OptimizerName, tuple[Offer, ...]] = {
    "momentum": (MOMENTUM, NESTEROV),
    "rmsprop": (RMSPROP_DECAY, RMSPROP_MOMENTUM, RMSPROP_EPSILON),
    "adam": (ADAM_BETA1, ADAM_BETA2, ADAM_EPSILON),
}
_EPSILONS = (RMSPROP_EPSILON, ADAM_EPSILON)


def optimization_of(typed: Mapping[str, Any]) -> Optimization:
    """Check the options of this theme and give the optimization. Raises UsageError."""
    asked = typed["optimizer"]
    optimizer = require_choice("--optimizer", "sgd" if asked is None else asked, OPTIMIZERS)
    _refuse_numbers_of_others(optimizer, typed)
    plain = Optimization()
    numbers = {
        offer.name: number(offer, typed[offer.name], above=True)
        if offer in _EPSILONS
        else number(offer, typed[offer.name], below=1.0)
        for offers in _OWN.values()
        for offer in offers
        if offer is not NESTEROV
    }
    decay = number(WEIGHT_DECAY, typed["weight_decay"])
    return Optimization(
        optimizer=optimizer,
        nesterov=typed["nesterov"],
        **{name: getattr(plain, name) if value is None else value for name, value in numbers.items()},
        weight_decay=plain.weight_decay if decay is None else decay,
        gradient_clip=number(CLIP, typed["gradient_clip"], above=True),
        gradient_clip_norm=number(CLIP_NORM, typed["gradient_clip_norm"], above=True),
        schedule=parse_schedule(
            SCHEDULE,
            typed["learning_rate_schedule"],
            at_least(0, WARMUP_STEPS, typed["learning_rate_warmup_steps"]) or 0,
        ),
    )


def rate_fields(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Give the fields of RunOptions that say how fast to learn. Raises UsageError."""
    return {
        "learning_rate": number(LEARNING_RATE, typed["learning_rate"]),
        "scale_learning_rate": typed["scale_learning_rate"],
        "model_schedule": typed["learning_rate_schedule"] == OF_THE_MODEL,
    }


def _refuse_numbers_of_others(optimizer: OptimizerName, typed: Mapping[str, Any]) -> None:
    for owner, offers in _OWN.items():
        stray = next((offer for offer in offers if typed[offer.name] != offer.unset), None)
        if owner != optimizer and stray is not None:
            raise UsageError(
                f"{stray.option} does not go with --optimizer {optimizer}: it is a number of {owner}",
                f"use --optimizer {owner}, or leave {stray.option} out",
            )
