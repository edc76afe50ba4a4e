"""Optimizers, weight decay, clipping and schedules against float64 numpy, on 2 and 3 devices."""

from typing import Any

import numpy as np
import pytest

from tests.launch.train.numerics_cases import Found, run_cases
from tests.launch.train.optimizer_oracle import train
from tests.launch.train.small_model import SHAPES

pytestmark = pytest.mark.tensorflow

STEPS = 5
RATE = 0.2
BATCH = 4  # per device
# float32 keeps about 7 digits; sums over some hundred terms and five steps may lose two of them.
TOLERANCE = 1e-5
# Adam divides by the root of a mean square: where a gradient is near zero its rounding shows.
LOOSE = {"adam": 1e-4}

OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"optimizer": "momentum"},
    "nesterov": {"optimizer": "momentum", "nesterov": True},
    "rmsprop": {"optimizer": "rmsprop", "rmsprop_epsilon": 0.1},
    "adam": {"optimizer": "adam"},
    "decay": {"weight_decay": 0.1},
    "clip": {"gradient_clip": 0.02},
    "clip_norm": {"gradient_clip_norm": 0.1, "optimizer": "momentum"},
    "both_clips_and_decay": {"gradient_clip": 0.05, "gradient_clip_norm": 0.2, "weight_decay": 0.2},
    "warmup": {"schedule": {"warmup_steps": 3}},
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
# A loss scale that is no power of two shows a division at the wrong place; so does clipping before it.
SCALED = {"clip", "clip_norm", "adam"}


# The rate is the same wherever the variables are.
RATES = {"warmup", "piecewise", "exponential", "cosine"}
# On a third device the optimizers alone are tried again: what comes before them is the same for any number.
OF_THREE = {"nesterov", "adam"}


# Next to a decay of 2 % a step its gradients do nothing at this rate.
ASYNCHRONOUS = {
    "model": "small",
    "steps": STEPS,
    "spec": {
        **MODES["server"],
        "batch_size": BATCH,
        "learning_rate": 1e-5,
        "exchange": {"asynchronous": True},
        "optimization": {"weight_decay": 2000.0},
    },
}


def cases(towers: int = 2) -> dict[str, dict[str, Any]]:
    found = {}
    for option, fields in OPTIONS.items():
        if towers == 3 and option not in OF_THREE:
            continue
        for mode, where in MODES.items():
            common = {**where, "batch_size": BATCH, "learning_rate": rate_of(option), "optimization": fields}
            if option not in RATES or mode == "server":
                found[f"{option}-{mode}-mean"] = common
            if option in SCALED:
                found[f"{option}-{mode}-scaled"] = {
                    **common,
                    "grad_reduce": "sum",
                    "precision": {"loss_scale": 96.0},
                }
    return {name: {"model": "small", "steps": STEPS, "spec": spec} for name, spec in found.items()}


def rate_of(option: str) -> float:
    return 0.02 if option == "adam" else RATE


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Found]:
    return {
        towers: run_cases(
            tmp_path_factory.mktemp("updating"), towers, cases(towers) | {"async": ASYNCHRONOUS}
        )
        for towers in (2, 3)
    }


@pytest.mark.parametrize(("towers", "name"), [(towers, name) for towers in (2, 3) for name in cases(towers)])
def test_every_step_is_that_of_the_oracle(ran: dict[int, Found], towers: int, name: str) -> None:
    found = ran[towers][name]
    option, mode, reduce = name.split("-")
    losses, last = train(
        [found[f"first{number}"] for number in range(len(SHAPES))],
        found["images"],
        found["labels"],
        steps=STEPS,
        rate=rate_of(option),
        gradient_factor=1.0 if reduce == "mean" else towers,
        **OPTIONS[option],
    )
    tolerance = LOOSE.get(option, TOLERANCE)
    assert found["losses"].mean(axis=1) == pytest.approx(losses, rel=tolerance)
    for place in range(towers if mode == "replicated" else 1):
        for number, expected in enumerate(last):
            got = found[f"last{place}_{number}"]
            np.testing.assert_allclose(got, expected, rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("towers", [2, 3])
def test_towers_that_change_the_weights_on_their_own_decay_them_once_a_step(
    ran: dict[int, Found], towers: int
) -> None:
    found = ran[towers]["async"]
    first, last = (
        np.sqrt(sum(np.sum(found[f"{when}{number}"] ** 2) for number in range(len(SHAPES))))
        for when in ("first", "last0_")
    )
    assert last / first == pytest.approx(0.98**STEPS, rel=2e-3)  # the parts of a step see one another or not


@pytest.mark.parametrize("name", [name for name in cases() if name.endswith("mean") and name[:3] != "sgd"])
def test_the_option_matters_so_the_comparison_means_something(ran: dict[int, Found], name: str) -> None:
    plain = ran[2][f"sgd-{name.split('-')[1]}-mean"]
    assert abs(ran[2][name]["losses"] - plain["losses"]).max() > 1e-3


def test_clipping_by_value_comes_before_clipping_by_norm_and_after_the_decay(
    ran: dict[int, Found],
) -> None:
    # The oracle does it in this order; here: another order would give something else.
    found = ran[2]["both_clips_and_decay-server-mean"]
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
