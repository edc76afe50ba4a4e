"""Runs by `--method` against our own towers with a parameter server, and against the float64 oracle."""

from typing import Any

import numpy as np
import pytest

from tests.launch.train.trained import USER, trained

pytestmark = pytest.mark.tensorflow

TOLERANCE = 1e-5
ADAM: dict[str, Any] = {
    "optimization": {"optimizer": "adam", "weight_decay": 0.01, "gradient_clip_norm": 0.5},
    "learning_rate": 0.01,
}
# A model by class; losses that a model adds, state that it computes with, a condition; and dropout: a row
# drops the same entries by a method as in our own towers.
MODELS = {"kuza55": f"{USER}:by_class", "avolkov1": f"{USER}:stateful", "fchollet": "tiny"}
# 2^18 times the loss leaves the range of float16 for some steps, and is halved in each.
SCALED = {"compute": "fp16", "loss_scale": 2.0**18, "auto_loss_scale": True}


def cases() -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for method, model in MODELS.items():
        own = {"model": model, "ps_device": "/CPU:1", **(ADAM if method == "kuza55" else {})}
        made |= {f"as {method}": own, method: {**own, "method": method}}
    scaled = {"model": "small", "ps_device": "/CPU:1", "precision": SCALED}
    # Only the method's towers are compiled.
    compiled = {"method": "avolkov1", "data_format": "NCHW", "precision": SCALED | {"xla": True}}
    made |= {"own scaled": scaled, "scaled": {**scaled, **compiled}}
    made["held"] = {"model": f"{USER}:constrained", "method": "kuza55"}
    made["nowhere"] = {"model": "small", "method": "kuza55", "ps_device": "/GPU:0"}
    return made


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("methods"), 2, cases())


@pytest.mark.parametrize("method", MODELS)
def test_a_method_trains_as_our_own_towers_do(found: dict[str, Any], method: str) -> None:
    own, other = found[f"as {method}"], found[method]
    assert other["losses"] == pytest.approx(own["losses"], rel=TOLERANCE)
    assert len(set(own["losses"])) == len(own["losses"]), "it learns, or drops others"
    assert set(own["arrays"]) == set(other["arrays"])
    for name, value in own["arrays"].items():
        np.testing.assert_allclose(other["arrays"][name], value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", MODELS)
def test_variables_are_on_the_server_and_both_passes_on_the_towers_which_are_marked(
    found: dict[str, Any], method: str
) -> None:
    reported = found[method]
    assert set(reported["variables"]) == {"/CPU:1"}
    assert set(reported["ops"]) == {"/CPU:0", "/CPU:1"}
    assert set(reported["nodes"]) == {"0", "1"}
    for tower, passes in reported["nodes"].items():
        assert set(passes["forward"]) == set(passes["backward"]) == {f"CPU:{tower}"}
    marks = np.array(reported["marks"])
    assert marks.shape[1:] == (2, 3)
    assert (marks >= 0).all()
    assert (marks[:, :, 2] > 0).all()


def test_what_moves_is_reported(found: dict[str, Any]) -> None:
    assert "the CPU cuts the batch" in found["avolkov1"]["says"][-1]
    assert "on the CPU" in found["fchollet"]["says"][-1]


def test_a_device_that_is_not_there_is_refused(found: dict[str, Any]) -> None:
    assert "/GPU:0" in found["nowhere"]["error"]
    assert found["nowhere"]["hint"]


def test_a_loss_scale_and_xla_give_what_they_give_our_own_towers(found: dict[str, Any]) -> None:
    own, other = found["own scaled"], found["scaled"]
    assert other["losses"] == pytest.approx(own["losses"], rel=2e-3)  # XLA adds in another order
    assert other["scale"] == own["scale"]
    for name, value in own["arrays"].items():
        np.testing.assert_allclose(other["arrays"][name], value, rtol=0, atol=5e-3)


def test_a_step_with_an_overflow_changes_the_scale_alone(found: dict[str, Any]) -> None:
    reported = found["scaled"]
    skipped = reported["scale"]["skipped"][0]
    assert 0 < skipped < len(reported["losses"])
    assert reported["scale"]["scales"] == [2.0**18 / 2**skipped]
    # Losses stay where they are while steps are left out, and fall with the first that counts.
    assert len(set(reported["losses"][: skipped + 1])) == 1
    assert len(set(reported["losses"])) == len(reported["losses"]) - skipped


def test_constraints_of_weights_are_kept(found: dict[str, Any]) -> None:
    assert (found["held"]["arrays"]["w0_0"] >= 0).all()
    assert (found["held"]["arrays"]["w0_0"] == 0).any()
