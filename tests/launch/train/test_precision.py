"""Short types, loss scales and steps left out, on 2 devices."""

from typing import Any

import numpy as np
import pytest

from tests.launch.train.trained import Found, steps_of

pytestmark = pytest.mark.tensorflow

TOWERS = 2
BATCH = 4
MAX_SCALE = 2.0**24  # as of NVIDIA Apex
DIGITS = {"fp16": 11, "bf16": 8}
SERVER = {"variable_update": "parameter_server", "ps_device": "/CPU:0"}
REPLICATED = {"variable_update": "replicated", "all_reduce": "copy"}
INDEPENDENT = {"variable_update": "independent"}
SPREAD: dict[str, Any] = {"variable_update": "parameter_server", "exchange": {"ps_spread": True}}
MODES = {"server": SERVER, "spread": SPREAD, "replicated": REPLICATED, "independent": INDEPENDENT}
AUTO = {"auto_loss_scale": True, "loss_scale": 64.0}
# Scales are powers of two, so that scaling is exact and a run that left a step out is the shorter run to
# the last bit. Adam counts its steps in the powers of its betas.
OPTIMIZERS = {"server": "adam", "spread": "adam", "replicated": "momentum", "independent": "rmsprop"}


def case(
    mode: str, steps: int, precision: dict[str, Any], model: str = "tiny", **more: Any
) -> dict[str, Any]:
    return {
        "model": model,
        "steps": steps,
        **MODES[mode],
        "batch_size": BATCH,
        "learning_rate": 0.05,
        "precision": precision,
        "optimization": {"optimizer": OPTIMIZERS[mode]},
        **more,
    }


def cases() -> dict[str, dict[str, Any]]:
    found = {}
    bad = {"tower": 1, "steps": [2]}
    # Dropout would differ by the number of the step: "norm" has none, as the shorter run to compare.
    for mode in ("spread", "replicated", "independent"):
        found[f"{mode}-hit"] = case(mode, 5, AUTO, "norm", overflow=bad)
        found[f"{mode}-short"] = case(mode, 4, AUTO, "norm")
    found["plain"] = case("server", 4, {})
    found["fp16"] = case("server", 4, {"compute": "fp16", "loss_scale": 128.0})
    most = {"auto_loss_scale": True, "loss_scale": MAX_SCALE, "loss_scale_steps": 1}
    found["bf16"] = case("server", 4, {"compute": "bf16", **most})
    never = {"tower": 0, "steps": list(range(100))}
    found["grows"] = case("server", 5, {**AUTO, "loss_scale_steps": 2}, "small")
    found["shrinks"] = case("server", 4, {**AUTO, "loss_scale": 4.0}, "small", overflow=never)
    found["fp16-nchw"] = case("server", 2, {"compute": "fp16", "loss_scale": 128.0}, data_format="NCHW")
    found["small-fp16-range"] = case("server", 2, {"compute": "fp16", "loss_scale": 2.0**20}, "small")
    return found


def same(found: Found, other: Found, *kinds: str) -> bool:
    """Return whether all arrays whose names start so are equal to the last bit, and that there are some."""
    names = [name for name in found if name.startswith(kinds)]
    assert names
    return all(np.array_equal(found[name], other[name]) for name in names)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return steps_of(tmp_path_factory.mktemp("precision"), TOWERS, cases())


@pytest.mark.parametrize("mode", ["spread", "replicated"])
def test_a_step_with_an_infinite_gradient_on_one_tower_is_left_out_whole(ran: Found, mode: str) -> None:
    hit, short = ran[f"{mode}-hit"], ran[f"{mode}-short"]
    assert same(hit, short, "last", "slot", "state")
    assert not np.isfinite(hit["losses"][2, 1])
    np.testing.assert_array_equal(np.delete(hit["losses"], 2, axis=0), short["losses"])
    assert hit["scale"] == {"scales": [32.0], "skipped": [1]}
    assert short["scale"] == {"scales": [64.0], "skipped": [0]}


def test_an_independent_tower_leaves_out_its_own_step_alone(ran: Found) -> None:
    hit, short = ran["independent-hit"], ran["independent-short"]
    assert same(hit, short, "last1_", "slot1_", "state1_")
    assert not same(hit, short, "last0_")
    assert hit["scale"] == {"scales": [64.0, 32.0], "skipped": [0, 1]}


def test_the_scale_doubles_after_enough_good_steps_up_to_a_limit(ran: Found) -> None:
    assert ran["grows"]["scale"]["scales"] == [256.0]  # after steps 2 and 4 of 5
    assert ran["bf16"]["scale"] == {"scales": [MAX_SCALE], "skipped": [0]}


def test_the_scale_halves_down_to_one_and_nothing_is_ever_changed(ran: Found) -> None:
    found = ran["shrinks"]
    assert found["scale"] == {"scales": [1.0], "skipped": [4]}
    for number in range(4):
        np.testing.assert_array_equal(found[f"first{number}"], found[f"last0_{number}"])


@pytest.mark.parametrize(("kind", "digits"), DIGITS.items())
def test_short_types_train_like_float32_within_their_digits(ran: Found, kind: str, digits: int) -> None:
    found, plain = ran[kind], ran["plain"]
    # A loss near 2 of a few layers, each rounding to `digits` bits: a few units of the last place. Adam moves
    # a weight by the whole rate whatever its gradient is, so a sign lost to rounding counts in later steps.
    np.testing.assert_allclose(found["losses"][0], plain["losses"][0], rtol=8 * 2.0**-digits)
    np.testing.assert_allclose(found["losses"], plain["losses"], rtol=24 * 2.0**-digits)
    assert not same(found, plain, "losses"), "it really computes in the short type"
    assert all(array.dtype == np.float32 for name, array in found.items() if name.startswith("last"))
    # Statistics and parameters of the norm are not rounded to the short type.
    assert (found["state0_0"] != found["state0_0"].astype(np.float16)).any()


def test_channels_first_gives_the_losses_of_channels_last_or_is_refused_in_words(ran: Found) -> None:
    found = ran["fp16-nchw"]
    if "error" in found:  # TensorFlow has no kernels for this processor
        assert found["error"].startswith("/CPU:0 cannot compute in fp16 with --data-format NCHW: TensorFlow")
        assert "--data-format NHWC" in found["hint"]
    else:
        tolerance = 8 * 2.0 ** -DIGITS["fp16"]
        np.testing.assert_allclose(found["losses"], ran["fp16"]["losses"][:2], rtol=tolerance)


def test_a_scale_beyond_float16_shows_as_gradients_that_are_not_finite(ran: Found) -> None:
    assert not np.isfinite(ran["small-fp16-range"]["last0_2"]).all()
