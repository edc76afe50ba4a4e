"""Optimizers, weight decay, clipping and schedules against float64 numpy, on 2 devices."""

from typing import Any

import numpy as np
import pytest

from tests.launch.train.optimizer_oracle import train
from tests.launch.train.small_model import SHAPES
from tests.launch.train.trained import Found, steps_of

pytestmark = pytest.mark.tensorflow

TOWERS = 2
STEPS = 5
RATE = 0.2
BATCH = 4  # per device
# float32 keeps about 7 digits; sums over some hundred terms and five steps may lose two of them.
TOLERANCE = 1e-5
# Adam divides by the root of a mean square: where a gradient is near zero its rounding shows.
LOOSE = {"adam": 1e-4}

OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "nesterov": {"optimizer": "momentum", "nesterov": True},
    "rmsprop": {"optimizer": "rmsprop"},
    "adam": {"optimizer": "adam"},
    "clip": {"gradient_clip": 0.02},
    "clip_norm": {"gradient_clip_norm": 0.1, "optimizer": "momentum"},
    "both_clips_and_decay": {"gradient_clip": 0.05, "gradient_clip_norm": 0.2, "weight_decay": 0.2},
    "piecewise": {
        "schedule": {"kind": "piecewise", "boundaries": [2, 3], "factors": [1.0, 0.1, 2.0], "warmup_steps": 2}
    },
    "exponential": {"schedule": {"kind": "exponential", "decay": 0.3, "decay_steps": 2}},
    "cosine": {"schedule": {"kind": "cosine", "decay_steps": 4, "warmup_steps": 2}},
}
MODES: dict[str, dict[str, Any]] = {
    "server": {"variable_update": "parameter_server", "ps_device": "/CPU:0"},
    "replicated": {"variable_update": "replicated", "all_reduce": "copy"},
}
# Every copy is changed by the same ops: those with more than one slot, shared slots, or a norm over all.
COPIED = {"adam", "both_clips_and_decay"}
# A loss scale that is no power of two shows a division at the wrong place; so does clipping before it.
SCALED = {"clip": "server", "clip_norm": "replicated", "adam": "server"}


# Next to a decay of 2 % a step its gradients do nothing at this rate.
ASYNCHRONOUS = {
    **MODES["server"],
    "learning_rate": 1e-5,
    "exchange": {"asynchronous": True},
    "optimization": {"weight_decay": 2000.0},
}


def cases() -> dict[str, dict[str, Any]]:
    found = {}
    for option, fields in OPTIONS.items():
        for mode, where in MODES.items():
            common = {**where, "learning_rate": rate_of(option), "optimization": fields}
            if mode == "server" or option in COPIED:
                found[f"{option}-{mode}-mean"] = common
            if SCALED.get(option) == mode:
                found[f"{option}-{mode}-scaled"] = {
                    **common,
                    "grad_reduce": "sum",
                    "precision": {"loss_scale": 96.0},
                }
    return found


def rate_of(option: str) -> float:
    return 0.02 if option == "adam" else RATE


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return steps_of(
        tmp_path_factory.mktemp("updating"),
        TOWERS,
        {
            name: {"model": "small", "batch_size": BATCH, "steps": STEPS, **fields}
            for name, fields in {**cases(), "async": ASYNCHRONOUS}.items()
        },
    )


@pytest.mark.parametrize("name", cases())
def test_every_step_is_that_of_the_oracle(ran: Found, name: str) -> None:
    found = ran[name]
    option, mode, reduce = name.split("-")
    losses, last = train(
        [found[f"first{number}"] for number in range(len(SHAPES))],
        found["images"],
        found["labels"],
        steps=STEPS,
        rate=rate_of(option),
        gradient_factor=1.0 if reduce == "mean" else TOWERS,
        **OPTIONS[option],
    )
    tolerance = LOOSE.get(option, TOLERANCE)
    assert found["losses"].mean(axis=1) == pytest.approx(losses, rel=tolerance)
    for place in range(TOWERS if mode == "replicated" else 1):
        for number, expected in enumerate(last):
            got = found[f"last{place}_{number}"]
            np.testing.assert_allclose(got, expected, rtol=0, atol=10 * tolerance)


def test_towers_that_change_the_weights_on_their_own_decay_them_once_a_step(ran: Found) -> None:
    found = ran["async"]
    first, last = (
        np.sqrt(sum(np.sum(found[f"{when}{number}"] ** 2) for number in range(len(SHAPES))))
        for when in ("first", "last0_")
    )
    assert last / first == pytest.approx(0.98**STEPS, rel=2e-3)  # the parts of a step see one another or not


def test_each_option_matters_so_the_comparison_means_something(ran: Found) -> None:
    plain = ran["sgd-server-mean"]
    for name in cases():
        if name.endswith("mean") and not name.startswith("sgd"):
            assert abs(ran[name]["losses"] - plain["losses"]).max() > 1e-3, name


def test_clipping_by_value_comes_before_clipping_by_norm_and_after_the_decay(ran: Found) -> None:
    # The oracle does it in this order; here: another order would give something else.
    found = ran["both_clips_and_decay-server-mean"]
    for other in ({"gradient_clip": 0.05, "weight_decay": 0.2}, {"gradient_clip_norm": 0.2}):
        losses, _ = train(
            [found[f"first{number}"] for number in range(len(SHAPES))],
            found["images"],
            found["labels"],
            steps=STEPS,
            rate=RATE,
            **other,
        )
        assert abs(found["losses"].mean(axis=1) - losses).max() > 1e-3
