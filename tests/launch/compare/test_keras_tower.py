import json
from typing import Any

import numpy as np
import pytest

from tests.launch.forks import run_program

pytestmark = pytest.mark.tensorflow

TOLERANCE = 1e-5  # float32: sums over 14 rows in another order, four steps


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("parallel")
    done = run_program("-m", "tests.launch.compare.parallel_process", str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    read: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return read


@pytest.mark.parametrize("case", ["kuza55", "fchollet", "one tower"])
def test_14_rows_on_three_towers_and_on_one_train_like_the_serial_model_with_its_regularisers(
    found: dict[str, Any], case: str
) -> None:
    serial, parallel = found["serial"], found[case]
    assert serial["losses"][0] > serial["of labels"][0] + 0.1, "regularisers of weights and activations"
    assert serial["losses"][-1] < serial["losses"][0] - 0.1
    assert parallel["losses"] == pytest.approx(serial["losses"], rel=TOLERANCE)
    for got, expected in zip(parallel["weights"], serial["weights"], strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


def test_towers_share_one_set_of_weights(found: dict[str, Any]) -> None:
    assert found["kuza55"]["count"] == found["serial"]["count"]


def test_moving_statistics_are_those_of_tower_0(found: dict[str, Any]) -> None:
    reported = found["statistics"]
    assert reported["found"] == pytest.approx(reported["wanted"], rel=1e-5)
    assert max(map(abs, reported["found"])) > 1e-3


def test_dropout_differs_between_towers_and_between_steps(found: dict[str, Any]) -> None:
    (first, second), (third, fourth) = found["dropped"]
    masks = [first, second, third, fourth]
    assert all(10 < len(mask) < 54 for mask in masks)
    assert len({tuple(mask) for mask in masks}) == 4


def test_the_serial_models_weights_load_from_and_into_a_parallel_one(found: dict[str, Any]) -> None:
    reported = found["saved"]
    assert reported["before"] > 0.1
    assert reported["changed"] > 0.1
    for way in ("into serial", "whole", "from serial", "as a list"):
        assert reported[way] == pytest.approx(0.0, abs=TOLERANCE), way
