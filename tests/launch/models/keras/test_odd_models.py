"""What a run does not take of a user's model is reported before training, with its cause."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.launch.train.trained import trained

pytestmark = pytest.mark.tensorflow

MODULE = "tests.launch.models.keras.odd_models"
BAD = {
    "odd_layer": ("'my dense:0' is not a valid root scope name", "rename that layer"),
    "odd_inner_model": ("'a b-ü' is not a valid root scope name", "rename that layer or model"),
    "needs_batch, to be exported": (
        "needs_batch' does not take a batch of any size, as --export needs it to: ValueError: ",
        "keras.ops.shape(x)[0] in place of x.shape[0]",
    ),
    # The last one: it is switched off for whatever follows in the process.
    "as_in_tensorflow_1": ("switches off TensorFlow's eager execution", "disable_eager_execution()"),
}
GOOD = ["needs_batch", "plain, to be exported"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("odd")
    return trained(folder, 1, {name: case(name, folder) for name in (*GOOD, *BAD)})


def case(name: str, folder: Path) -> dict[str, Any]:
    function, _, exported = name.partition(", ")
    lifecycle = {"lifecycle": {"export": str(folder / "export")}} if exported else {}
    return {"model": f"{MODULE}:{function}", "ps_device": "/CPU:0", **lifecycle}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_reported_with_its_cause_and_what_to_do(found: dict[str, Any], name: str) -> None:
    what, hint = BAD[name]
    assert what in found[name]["error"]
    assert hint in found[name]["hint"]
    assert found[name]["exit"] == 2


@pytest.mark.parametrize("name", GOOD)
def test_only_an_export_asks_for_batches_of_any_size(found: dict[str, Any], name: str) -> None:
    assert "error" not in found[name], found[name]
    assert np.isfinite(found[name]["losses"]).all()
