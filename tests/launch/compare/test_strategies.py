"""Strategies of tf.distribute against our own towers. TensorFlow's collectives: one strategy a process."""

from typing import Any

import numpy as np
import pytest

from tests.launch.train.trained import USER, trained

pytestmark = pytest.mark.tensorflow

# float32 keeps 7 digits; reductions add in another order.
TOLERANCE = 2e-6
OPTIMIZATION = {"optimizer": "momentum", "weight_decay": 0.001, "gradient_clip_norm": 1.0}
# 2^19 times the loss leaves the range of float16 at first.
SCALED = {"compute": "fp16", "auto_loss_scale": True, "loss_scale": 2.0**19}
STRATEGIES = ("central", "mirrored")
PLACES = ("/CPU:0", "/CPU:1")


def cases() -> dict[str, dict[str, Any]]:
    common = {"optimization": OPTIMIZATION, "batch_size": (2, 5), "variable_update": "replicated"}
    normed = {**common, "model": f"{USER}:normed"}
    scaled = {**common, "model": f"{USER}:normed_rows", "precision": SCALED}
    return {
        "own": {**normed, "all_reduce": "copy"},
        "own scaled": {**scaled, "all_reduce": "copy"},
        "mirrored:hierarchical": {**scaled, "strategy": "mirrored:hierarchical"},
        "central": {
            **normed,
            "strategy": "central",
            "variable_update": "parameter_server",
            "ps_device": "/CPU:1",
        },
        # mirrored last: no second collective fits into a process
        "mirrored": {**normed, "strategy": "mirrored"},
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("strategies"), len(PLACES), cases())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_trains_as_our_own_towers_do(found: dict[str, Any], strategy: str) -> None:
    own, other = found["own"], found[strategy]
    assert other["losses"] == pytest.approx(own["losses"], rel=TOLERANCE)
    assert abs(own["losses"][0] - own["losses"][-1]) > 0.01, "training changes something"
    places = 1 if strategy == "central" else len(PLACES)
    for name, value in own["arrays"].items():
        if name.startswith("s") or int(name[1]) < places:
            np.testing.assert_allclose(other["arrays"][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_variables_and_both_passes_are_where_the_strategy_puts_them_and_marked(
    found: dict[str, Any], strategy: str
) -> None:
    reported = found[strategy]
    assert set(reported["variables"]) == ({"/CPU:1"} if strategy == "central" else set(PLACES))
    assert set(reported["ops"]) == set(PLACES)
    for tower, passes in reported["nodes"].items():
        assert set(passes["forward"]) == set(passes["backward"]) == {f"CPU:{tower}"}
    marks = np.array(reported["marks"])
    assert marks.shape[1:] == (len(PLACES), 3)
    assert (marks >= 0).all()
    assert (marks[:, :, 2] > 0).all()
    assert (marks[:, 0] != marks[:, 1]).any(), "each tower has its own"


def test_what_was_asked_and_what_ran_is_reported(found: dict[str, Any]) -> None:
    assert "Strategy mirrored: tf.distribute MirroredStrategy" in found["mirrored"]["says"][-1]
    assert "CollectiveReduceV2 (ring)" in found["mirrored"]["says"][-1]
    assert "HierarchicalCopyAllReduce: copies" in found["mirrored:hierarchical"]["says"][-1]


def test_an_automatic_loss_scale_does_under_a_strategy_what_it_does_without(found: dict[str, Any]) -> None:
    own, other = found["own scaled"], found["mirrored:hierarchical"]
    assert other["losses"] == pytest.approx(own["losses"], rel=2e-3)
    assert other["scale"] == own["scale"]
    assert 0 < other["scale"]["skipped"][0] < len(other["losses"])
    for name, value in own["arrays"].items():
        np.testing.assert_allclose(other["arrays"][name], value, rtol=0, atol=5e-3)
