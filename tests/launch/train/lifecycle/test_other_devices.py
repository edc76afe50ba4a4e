"""A run goes on from a checkpoint on more devices or on fewer: the next step is the one computed by hand.

By hand, in float64: from the variables, the momenta and the moving statistics that are in the checkpoint,
with the rows of so many devices. What is stored after the resume has to be what was stored before.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.launch.train.normed_model import DECAY, SHAPES, loss_and_gradients
from tests.launch.train.test_exchange import slices
from tests.launch.train.trained import run_cases

pytestmark = pytest.mark.tensorflow

BATCH = 4  # of each device, however many there are
DEVICES = 2
RATE, MOMENTUM = 0.05, 0.9
STEPS = 3  # before the checkpoint
TOLERANCE = 1e-5  # float32 keeps 7 digits; a norm and sums over some hundred terms may lose two of them
MODES: dict[str, dict[str, Any]] = {
    "staged in parts": {
        "variable_update": "parameter_server",
        "exchange": {"ps_spread": True, "staged": True},
        "in_parts": True,
    },
    "automatic scale": {
        "variable_update": "replicated",
        "all_reduce": "ring",
        "precision": {"auto_loss_scale": True, "loss_scale": 64.0},
    },
}


OTHERS = {"staged in parts": 3, "automatic scale": 1}


def case(folder: Path, devices: int, steps: int, fields: dict[str, Any], *, resume: bool) -> dict[str, Any]:
    return {
        "model": "norm",
        "devices": [{"tower": tower, "device": f"/CPU:{tower}"} for tower in range(devices)],
        "batch_size": BATCH,
        "num_batches": steps,
        "num_warmup_batches": 0,
        "learning_rate": RATE,
        "optimization": {"optimizer": "momentum", "momentum": MOMENTUM},
        "lifecycle": {"checkpoints": str(folder), "resume": resume},
        **fields,
    }


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One step from the checkpoint of each mode, on other numbers of devices."""
    saved, first, root = (tmp_path_factory.mktemp(name) for name in ("saved", "first", "resumed"))
    run_cases(
        first,
        DEVICES,
        {name: case(saved / name, DEVICES, STEPS, fields, resume=False) for name, fields in MODES.items()},
    )
    cases = {}
    for name, fields in MODES.items():
        shutil.copytree(saved / name, root / name)
        cases[name] = case(root / name, OTHERS[name], 1, fields, resume=True)
    (root / "found").mkdir()
    return root, run_cases(root / "found", max(OTHERS.values()), cases)


def stored(folder: Path, steps: int) -> dict[str, Any]:
    with np.load(folder / f"checkpoint-{steps:08d}.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize(("mode", "devices"), OTHERS.items())
def test_the_next_step_on_other_devices_is_the_one_computed_by_hand(
    ran: tuple[Path, dict[str, Any]], mode: str, devices: int
) -> None:
    root, every = ran
    found = every[mode]
    assert not isinstance(found, str), found
    before = stored(root / mode, STEPS)
    weights = [before[f"variables/0/{name}"].astype(np.float64) for name in SHAPES]
    steps = [
        loss_and_gradients(weights, images.astype(np.float64), labels)
        for images, labels in slices(found, devices)
    ]
    assert found["losses"] == pytest.approx([np.mean([loss for loss, _, _ in steps])], rel=TOLERANCE)
    for number, name in enumerate(SHAPES):
        total = sum(gradients[number] for _, gradients, _ in steps) / devices
        if mode.startswith("staged"):  # the gradients of the step before are in no checkpoint
            total = np.zeros_like(total)
        moved = MOMENTUM * before[f"slots/0/{name}/0"] + total
        for place in range(devices if MODES[mode]["variable_update"] == "replicated" else 1):
            np.testing.assert_allclose(
                found[f"last{place}_{number}"], weights[number] - RATE * moved, rtol=0, atol=TOLERANCE
            )
        assert np.abs(before[f"slots/0/{name}/0"]).max() > 100 * TOLERANCE, "a momentum was restored"
    for number, (name, moving) in enumerate(zip(("mean", "variance"), steps[0][2], strict=True)):
        was = before[f"state/0/conv/{name}"]
        expected = DECAY * was + (1 - DECAY) * moving
        np.testing.assert_allclose(found[f"state{number}"], expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_checkpoints_of_any_number_of_devices_hold_the_same_arrays(ran: tuple[Path, dict[str, Any]]) -> None:
    for mode in MODES:
        shapes = [
            {name: array.shape for name, array in stored(ran[0] / mode, steps).items() if "/" in name}
            for steps in (STEPS, STEPS + 1)
        ]
        assert all(one == shapes[0] for one in shapes), mode
