"""Short types, loss scales, skipped steps and towers compiled by XLA, on 2 devices."""

from typing import Any

import numpy as np
import pytest

from tests.launch.train import normed_model, optimizer_oracle
from tests.launch.train.test_exchange import first_of, slices
from tests.launch.train.trained import Found, steps_of

pytestmark = pytest.mark.tensorflow

TOWERS = 2
BATCH = 4
RATE, MOMENTUM = 0.05, 0.9
MAX_SCALE = 2.0**24  # as of NVIDIA Apex
FP16_DIGITS, BF16_DIGITS = 11, 8
SERVER = {"variable_update": "parameter_server", "ps_device": "/CPU:0"}
AUTO = {"auto_loss_scale": True, "loss_scale": 64.0}
# A step with an infinite gradient is skipped: by the oracle, the run has one step less. Adam counts its steps
# in the powers of its betas. XLA adds in another order, which the tolerance allows.
HIT: dict[str, dict[str, Any]] = {
    "replicated": {
        "model": "small",
        "variable_update": "replicated",
        "all_reduce": "copy",
        "optimization": {"optimizer": "adam"},
        "precision": {**AUTO, "loss_scale_steps": 2},
        "overflow": {"tower": 1, "steps": [2]},
        "steps": 4,
    },
    "compiled": {
        **SERVER,
        "data_format": "NCHW",
        "precision": {**AUTO, "xla": True},
        "overflow": {"tower": 0, "steps": [2]},
    },
    "independent": {
        "variable_update": "independent",
        "precision": {**AUTO, "loss_scale": 2.0},
        "overflow": {"tower": 1, "steps": [1, 2]},
    },
}
STEPS = 5  # of which those of an overflow are skipped
TOLERANCE = 1e-4  # as in test_exchange


def cases() -> dict[str, dict[str, Any]]:
    momentum = {"optimizer": "momentum", "momentum": MOMENTUM}
    common = {"model": "norm", "steps": STEPS, "batch_size": BATCH, "learning_rate": RATE}
    found = {name: {**common, "optimization": momentum, **fields} for name, fields in HIT.items()}
    tiny = {**common, **SERVER, "model": "tiny", "steps": 3, "optimization": {"optimizer": "adam"}}
    bf16 = {"compute": "bf16", "auto_loss_scale": True, "loss_scale": MAX_SCALE, "loss_scale_steps": 1}
    found |= {"plain": tiny, "bf16": {**tiny, "precision": bf16}}
    fp16 = {"compute": "fp16", "loss_scale": 128.0}
    found["fp16"] = {**tiny, "precision": fp16}
    found["fp16-nchw"] = {**tiny, "precision": fp16, "data_format": "NCHW"}
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return steps_of(tmp_path_factory.mktemp("precision"), TOWERS, cases())


def is_trained(found: Found, place: int, oracle: tuple[Any, ...]) -> None:
    """Assert that a place has the oracle's weights, and its statistics if the model has any."""
    for kind, arrays in zip(("last", "state"), oracle[1:], strict=False):
        for number, expected in enumerate(arrays):
            np.testing.assert_allclose(
                found[f"{kind}{place}_{number}"], expected, rtol=0, atol=TOLERANCE, err_msg=kind
            )


def normed(found: Found, rows: list[tuple[Any, Any]], steps: int) -> tuple[Any, ...]:
    return normed_model.train(
        first_of(found), rows, steps=steps, rate=RATE, momentum=MOMENTUM, share=1 / len(rows)
    )


def test_a_step_with_an_infinite_gradient_on_one_tower_is_left_out_whole(ran: Found) -> None:
    """Also: the scale doubles after enough good steps in a row, and halves."""
    found = ran["replicated"]
    first = [found[f"first{number}"] for number in range(4)]
    oracle = optimizer_oracle.train(
        first, found["images"], found["labels"], steps=3, rate=RATE, optimizer="adam"
    )
    for place in range(TOWERS):
        is_trained(found, place, oracle)
    assert np.isfinite(found["losses"]).tolist() == [[True, step != 2] for step in range(4)]
    assert np.delete(found["joint"], 2) == pytest.approx(oracle[0], rel=TOLERANCE)
    assert found["scale"] == {"scales": [64.0], "skipped": [1]}, "doubled, halved, and one good step"


def test_an_independent_tower_leaves_out_its_own_steps_alone_and_its_scale_stays_above_one(
    ran: Found,
) -> None:
    found = ran["independent"]
    for tower, (own, steps) in enumerate(zip(slices(found, TOWERS), (STEPS, STEPS - 2), strict=True)):
        is_trained(found, tower, normed(found, [own], steps))
    assert found["scale"] == {"scales": [2.0, 1.0], "skipped": [0, 2]}


def test_compiled_towers_train_as_computed_by_hand_and_skip_steps_too(ran: Found) -> None:
    found = ran["compiled"]
    oracle = normed(found, slices(found, TOWERS), STEPS - 1)
    assert np.delete(found["joint"], 2) == pytest.approx(oracle[0], rel=TOLERANCE)
    is_trained(found, 0, oracle)
    assert found["scale"] == {"scales": [32.0], "skipped": [1]}
    assert "Conv2D" in ran["plain"]["types"]
    assert "Conv2D" not in found["types"]
    assert {"PartitionedCall", "StatefulPartitionedCall"} & set(found["types"])
    marks = found["marks"]  # [steps, towers, 3]
    assert (np.diff(marks, axis=2) >= 0).all()
    assert (marks[:, :, 2] > marks[:, :, 1]).all(), "computing takes time"


def test_no_scale_is_larger_than_the_limit(ran: Found) -> None:
    assert ran["bf16"]["scale"] == {"scales": [MAX_SCALE], "skipped": [0]}


@pytest.mark.parametrize(("compute", "digits"), [("bf16", BF16_DIGITS), ("fp16", FP16_DIGITS)])
def test_a_short_type_trains_like_float32_within_its_digits(ran: Found, compute: str, digits: int) -> None:
    found, plain = ran[compute], ran["plain"]
    # A loss near 2 of a few layers, each rounding to so many bits: a few units of the last place. Adam moves
    # a weight by the whole rate whatever its gradient is, so a sign lost to rounding counts in later steps.
    np.testing.assert_allclose(found["losses"][0], plain["losses"][0], rtol=8 * 2.0**-digits)
    np.testing.assert_allclose(found["losses"], plain["losses"], rtol=24 * 2.0**-digits)
    assert (found["losses"] != plain["losses"]).any(), "it really computes in the short type"
    assert all(array.dtype == np.float32 for name, array in found.items() if name.startswith("last"))
    # Statistics and parameters of the norm are not rounded to the short type.
    assert (found["state0_0"] != found["state0_0"].astype(np.float16)).any()


def test_channels_first_gives_the_losses_of_channels_last_or_is_refused_in_words(ran: Found) -> None:
    found = ran["fp16-nchw"]
    if "error" in found:  # TensorFlow has no kernels for this processor
        assert found["error"].startswith("/CPU:0 cannot compute in fp16 with --data-format NCHW: TensorFlow")
        assert "--data-format NHWC" in found["hint"]
    else:
        tolerance = 24 * 2.0**-FP16_DIGITS
        np.testing.assert_allclose(found["losses"], ran["plain"]["losses"], rtol=tolerance)
