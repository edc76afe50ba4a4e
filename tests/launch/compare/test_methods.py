"""Runs by `--method` against our own towers with a parameter server, and against the float64 oracle."""

from typing import Any

import numpy as np
import pytest

from tests.launch.train.trained import USER, trained

pytestmark = pytest.mark.tensorflow

METHODS = ("kuza55", "avolkov1", "fchollet")
TOLERANCE = 1e-5
ADAM: dict[str, Any] = {
    "optimization": {"optimizer": "adam", "weight_decay": 0.01, "gradient_clip_norm": 0.5},
    "learning_rate": 0.01,
}
# Losses that a model adds, state that it computes with, a condition; a model by class.
STATEFUL = [("stateful", "avolkov1"), ("stateful", "fchollet"), ("by_class", "kuza55")]
# By model and method. 2^18 times the loss leaves the range of float16 for some steps, and is halved in each.
PRECISE: dict[tuple[str, str], dict[str, Any]] = {
    ("normed_rows", "kuza55"): {"compute": "bf16"},
    ("small", "avolkov1"): {"compute": "fp16", "loss_scale": 2.0**18, "auto_loss_scale": True},
}
# With dropout: a row drops the same entries by a method as in our own towers.
TRAINED = [*(("small", method) for method in METHODS), ("normed_rows", "avolkov1"), ("tiny", "fchollet")]


def cases() -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for short, by in [*TRAINED, *STATEFUL]:
        more = ADAM if short == "by_class" else {}
        made[f"{short} own"] = {"model": path_of(short), "ps_device": "/CPU:1", **more}
        made[f"{short} {by}"] = {**made[f"{short} own"], "method": by}
    for (short, by), precision in PRECISE.items():
        common = {"model": path_of(short), "ps_device": "/CPU:1", "precision": precision}
        made[f"precise {short} own"] = common
        made[f"precise {short} {by}"] = {**common, "method": by}
    # Only the method's towers are compiled.
    made["precise small avolkov1"]["precision"] = PRECISE["small", "avolkov1"] | {"xla": True}
    made["held"] = {"model": f"{USER}:constrained", "method": "kuza55"}
    made["breaks"] = {"model": f"{USER}:breaks", "method": "kuza55"}
    made["dropping"] = {"model": f"{USER}:dropping", "method": "kuza55", "learning_rate": 0.0}
    made["small avolkov1"]["data_format"] = "NCHW"
    made["nowhere"] = {"model": "small", "method": "kuza55", "ps_device": "/GPU:0"}
    return made


def path_of(short: str) -> str:
    return short if short in ("small", "tiny") else f"{USER}:{short}"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("methods"), 2, cases())


@pytest.mark.parametrize(("model", "method"), TRAINED)
def test_a_method_trains_as_our_own_towers_do(found: dict[str, Any], model: str, method: str) -> None:
    own, other = found[f"{model} own"], found[f"{model} {method}"]
    assert other["losses"] == pytest.approx(own["losses"], rel=TOLERANCE)
    assert len(set(own["losses"])) == len(own["losses"]), "it learns, or drops others"
    assert set(own["arrays"]) == set(other["arrays"])
    for name, value in own["arrays"].items():
        np.testing.assert_allclose(other["arrays"][name], value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_variables_are_on_the_server_and_both_passes_on_the_towers_which_are_marked(
    found: dict[str, Any], method: str
) -> None:
    reported = found[f"small {method}"]
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
    assert "the CPU cuts the batch" in found["small avolkov1"]["says"][-1]
    assert "on the CPU" in found["small fchollet"]["says"][-1]


@pytest.mark.parametrize(("case", "word"), [("breaks", "a layer of the user's"), ("nowhere", "/GPU:0")])
def test_what_does_not_go_with_a_method_is_refused(found: dict[str, Any], case: str, word: str) -> None:
    assert word in found[case]["error"]
    assert found[case]["hint"]


def test_random_layers_draw_anew_in_every_step(found: dict[str, Any]) -> None:
    # Nothing is learnt at a rate of 0, so only what is dropped can change the loss.
    assert len(set(found["dropping"]["losses"])) == len(found["dropping"]["losses"])


@pytest.mark.parametrize(("model", "method"), STATEFUL)
def test_what_a_model_adds_to_its_loss_or_keeps_counts_as_in_our_own_towers(
    found: dict[str, Any], model: str, method: str
) -> None:
    own, other = found[f"{model} own"], found[f"{model} {method}"]
    assert other["losses"] == pytest.approx(own["losses"], rel=TOLERANCE)
    assert len(set(own["losses"])) == len(own["losses"])
    for name, value in own["arrays"].items():
        np.testing.assert_allclose(other["arrays"][name], value, rtol=0, atol=1e-4)
    assert all(set(passes["forward"]) == {f"CPU:{tower}"} for tower, passes in other["nodes"].items())


@pytest.mark.parametrize(("model", "method"), PRECISE)
def test_types_loss_scale_and_xla_give_what_they_give_our_own_towers(
    found: dict[str, Any], model: str, method: str
) -> None:
    own, other = found[f"precise {model} own"], found[f"precise {model} {method}"]
    exact, rounding = found[f"{model} own"], 2e-3  # of bfloat16; and XLA adds in another order
    assert other["losses"] == pytest.approx(own["losses"], rel=rounding)
    assert other["losses"][0] == pytest.approx(exact["losses"][0], rel=1e-2)
    assert other["losses"] != exact["losses"]
    assert other["scale"] == own["scale"]
    for name, value in own["arrays"].items():
        np.testing.assert_allclose(other["arrays"][name], value, rtol=0, atol=5e-3)


def test_a_step_with_an_overflow_changes_the_scale_alone(found: dict[str, Any]) -> None:
    reported = found["precise small avolkov1"]
    skipped = reported["scale"]["skipped"][0]
    assert 0 < skipped < len(reported["losses"])
    assert reported["scale"]["scales"] == [2.0**18 / 2**skipped]
    # Losses stay where they are while steps are left out, and fall with the first that counts.
    assert len(set(reported["losses"][: skipped + 1])) == 1
    assert len(set(reported["losses"])) == len(reported["losses"]) - skipped


def test_constraints_of_weights_are_kept(found: dict[str, Any]) -> None:
    assert (found["held"]["arrays"]["w0_0"] >= 0).all()
    assert (found["held"]["arrays"]["w0_0"] == 0).any()
