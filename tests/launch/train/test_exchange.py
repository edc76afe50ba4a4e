"""Every placement and exchange against a float64 network with batch norm and momentum.

Every mode on 3 logical CPU devices; on 1, 2, 4 and 7 what differs there. A tower normalises over its own
rows, so that the sum over towers is not the gradient of the joint batch: the reference computes by tower.
"""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.launch.train import slope_model
from tests.launch.train.normed_model import SHAPES, train
from tests.launch.train.trained import run_cases

pytestmark = pytest.mark.tensorflow

JOINT_BATCH = 24
STEPS = 5  # one of warm-up, four counted
SLOPE_STEPS = 12
RATE, MOMENTUM = 0.05, 0.9
# float32 keeps about 7 digits; sums over some hundred terms, a norm and five steps may lose three of them.
TOLERANCE = 1e-4
TOLERANCE_FP16 = 5e-3  # of gradients rounded to 11 bits
TOWERS = (3, 4, 2, 1)  # the longest first
BYTES = 4 * sum(math.prod(shape) for shape in SHAPES.values())

SERVER = {"variable_update": "parameter_server"}
COPIES = {"variable_update": "replicated"}
MODES: dict[str, dict[str, Any]] = {
    "server": {**SERVER, "ps_device": "/CPU:0"},
    "server on the last": {**SERVER, "ps_device": "last"},
    "server spread": {**SERVER, "exchange": {"ps_spread": True}},
    "spread in parts": {**SERVER, "exchange": {"ps_spread": True}, "in_parts": True},
    "staged in parts": {**SERVER, "exchange": {"staged": True, "ps_spread": True}, "in_parts": True},
    "server staged": {**SERVER, "ps_device": "/CPU:0", "exchange": {"staged": True}},
    "copy": {"all_reduce": "copy"},
    "copy in parts": {"all_reduce": "copy", "in_parts": True},
    "ring#2": {"all_reduce": "ring#2"},
    "hierarchical": {"all_reduce": "hierarchical"},
    "collective": {"all_reduce": "collective"},
    "relaxed ring": {"all_reduce": "ring", "exchange": {"relaxed": True, "repacking": 2}},
    "joined": {"all_reduce": "ring", "exchange": {"small_bytes": 30}},
    "fp16 repacked": {"all_reduce": "collective", "exchange": {"transfer": "fp16", "repacking": 2}},
}
INDEPENDENT = {"variable_update": "independent"}
# By number of towers, beside all on 3: 4 take turns in pairs on two cores, 2 run at once, 1 is alone.
# The sums of each reduction on even numbers are in placement/test_methods; 2 towers also in test_hosts.
TRIED = {
    4: ("hierarchical", "copy in parts", "spread in parts"),
    2: ("copy in parts", "spread in parts"),
    1: ("server", "copy", "relaxed ring"),
}
SUMMED = ("server staged", "copy")  # on 3 towers; without a norm also in test_unequal_batches
OTHERS = {"independent": (4,), "asynchronous": (3, 1)}  # on so many towers
SLOPES = ((3, "mean"), (3, "sum"), (2, "mean"))  # towers, reduction
DELAYED = ("server staged", "staged in parts", "relaxed ring")
REPLICATED = tuple(name for name, fields in MODES.items() if "variable_update" not in fields)


def is_run(mode: str, towers: int, reduce: str) -> bool:
    """Mean and sum are one factor of the loss, whatever the mode does with the gradients."""
    if mode in OTHERS:
        return reduce == "mean" and towers in OTHERS[mode]
    if towers == 3:
        return reduce == "mean" or mode in SUMMED
    return reduce == "mean" and mode in TRIED.get(towers, ())


def cases_for(towers: int) -> dict[str, dict[str, Any]]:
    common = {
        "model": "norm",
        "batch_size": JOINT_BATCH // towers,
        "num_batches": STEPS - 1,
        "num_warmup_batches": 1,
        "learning_rate": RATE,
        "optimization": {"optimizer": "momentum", "momentum": MOMENTUM},
        "variable_update": "replicated",
    }
    cases = {}
    others = {"asynchronous": asynchronous("norm"), "independent": INDEPENDENT}
    for name, fields in {**MODES, **others}.items():
        given = {key: f"/CPU:{towers - 1}" if value == "last" else value for key, value in fields.items()}
        for reduce in ("mean", "sum"):
            if is_run(name, towers, reduce):
                cases[f"{name}-{reduce}"] = {**common, **given, "grad_reduce": reduce}
    slope = {**common, **asynchronous("slope"), "optimization": {}, "num_batches": SLOPE_STEPS - 1}
    if towers == 2:  # on so many the variable is in parts
        slope |= {"exchange": {"asynchronous": True, "ps_spread": True}, "in_parts": True}
    return cases | {
        f"slope-{reduce}": {**slope, "grad_reduce": reduce} for of, reduce in SLOPES if of == towers
    }


def asynchronous(model: str) -> dict[str, Any]:
    return {**SERVER, "model": model, "exchange": {"asynchronous": True}}


@pytest.fixture(scope="module")
def all_ran(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """Building graphs takes one core: two processes at a time."""
    folders = [tmp_path_factory.mktemp("exchange") for _ in TOWERS]
    with ThreadPoolExecutor(2) as pool:
        ran = pool.map(run_cases, folders, TOWERS, map(cases_for, TOWERS))
        return dict(zip(TOWERS, ran, strict=True))


def slices(found: dict[str, Any], towers: int) -> list[tuple[Any, Any]]:
    rows = len(found["images"]) // towers
    cut = [slice(tower * rows, (tower + 1) * rows) for tower in range(towers)]
    return [(found["images"][own], found["labels"][own]) for own in cut]


def weights(found: dict[str, Any], place: int) -> list[Any]:
    return [found[f"last{place}_{number}"] for number in range(len(SHAPES))]


@pytest.mark.parametrize(
    ("towers", "mode", "reduce"),
    [
        (towers, mode, reduce)
        for towers in TOWERS
        for mode in MODES
        for reduce in ("mean", "sum")
        if is_run(mode, towers, reduce)
    ],
)
def test_every_synchronous_mode_trains_as_computed_by_hand(
    all_ran: dict[int, dict[str, Any]], towers: int, mode: str, reduce: str
) -> None:
    cases = all_ran[towers]
    found = cases[f"{mode}-{reduce}"]
    losses, last, statistics = train(
        [found[f"first{number}"] for number in range(len(SHAPES))],
        slices(found, towers),
        steps=STEPS,
        rate=RATE,
        momentum=MOMENTUM,
        share=1 / towers if reduce == "mean" else 1.0,
        delay=int(mode in DELAYED),
    )
    tolerance = TOLERANCE_FP16 if "fp16" in mode and towers > 1 else TOLERANCE
    assert found["losses"] == pytest.approx(losses, rel=tolerance)
    for place in range(towers if mode in REPLICATED else 1):
        for got, expected in zip(weights(found, place), last, strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
    for number, expected in enumerate(statistics):
        np.testing.assert_allclose(found[f"state{number}"], expected, rtol=tolerance, atol=tolerance)


SEVEN: dict[str, tuple[dict[str, Any], str, int]] = {  # fields, reduction to mean or sum, delay
    "relaxed and packed twice": (
        {
            "all_reduce": "ring#3",
            "exchange": {"relaxed": True, "small_bytes": 40, "small_group": 3, "repacking": 7},
        },
        "sum",
        1,
    ),
    "groups of unequal size": (
        {
            "all_reduce": "hierarchical",
            "exchange": {"groups": [[6, 3, 0], [1, 4], [2, 5]], "repacking": 30},
        },
        "mean",
        0,
    ),
}


@pytest.fixture(scope="module")
def on_seven(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    common = {**cases_for(3)["copy-mean"], "batch_size": 5}
    cases = {name: {**common, **fields, "grad_reduce": reduce} for name, (fields, reduce, _) in SEVEN.items()}
    return run_cases(tmp_path_factory.mktemp("seven"), 7, cases)


@pytest.mark.parametrize("name", SEVEN)
def test_seven_towers_with_several_options_at_once_train_as_computed_by_hand(
    on_seven: dict[str, Any], name: str
) -> None:
    _, reduce, delay = SEVEN[name]
    found = on_seven[name]
    losses, last, _ = train(
        [found[f"first{number}"] for number in range(len(SHAPES))],
        slices(found, 7),
        steps=STEPS,
        rate=RATE,
        momentum=MOMENTUM,
        share=1 / 7 if reduce == "mean" else 1.0,
        delay=delay,
    )
    assert found["losses"] == pytest.approx(losses, rel=TOLERANCE)
    for place in range(7):
        for got, expected in zip(weights(found, place), last, strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("towers", OTHERS["independent"])
def test_independent_towers_train_on_their_own_rows_whatever_the_others_do(
    all_ran: dict[int, dict[str, Any]], towers: int
) -> None:
    found = all_ran[towers]["independent-mean"]
    first = [found[f"first{number}"] for number in range(len(SHAPES))]
    for tower, own in enumerate(slices(found, towers)):
        _, last, statistics = train(first, [own], steps=STEPS, rate=RATE, momentum=MOMENTUM, share=1.0)
        for got, expected in zip(weights(found, tower), last, strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)
        if tower == 0:
            for number, expected in enumerate(statistics):
                np.testing.assert_allclose(found[f"state{number}"], expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_the_reference_distinguishes_towers_delay_and_sum(all_ran: dict[int, dict[str, Any]]) -> None:
    towers, found = 3, all_ran[3]["server-mean"]
    first = [found[f"first{number}"] for number in range(len(SHAPES))]
    common: dict[str, Any] = {"steps": STEPS, "rate": RATE, "momentum": MOMENTUM}
    joint = train(first, [(found["images"], found["labels"])], share=1.0, **common)
    right = train(first, slices(found, towers), share=1 / towers, **common)
    delayed = train(first, slices(found, towers), share=1 / towers, delay=1, **common)
    summed = train(first, slices(found, towers), share=1.0, **common)
    assert right[0][-1] < right[0][0] - 0.02, "it learns"
    assert delayed[0][:2] == pytest.approx([right[0][0]] * 2, rel=1e-12), "nothing to apply in the first step"
    assert abs(delayed[0][-1] - right[0][-1]) > 100 * TOLERANCE
    assert abs(joint[0][-1] - right[0][-1]) > 10 * TOLERANCE
    assert abs(summed[0][-1] - right[0][-1]) > 100 * TOLERANCE


def test_replicas_stay_equal_to_the_last_bit(all_ran: dict[int, dict[str, Any]]) -> None:
    for towers, cases in all_ran.items():
        for name, found in cases.items():
            for tower in range(1, towers if name.rpartition("-")[0] in REPLICATED else 1):
                for a, b in zip(weights(found, 0), weights(found, tower), strict=True):
                    np.testing.assert_array_equal(a, b, err_msg=f"{name} on {towers}")


@pytest.mark.parametrize(("towers", "reduce"), SLOPES)
def test_no_asynchronous_update_is_lost(all_ran: dict[int, dict[str, Any]], towers: int, reduce: str) -> None:
    found = all_ran[towers][f"slope-{reduce}"]
    share = 1 / towers if reduce == "mean" else 1.0
    total = sum(share * slope_model.gradient(images, labels) for images, labels in slices(found, towers))
    assert len(found["losses"]) == SLOPE_STEPS
    expected = found["first0"] - RATE * SLOPE_STEPS * total
    np.testing.assert_allclose(found["last0_0"], expected, rtol=0, atol=1e-5)
    one_update = RATE * share * np.abs(slope_model.gradient(*slices(found, towers)[0])).max()
    assert one_update > 1e-3, "one update less would be seen"


@pytest.mark.parametrize("towers", OTHERS["asynchronous"])
def test_asynchronous_training_learns_and_alone_it_is_the_synchronous_one(
    all_ran: dict[int, dict[str, Any]], towers: int
) -> None:
    cases = all_ran[towers]
    found = cases["asynchronous-mean"]
    if towers == 1:
        np.testing.assert_array_equal(found["losses"], cases["server-mean"]["losses"])
    assert found["losses"][-1] < found["losses"][0]


def test_marks_stay_in_order_in_every_mode(all_ran: dict[int, dict[str, Any]]) -> None:
    for found in (one for cases in all_ran.values() for one in cases.values()):
        assert (found["marks"] >= 0).all()
        assert (found["marks"][:, :, 2] > 0).all(), "computing takes time"


def test_variables_are_where_the_mode_puts_them(all_ran: dict[int, dict[str, Any]]) -> None:
    cases = all_ran[3]
    on = {name: json.loads(str(found["variables_on"])) for name, found in cases.items()}
    assert on["server-mean"] == on["server staged-mean"] == on["asynchronous-mean"] == {"/CPU:0": BYTES}
    assert on["server on the last-mean"] == {"/CPU:2": BYTES}
    assert on["ring#2-mean"] == on["relaxed ring-mean"] == {f"/CPU:{tower}": BYTES for tower in range(3)}
    spread = on["server spread-mean"]
    assert sum(spread.values()) == BYTES
    assert len(spread) == 3
    assert max(spread.values()) < BYTES
    parts = on["spread in parts-mean"]
    assert sum(parts.values()) == BYTES
    assert max(parts.values()) < max(spread.values()) / 2, "the dense kernel is cut"
