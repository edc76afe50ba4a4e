"""Every placement and exchange against a float64 network with batch norm and momentum.

Every mode on 2 or 3 logical CPU devices whose batches differ; on 1 what differs there. A tower
normalises over its own rows, so that the sum over towers is not the gradient of the joint batch: the
reference computes by tower.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.launch.train import slope_model
from tests.launch.train.normed_model import SHAPES, train
from tests.launch.train.trained import run_cases

pytestmark = pytest.mark.tensorflow

BATCHES = {1: (8,), 2: (5, 11), 3: (5, 1, 10)}  # by number of towers
STEPS = 4  # one of warm-up, three counted
SLOPE_STEPS = 12
RATE, MOMENTUM = 0.05, 0.9
# float32 keeps about 7 digits; sums over some hundred terms, a norm and four steps may lose three of them.
TOLERANCE = 1e-4
TOLERANCE_FP16 = 5e-3  # of gradients rounded to 11 bits
BYTES = 4 * sum(math.prod(shape) for shape in SHAPES.values())

SERVER = {"variable_update": "parameter_server"}
ON_FIRST = {**SERVER, "ps_device": "/CPU:0"}
MODES: dict[str, dict[str, Any]] = {
    "server": ON_FIRST,
    "staged": {**SERVER, "exchange": {"staged": True, "ps_spread": True}},
    "fp16 repacked": {"all_reduce": "collective", "exchange": {"transfer": "fp16", "repacking": 2}},
    "relaxed and packed twice": {
        "all_reduce": "ring#3",
        "exchange": {"relaxed": True, "small_bytes": 40, "small_group": 3, "repacking": 7},
        "grad_reduce": "sum",
    },
    "groups of unequal size": {
        "all_reduce": "hierarchical",
        "exchange": {"groups": [[2, 0], [1]], "repacking": 9},
    },
}
SUMMED = ("relaxed and packed twice",)
DELAYED = ("staged", "relaxed and packed twice")
REPLICATED = tuple(name for name, fields in MODES.items() if "variable_update" not in fields)
# The number of devices matters to few modes. The sums of each reduction are in placement/test_methods; the
# modes that are not here are in test_hosts.
TOWERS = {"server": 1, "fp16 repacked": 2}
TRIED = [(TOWERS.get(mode, 3), mode) for mode in MODES]


def case(towers: int, **fields: Any) -> dict[str, Any]:
    return {
        "model": "norm",
        "devices": [{"tower": tower, "device": f"/CPU:{tower}"} for tower in range(towers)],
        "batch_size": BATCHES[towers],
        "steps": STEPS,
        "learning_rate": RATE,
        "optimization": {"optimizer": "momentum", "momentum": MOMENTUM},
        "variable_update": "replicated",
        **fields,
    }


def cases() -> dict[str, dict[str, Any]]:
    found = {f"{mode} {towers}": case(towers, **MODES[mode]) for towers, mode in TRIED}
    found["asynchronous 1"] = case(1, **asynchronous("norm"))
    slope = {**asynchronous("slope"), "optimization": {}, "steps": SLOPE_STEPS, "grad_reduce": "sum"}
    found["slope 3"] = case(3, **slope)
    found["wrong"] = case(3, all_reduce="tf_hierarchical")
    found["nowhere"] = case(3, **SERVER, ps_device="/GPU:0")
    return found


def asynchronous(model: str) -> dict[str, Any]:
    return {**SERVER, "model": model, "exchange": {"asynchronous": True}}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_cases(tmp_path_factory.mktemp("exchange"), max(BATCHES), cases())


def slices(found: dict[str, Any], towers: int, batches: Sequence[int] = ()) -> list[tuple[Any, Any]]:
    """Return the images and labels of each tower, of batches of these sizes or of equal ones."""
    rows = list(batches) or [len(found["images"]) // towers] * towers
    ends = np.cumsum(rows)
    cut = [slice(end - own, end) for end, own in zip(ends, rows, strict=True)]
    return [(found["images"][own], found["labels"][own]) for own in cut]


def first_of(found: dict[str, Any]) -> list[Any]:
    return [found[f"first{number}"] for number in range(len(SHAPES))]


def weights(found: dict[str, Any], place: int) -> list[Any]:
    return [found[f"last{place}_{number}"] for number in range(len(SHAPES))]


def is_by_hand(
    found: dict[str, Any],
    rows: list[tuple[Any, Any]],
    *,
    places: Sequence[int] = (0,),
    tolerance: float = TOLERANCE,
    **how: Any,
) -> None:
    """Assert that these places, all alike, were trained on these rows, and the first with its statistics."""
    losses, last, statistics = train(
        first_of(found), rows, steps=STEPS, rate=RATE, momentum=MOMENTUM, **{"share": 1 / len(rows), **how}
    )
    if len(rows) > 1:
        assert found["joint"] == pytest.approx(losses, rel=tolerance)
    for place in places:
        for got, expected, same in zip(weights(found, place), last, weights(found, places[0]), strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
            np.testing.assert_array_equal(got, same, err_msg="replicas stay equal to the last bit")
    for number, expected in enumerate(statistics):
        got = found[f"state{places[0]}_{number}"]
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("towers", "mode"), TRIED)
def test_every_synchronous_mode_trains_as_computed_by_hand(
    ran: dict[str, Any], towers: int, mode: str
) -> None:
    found = ran[f"{mode} {towers}"]
    is_by_hand(
        found,
        slices(found, towers, BATCHES[towers]),
        places=range(towers if mode in REPLICATED else 1),
        tolerance=TOLERANCE_FP16 if "fp16" in mode else TOLERANCE,
        share=1.0 if mode in SUMMED else 1 / towers,
        delay=int(mode in DELAYED),
    )


def test_the_reference_distinguishes_towers_their_sizes_delay_and_sum(ran: dict[str, Any]) -> None:
    found, towers = ran["staged 3"], 3
    common: dict[str, Any] = {"steps": STEPS, "rate": RATE, "momentum": MOMENTUM}
    joint = [(found["images"], found["labels"])]
    own = slices(found, towers, BATCHES[towers])

    def trained(of: list[tuple[Any, Any]], share: float = 1 / towers, **more: Any) -> list[float]:
        return train(first_of(found), of, share=share, **common, **more)[0]

    right, delayed = trained(own), trained(own, delay=1)
    assert right[-1] < right[0] - 0.02, "it learns"
    assert delayed[:2] == pytest.approx([right[0]] * 2, rel=1e-12), "nothing to apply in the first step"
    for other in (delayed, trained(own, share=1.0), trained(own, weighted=False)):
        assert abs(other[-1] - right[-1]) > 100 * TOLERANCE
    assert abs(trained(joint, share=1.0)[-1] - right[-1]) > 10 * TOLERANCE


def test_no_asynchronous_update_is_lost(ran: dict[str, Any]) -> None:
    found, towers = ran["slope 3"], 3
    total = towers * slope_model.gradient(found["images"], found["labels"])
    expected = found["first0"] - RATE * SLOPE_STEPS * total
    np.testing.assert_allclose(found["last0_0"], expected, rtol=0, atol=1e-5)
    part = BATCHES[towers][0] / sum(BATCHES[towers])
    one_update = RATE * part * np.abs(slope_model.gradient(*slices(found, towers, BATCHES[towers])[0])).max()
    assert one_update > 1e-3, "one update less would be seen"


def test_asynchronous_training_by_one_tower_is_the_synchronous_one(ran: dict[str, Any]) -> None:
    np.testing.assert_array_equal(ran["asynchronous 1"]["losses"], ran["server 1"]["losses"])


def test_a_reduction_that_loses_a_tower_is_refused_before_training(ran: dict[str, Any]) -> None:
    assert "the reduction 'tf_hierarchical' is wrong" in ran["wrong"]["error"]


def test_a_server_that_is_no_tower_of_the_run_is_refused_before_training(ran: dict[str, Any]) -> None:
    assert "/GPU:0" in ran["nowhere"]["error"]


def test_marks_stay_in_order_in_every_mode(ran: dict[str, Any]) -> None:
    for found in ran.values():
        if "error" not in found:
            assert (np.diff(found["marks"], axis=2, prepend=0.0) >= 0).all()
            assert (np.diff(found["marks"])[:, :, 1] > 0).all(), "computing takes time"


def test_variables_and_ops_are_where_the_mode_puts_them(ran: dict[str, Any]) -> None:
    on = {name: found["variables"] for name, found in ran.items() if "error" not in found}
    towers = [f"/CPU:{tower}" for tower in range(3)]
    assert on["groups of unequal size 3"] == dict.fromkeys(towers, BYTES)
    assert sum(on["staged 3"].values()) == BYTES
    assert set(on["staged 3"]) == set(towers)
    ops = ran["groups of unequal size 3"]["ops"]
    assert set(ops) == set(towers)
    assert len(set(ops.values())) == 1, "every tower has the same ops"
