"""Towers compiled by XLA: the same losses and weights, on every device and in every mode."""

from typing import Any

import numpy as np
import pytest

from tests.launch.train.trained import Found, steps_of

pytestmark = pytest.mark.tensorflow

TOWERS = 2
STEPS = 3
SERVER = {"variable_update": "parameter_server", "ps_device": "/CPU:0"}
REPLICATED = {"variable_update": "replicated", "all_reduce": "copy"}
# XLA adds in another order: float32 keeps 7 digits, a few steps lose two of them.
TOLERANCE = 1e-5


def cases() -> dict[str, dict[str, Any]]:
    """Few, because XLA compiles each tower of each case for a second or more."""
    scaled = {"xla": True, "auto_loss_scale": True, "loss_scale": 64.0}
    specs: dict[str, dict[str, Any]] = {
        "plain": SERVER,
        "compiled": {**REPLICATED, "precision": scaled, "data_format": "NCHW"},
    }
    found: dict[str, dict[str, Any]] = {
        name: {"model": "norm", "steps": STEPS, "batch_size": 4, "learning_rate": 0.05, **spec}
        for name, spec in specs.items()
    }
    found["dropping"] = {
        **found["plain"],
        "model": "dropping",
        "devices": [{"tower": 0, "device": "/CPU:0"}],
        "precision": {"xla": True},
        "learning_rate": 0.0,
    }
    # The last step is one more, which is left out.
    found["compiled"] |= {"steps": STEPS + 1, "overflow": {"tower": 1, "steps": [STEPS]}}
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return steps_of(tmp_path_factory.mktemp("xla"), TOWERS, cases())


def test_losses_weights_and_statistics_are_those_of_the_plain_towers(ran: Found) -> None:
    # Another mode and another layout, which change nothing, so that few cases are compiled.
    compiled, plain = ran["compiled"], ran["plain"]
    np.testing.assert_allclose(compiled["losses"][:STEPS], plain["losses"], rtol=TOLERANCE)
    for array in plain:
        if array.startswith(("last", "state")):
            np.testing.assert_allclose(compiled[array], plain[array], rtol=0, atol=10 * TOLERANCE)
    assert abs(plain["losses"][0] - plain["losses"][1]).min() > 1e-3


def test_what_is_dropped_differs_between_steps(ran: Found) -> None:
    # Nothing is learnt at a rate of 0.
    assert len(set(ran["dropping"]["losses"][:, 0].tolist())) == STEPS


def test_the_towers_are_calls_of_compiled_functions(ran: Found) -> None:
    plain, compiled = set(ran["plain"]["types"]), set(ran["compiled"]["types"])
    assert "Conv2D" in plain
    assert "Conv2D" not in compiled
    assert {"PartitionedCall", "StatefulPartitionedCall"} & compiled


def test_marks_are_in_order_and_computing_takes_time(ran: Found) -> None:
    marks = ran["compiled"]["marks"]  # [steps, towers, 3]
    assert (np.diff(marks, axis=2) >= 0).all()
    assert (marks[:, :, 2] > marks[:, :, 1]).all()


def test_an_overflow_is_left_out_under_xla_too(ran: Found) -> None:
    found = ran["compiled"]  # whose weights are those of the plain towers, which take no such step
    assert found["scale"] == {"scales": [32.0], "skipped": [1]}
    assert np.isfinite(found["losses"]).tolist() == [[True, True]] * STEPS + [[True, False]]
