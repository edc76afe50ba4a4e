"""The training core against a float64 numpy computation, on 4 logical CPU devices.

On other numbers, with a norm and momentum: test_exchange.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.launch.forks import run_program
from tests.launch.train.small_model import SHAPES, train

pytestmark = pytest.mark.tensorflow

JOINT_BATCH = 8
STEPS = 6  # two of warm-up, four counted
RATE = 0.3
# float32 keeps about 7 digits; sums over some hundred terms and six steps may lose two of them.
TOLERANCE = 1e-5
TOWERS = 4
SYNCHRONOUS = ("ps_cpu", "ps_last", "replicated")
SUMMED = ("ps_cpu", "replicated")


def run_cases(folder: Path, towers: int, cases: dict[str, dict[str, Any]], **several: Any) -> dict[str, Any]:
    file = folder / "cases.json"
    file.write_text(json.dumps({"towers": towers, "cases": cases, **several}))
    done = run_program("-m", "tests.launch.train.process", str(file), str(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    errors = {path.stem: path.read_text() for path in folder.glob("*.error")}
    return {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")} | errors


def cases_for(towers: int) -> dict[str, dict[str, Any]]:
    common = {
        "batch_size": JOINT_BATCH // towers,
        "num_batches": 4,
        "num_warmup_batches": 2,
        "learning_rate": RATE,
    }
    server = {"variable_update": "parameter_server"}
    modes: dict[str, dict[str, Any]] = {
        "ps_cpu": {**server, "ps_device": "/CPU:0"},
        "ps_last": {**server, "ps_device": f"/CPU:{towers - 1}"},
        "replicated": {"variable_update": "replicated", "all_reduce": "copy"},
        "independent": {"variable_update": "independent"},
    }
    cases = {
        f"{name}-{reduce}": {**common, **mode, "grad_reduce": reduce}
        for name, mode in modes.items()
        for reduce in ("mean", "sum")
        if reduce == "mean" or name in SUMMED
    }
    cases["ps_cpu-nchw"] = {**common, **modes["ps_cpu"], "data_format": "NCHW"}
    return cases


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_cases(tmp_path_factory.mktemp("core"), TOWERS, cases_for(TOWERS))


def oracle(found: dict[str, Any], rate: float) -> tuple[list[float], list[Any]]:
    first = [found[f"first{number}"] for number in range(len(SHAPES))]
    return train(first, found["images"], found["labels"], steps=STEPS, rate=rate)


def weights(found: dict[str, Any], place: int) -> list[Any]:
    return [found[f"last{place}_{number}"] for number in range(len(SHAPES))]


@pytest.mark.parametrize(
    ("mode", "reduce"), [*((mode, "mean") for mode in SYNCHRONOUS), *((mode, "sum") for mode in SUMMED)]
)
def test_synchronous_modes_train_like_one_device_on_the_joint_batch(
    cases: dict[str, Any], mode: str, reduce: str
) -> None:
    found = cases[f"{mode}-{reduce}"]
    # A tower's loss is the mean of its own rows, so the towers' gradients add up to `TOWERS` times the mean.
    losses, last = oracle(found, RATE if reduce == "mean" else RATE * TOWERS)
    assert found["losses"] == pytest.approx(losses, rel=TOLERANCE)
    places = TOWERS if mode == "replicated" else 1
    for place in range(places):
        for got, expected in zip(weights(found, place), last, strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE * 10)


def test_nchw_gives_the_same_losses_as_nhwc(cases: dict[str, Any]) -> None:
    assert cases["ps_cpu-nchw"]["losses"] == pytest.approx(cases["ps_cpu-mean"]["losses"], rel=TOLERANCE)


def test_independent_towers_follow_their_own_rows_and_drift_apart(cases: dict[str, Any]) -> None:
    found = cases["independent-mean"]
    rows = JOINT_BATCH // TOWERS
    first = [found[f"first{number}"] for number in range(len(SHAPES))]
    for tower in range(TOWERS):
        own = slice(tower * rows, (tower + 1) * rows)
        _, last = train(first, found["images"][own], found["labels"][own], steps=STEPS, rate=RATE)
        for got, expected in zip(weights(found, tower), last, strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE * 10)
    drift = max(abs(a - b).max() for a, b in zip(weights(found, 0), weights(found, 1), strict=True))
    assert drift > 1e-3


def test_variables_and_ops_are_where_the_mode_puts_them(cases: dict[str, Any]) -> None:
    size = 4 * sum(math.prod(shape) for shape in SHAPES.values())
    all_towers = {f"/CPU:{tower}" for tower in range(TOWERS)}
    places = {
        "ps_cpu-mean": {"/CPU:0"},
        "ps_last-mean": {f"/CPU:{TOWERS - 1}"},
        "replicated-mean": all_towers,
        "independent-mean": all_towers,
    }
    for name, devices in places.items():
        assert json.loads(str(cases[name]["variables_on"])) == dict.fromkeys(devices, size)
        ops = json.loads(str(cases[name]["ops_on"]))
        assert set(ops) == all_towers
        assert len(set(ops.values())) == 1, "every tower has the same ops"


def test_marks_are_in_order_and_within_the_step(cases: dict[str, Any]) -> None:
    for found in cases.values():
        assert (found["marks"] >= 0).all()
        assert (found["marks"][:, :, 2] > 0).all(), "computing takes time"


def test_a_server_that_is_no_tower_of_the_run_is_refused_before_training(tmp_path: Path) -> None:
    case = {"batch_size": 4, "num_batches": 1, "variable_update": "parameter_server", "ps_device": "/GPU:0"}
    found = run_cases(tmp_path, 2, {"nowhere": case})
    assert "/GPU:0" in found["nowhere"]
