"""Towers with batches of different sizes train like one device on the joint batch, in every mode.

The reference knows no towers: gradients of the mean loss of the joint batch in float64, on 3 logical CPU
devices. The network has no norm, whose statistics are of a tower's own rows.
"""

import json
from typing import Any

import numpy as np
import pytest

from tests.launch.train import slope_model
from tests.launch.train.small_model import SHAPES, loss_and_gradients
from tests.launch.train.test_exchange import DELAYED, MODES, REPLICATED
from tests.launch.train.trained import run_cases

pytestmark = pytest.mark.tensorflow

BATCHES = (5, 1, 10)
TOWERS = len(BATCHES)
STEPS = 4
RATE = 0.2
# float32 keeps about 7 digits; sums of some hundred terms and four steps may lose three of them.
TOLERANCE = 1e-4
TOLERANCE_FP16 = 5e-3  # of gradients rounded to 11 bits
# One of each way that gradients get to the weights; test_exchange has all modes with equal batches.
TRIED = (
    "server",
    "spread in parts",
    "server staged",
    "copy in parts",
    "collective",
    "relaxed ring",
    "fp16 repacked",
)
SLOPE: dict[str, Any] = {
    "exchange": {"asynchronous": True},
    "variable_update": "parameter_server",
    "model": "slope",
}


def cases() -> dict[str, dict[str, Any]]:
    common = {
        "batch_size": BATCHES,
        "num_batches": STEPS,
        "num_warmup_batches": 0,
        "learning_rate": RATE,
        "variable_update": "replicated",
    }
    modes = {name: {**common, **MODES[name]} for name in TRIED}
    summed = {"sum": {**common, "all_reduce": "copy", "grad_reduce": "sum"}}
    others = {"independent": {"variable_update": "independent"}, "asynchronous": SLOPE}
    others["nchw"] = {**MODES["server"], "data_format": "NCHW"}
    others["nowhere"] = {**MODES["server"], "ps_device": "/GPU:0"}
    return modes | summed | {name: {**common, **fields} for name, fields in others.items()}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_cases(tmp_path_factory.mktemp("unequal"), TOWERS, cases())


def joint(found: dict[str, Any], *, rate: float, delay: int = 0) -> tuple[list[float], list[Any]]:
    """Train on the joint batch; gradients are applied `delay` steps late, before the first come zeros."""
    weights = [found[f"first{number}"].astype(np.float64) for number in range(len(SHAPES))]
    waiting = [[np.zeros_like(array) for array in weights]] * delay
    losses = []
    for _ in range(STEPS):
        loss, gradients = loss_and_gradients(weights, found["images"].astype(np.float64), found["labels"])
        losses.append(loss)
        applied, *waiting = [*waiting, gradients]
        weights = [array - rate * gradient for array, gradient in zip(weights, applied, strict=True)]
    return losses, weights


def last_weights(found: dict[str, Any], place: int) -> list[Any]:
    return [found[f"last{place}_{number}"] for number in range(len(SHAPES))]


@pytest.mark.parametrize("mode", [*TRIED, "sum"])
def test_every_mode_trains_like_one_device_on_the_joint_batch(ran: dict[str, Any], mode: str) -> None:
    found = ran[mode]
    assert len(found["images"]) == sum(BATCHES)
    # A sum over replicas is the mean times their number.
    losses, last = joint(found, rate=RATE * (TOWERS if mode == "sum" else 1), delay=int(mode in DELAYED))
    tolerance = TOLERANCE_FP16 if "fp16" in mode else TOLERANCE
    assert found["losses"] == pytest.approx(losses, rel=tolerance)
    for place in range(TOWERS if mode in (*REPLICATED, "sum") else 1):
        for got, expected in zip(last_weights(found, place), last, strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


def test_nchw_gives_the_same_losses_as_nhwc(ran: dict[str, Any]) -> None:
    assert ran["nchw"]["losses"] == pytest.approx(ran["server"]["losses"], rel=TOLERANCE)


def test_every_tower_has_the_same_ops(ran: dict[str, Any]) -> None:
    ops = json.loads(str(ran["server"]["ops_on"]))
    assert set(ops) == {f"/CPU:{tower}" for tower in range(TOWERS)}
    assert len(set(ops.values())) == 1


def test_a_server_that_is_no_tower_of_the_run_is_refused_before_training(ran: dict[str, Any]) -> None:
    assert "/GPU:0" in ran["nowhere"]


def test_weights_by_tower_instead_of_by_example_would_be_seen(ran: dict[str, Any]) -> None:
    found = ran["copy in parts"]
    first = [found[f"first{number}"].astype(np.float64) for number in range(len(SHAPES))]
    ends = np.cumsum(BATCHES)
    towers = [slice(end - batch, end) for batch, end in zip(BATCHES, ends, strict=True)]
    of_towers = [loss_and_gradients(first, found["images"][own], found["labels"][own])[1] for own in towers]
    _, of_examples = loss_and_gradients(first, found["images"], found["labels"])
    for number, right in enumerate(of_examples):
        by_tower = np.mean([gradients[number] for gradients in of_towers], axis=0)
        assert RATE * np.abs(by_tower - right).max() > 10 * TOLERANCE


def test_independent_towers_each_train_on_their_own_batch(ran: dict[str, Any]) -> None:
    found = ran["independent"]
    for tower, (end, batch) in enumerate(zip(np.cumsum(BATCHES), BATCHES, strict=True)):
        own = {name: found[name][end - batch : end] for name in ("images", "labels")}
        _, last = joint(found | own, rate=RATE)
        for got, expected in zip(last_weights(found, tower), last, strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


def test_asynchronous_towers_change_the_weights_by_their_examples(ran: dict[str, Any]) -> None:
    found = ran["asynchronous"]
    total = slope_model.gradient(found["images"], found["labels"])
    np.testing.assert_allclose(found["last0_0"], found["first0"] - RATE * STEPS * total, rtol=0, atol=1e-5)
