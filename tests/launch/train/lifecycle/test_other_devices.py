"""A run goes on from a checkpoint on more devices or on fewer: the next step is the one computed by hand.

By hand, in float64: from the variables, the momenta and the moving statistics that are in the checkpoint,
with the rows of so many devices. What is stored after the resume has to be what was stored before.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.launch.train.normed_model import DECAY, SHAPES, loss_and_gradients
from tests.launch.train.test_exchange import slices
from tests.launch.train.trained import run_cases

pytestmark = pytest.mark.tensorflow

BATCH = 4  # of each device, however many there are
DEVICES = 3
RATE, MOMENTUM = 0.05, 0.9
STEPS = 3  # before the checkpoint
TOLERANCE = 1e-5  # float32 keeps 7 digits; a norm and sums over some hundred terms may lose two of them
OTHER_DEVICES = 2
STAGED = {"variable_update": "parameter_server", "exchange": {"ps_spread": True, "staged": True}}


def case(folder: Path, devices: int, steps: int, *, resume: bool) -> dict[str, Any]:
    return {
        "model": "norm",
        "devices": [{"tower": tower, "device": f"/CPU:{tower}"} for tower in range(devices)],
        "batch_size": BATCH,
        "num_batches": steps,
        "num_warmup_batches": 0,
        "learning_rate": RATE,
        "optimization": {"optimizer": "momentum", "momentum": MOMENTUM},
        "lifecycle": {"checkpoints": str(folder), "resume": resume},
        **STAGED,
    }


def stored(folder: Path, steps: int) -> dict[str, Any]:
    with np.load(folder / f"checkpoint-{steps:08d}.npz") as file:
        return {name: file[name] for name in file.files}


def test_the_next_step_on_other_devices_is_the_one_computed_by_hand(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    saved = case(kept, DEVICES, STEPS, resume=False)
    resumed = case(kept, OTHER_DEVICES, 1, resume=True)
    found = run_cases(tmp_path, DEVICES, {"saved": saved, "resumed": resumed})["resumed"]
    assert not isinstance(found, str), found
    before = stored(kept, STEPS)
    weights = [before[f"variables/0/{name}"].astype(np.float64) for name in SHAPES]
    steps = [
        loss_and_gradients(weights, images.astype(np.float64), labels)
        for images, labels in slices(found, OTHER_DEVICES)
    ]
    assert found["losses"] == pytest.approx([np.mean([loss for loss, _, _ in steps])], rel=TOLERANCE)
    for number, name in enumerate(SHAPES):
        momentum = before[f"slots/0/{name}/0"]
        assert np.abs(momentum).max() > 100 * TOLERANCE, "a momentum was restored"
        # The gradients of the step before are in no checkpoint, so that nothing is added to the momentum.
        np.testing.assert_allclose(
            found[f"last0_{number}"], weights[number] - RATE * MOMENTUM * momentum, rtol=0, atol=TOLERANCE
        )
    for number, (name, moving) in enumerate(zip(("mean", "variance"), steps[0][2], strict=True)):
        was = before[f"state/0/conv/{name}"]
        expected = DECAY * was + (1 - DECAY) * moving
        np.testing.assert_allclose(found[f"state0_{number}"], expected, rtol=TOLERANCE, atol=TOLERANCE)
    after = stored(kept, STEPS + 1)
    assert {name: array.shape for name, array in after.items() if "/" in name} == {
        name: array.shape for name, array in before.items() if "/" in name
    }
