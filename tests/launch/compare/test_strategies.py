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
SHORT = {"compute": "fp16", "xla": True, "auto_loss_scale": True, "loss_scale": 2.0**19}
MODELS = {2: f"{USER}:normed", 3: "small"}  # by the number of towers
BATCHES = {2: (2, 5), 3: 4}
COMPILED = 2
REPLICATED = {"variable_update": "replicated", "all_reduce": "copy"}


STRATEGIES = {2: ("central", "mirrored:hierarchical", "mirrored"), 3: ("mirrored:one", "mirrored")}


def cases(towers: int) -> dict[str, dict[str, Any]]:
    common = {"model": MODELS[towers], "optimization": OPTIMIZATION, "batch_size": BATCHES[towers]}
    made: dict[str, dict[str, Any]] = {"own": {**common, **REPLICATED}}
    if towers == COMPILED:
        made["own short"] = {**common, **REPLICATED, "precision": SHORT}
        made["mirrored:one short"] = {
            **common,
            "variable_update": "replicated",
            "strategy": "mirrored:one",
            "precision": SHORT,
        }
    for strategy in STRATEGIES[towers]:  # mirrored last: no second collective fits into a process
        where = {"ps_device": "/CPU:1"} if strategy == "central" else {"variable_update": "replicated"}
        made[strategy] = {**common, "strategy": strategy, **where}
    return made


@pytest.fixture(scope="module")
def all_ran(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    return {
        towers: trained(tmp_path_factory.mktemp("strategies"), towers, cases(towers)) for towers in MODELS
    }


@pytest.fixture(params=MODELS)
def ran(request: pytest.FixtureRequest, all_ran: dict[int, dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    return request.param, all_ran[request.param]


@pytest.mark.parametrize(
    ("towers", "strategy"),
    [(towers, strategy) for towers, strategies in STRATEGIES.items() for strategy in strategies],
)
def test_a_strategy_trains_as_our_own_towers_do(
    all_ran: dict[int, dict[str, Any]], towers: int, strategy: str
) -> None:
    found = all_ran[towers]
    own, other = found["own"], found[strategy]
    assert other["losses"] == pytest.approx(own["losses"], rel=TOLERANCE)
    assert abs(own["losses"][0] - own["losses"][-1]) > 0.01, "training changes something"
    places = 1 if strategy == "central" else towers
    for name, value in own["arrays"].items():
        if name.startswith("s") or int(name[1]) < places:
            np.testing.assert_allclose(other["arrays"][name], value, rtol=1e-4, atol=1e-5)


def test_variables_and_both_passes_are_where_the_strategy_puts_them(ran: tuple[int, dict[str, Any]]) -> None:
    towers, found = ran
    everywhere = {f"/CPU:{tower}" for tower in range(towers)}
    for strategy in STRATEGIES[towers]:
        on = {"/CPU:1"} if strategy == "central" else everywhere
        assert set(found[strategy]["variables"]) == on
        assert set(found[strategy]["ops"]) == everywhere
        for tower, passes in found[strategy]["nodes"].items():
            assert set(passes["forward"]) == set(passes["backward"]) == {f"CPU:{tower}"}


def test_what_was_asked_and_what_ran_is_reported(all_ran: dict[int, dict[str, Any]]) -> None:
    found = all_ran[3]
    assert "Strategy mirrored: tf.distribute MirroredStrategy" in found["mirrored"]["says"][-1]
    assert "CollectiveReduceV2 (ring)" in found["mirrored"]["says"][-1]
    assert "ReductionToOneDevice: copies" in found["mirrored:one"]["says"][-1]


def test_towers_are_marked_under_a_strategy_too(ran: tuple[int, dict[str, Any]]) -> None:
    towers, found = ran
    marks = np.array(found["mirrored"]["marks"])
    assert marks.shape[1:] == (towers, 3)
    assert (marks >= 0).all()
    assert (marks[:, :, 2] > 0).all()


def test_xla_and_an_automatic_loss_scale_do_under_a_strategy_what_they_do_without(
    all_ran: dict[int, dict[str, Any]],
) -> None:
    found = all_ran[COMPILED]
    own, other = found["own short"], found["mirrored:one short"]
    assert other["losses"] == pytest.approx(own["losses"], rel=1e-4)
    assert other["scale"] == own["scale"]
    assert 0 < other["scale"]["skipped"][0] < len(other["losses"])
    np.testing.assert_allclose(other["arrays"]["w0_0"], own["arrays"]["w0_0"], rtol=0, atol=1e-3)
    np.testing.assert_allclose(other["arrays"]["s0"], own["arrays"]["s0"], rtol=0, atol=1e-3)
