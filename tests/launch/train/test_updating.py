"""Optimizers, weight decay, clipping and schedules against float64 numpy, on 2 devices; a catalogue model."""

from typing import Any

import numpy as np
import pytest

from gputopo.workload import known_architectures
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
LOOSE = 1e-4

SCHEDULES: dict[str, dict[str, Any]] = {
    "piecewise": {"kind": "piecewise", "boundaries": [2, 3], "factors": [1.0, 0.1, 2.0], "warmup_steps": 2},
    "exponential": {"kind": "exponential", "decay": 0.3, "decay_steps": 2},
    "cosine": {"kind": "cosine", "decay_steps": 4, "warmup_steps": 2},
}
MODES: dict[str, dict[str, Any]] = {
    "server": {"variable_update": "parameter_server", "ps_device": "/CPU:0"},
    "replicated": {"variable_update": "replicated", "all_reduce": "copy"},
}
# Every copy is changed by the same ops: those with more than one slot, shared slots, or a norm over all.
# A loss scale that is no power of two shows a division at the wrong place; so does clipping before it.
SCALED: dict[str, Any] = {"grad_reduce": "sum", "precision": {"loss_scale": 96.0}}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "nesterov": (
        "server",
        {"optimizer": "momentum", "nesterov": True, "schedule": SCHEDULES["exponential"]},
        {},
    ),
    # Its first gradients are longer than the norm, the last ones are not.
    "rmsprop": (
        "server",
        {"optimizer": "rmsprop", "gradient_clip_norm": 2.0, "schedule": SCHEDULES["cosine"]},
        {},
    ),
    "adam": ("replicated", {"optimizer": "adam", "schedule": SCHEDULES["piecewise"]}, SCALED),
    "both clips and decay": (
        "replicated",
        {"gradient_clip": 0.05, "gradient_clip_norm": 0.2, "weight_decay": 0.2, "optimizer": "momentum"},
        SCALED,
    ),
}


# Next to a decay of 2 % a step its gradients do nothing at this rate.
ASYNCHRONOUS = {
    **MODES["server"],
    "learning_rate": 1e-5,
    "exchange": {"asynchronous": True},
    "optimization": {"weight_decay": 2000.0},
}


def case(name: str) -> dict[str, Any]:
    mode, optimization, more = CASES[name]
    return {**MODES[mode], "learning_rate": rate_of(name), "optimization": optimization, **more}


def rate_of(name: str) -> float:
    return 0.02 if name == "adam" else RATE


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Found:
    cases = {**{name: case(name) for name in CASES}, "async": ASYNCHRONOUS}
    rate = known_architectures()["lenet"].learning_rate
    cases["lenet"] = {**MODES["server"], "model": "lenet", "learning_rate": rate, "steps": 3}
    common = {"model": "small", "batch_size": BATCH, "steps": STEPS}
    return steps_of(
        tmp_path_factory.mktemp("updating"), TOWERS, {name: {**common, **one} for name, one in cases.items()}
    )


def expected(ran: Found, name: str, options: dict[str, Any]) -> tuple[list[float], list[Any]]:
    """What the oracle makes of the examples and first weights of a case with these options."""
    found = ran[name]
    return train(
        [found[f"first{number}"] for number in range(len(SHAPES))],
        found["images"],
        found["labels"],
        steps=STEPS,
        rate=rate_of(name),
        gradient_factor=TOWERS if CASES[name][2] else 1.0,
        **options,
    )


@pytest.mark.parametrize("name", CASES)
def test_every_step_is_that_of_the_oracle(ran: Found, name: str) -> None:
    found, (mode, options, _) = ran[name], CASES[name]
    losses, last = expected(ran, name, options)
    tolerance = LOOSE if name == "adam" else TOLERANCE
    assert found["losses"].mean(axis=1) == pytest.approx(losses, rel=tolerance)
    for place in range(TOWERS if mode == "replicated" else 1):
        for number, weights in enumerate(last):
            got = found[f"last{place}_{number}"]
            np.testing.assert_allclose(got, weights, rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("name", CASES)
def test_each_option_matters_so_the_comparison_means_something(ran: Found, name: str) -> None:
    """Also: after a decay, clipping by value is not all, nor is clipping by the norm."""
    options = CASES[name][1]
    for left_out in options:
        losses, _ = expected(ran, name, {key: options[key] for key in options if key != left_out})
        assert abs(ran[name]["losses"].mean(axis=1) - losses).max() > 1e-3, left_out


def test_towers_that_change_the_weights_on_their_own_decay_them_once_a_step(ran: Found) -> None:
    found = ran["async"]
    first, last = (
        np.sqrt(sum(np.sum(found[f"{when}{number}"] ** 2) for number in range(len(SHAPES))))
        for when in ("first", "last0_")
    )
    assert last / first == pytest.approx(0.98**STEPS, rel=2e-3)  # the parts of a step see one another or not


def test_a_model_of_the_catalogue_learns_at_the_rate_of_its_authors(ran: Found) -> None:
    losses = ran["lenet"]["joint"]
    assert np.isfinite(losses).all()
    assert losses.min() < losses[0]
