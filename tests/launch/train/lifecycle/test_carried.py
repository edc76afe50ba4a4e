"""Buffers of a mode are restored for the same mode on as many devices, and for no other.

Plain SGD without a gradient stands still, so the weights of the first resumed step show what was applied.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from gputopo.launch.train.lifecycle import checkpoint_files as files
from gputopo.values.run.events import Noticed, Resumed
from tests.launch.train.lifecycle.life import Fields, Ran, run_all

pytestmark = pytest.mark.tensorflow

STAGED: Fields = {"variable_update": "parameter_server", "exchange": {"staged": True}}
RELAXED: Fields = {"variable_update": "replicated", "exchange": {"relaxed": True}}
BEGUN = {"staged": STAGED, "relaxed": RELAXED}
SAME = {"staged to staged": ("staged", STAGED, 3), "relaxed to relaxed": ("relaxed", RELAXED, 3)}
OTHER = {
    "staged to relaxed": ("staged", RELAXED, 3),
    "relaxed to staged": ("relaxed", STAGED, 3),
    "staged to staged on two devices": ("staged", STAGED, 2),
    "relaxed to relaxed on two devices": ("relaxed", RELAXED, 2),
}
PLAIN: Fields = {"variable_update": "parameter_server"}
LEFT_OUT = {"staged to plain": ("staged", PLAIN, 3)}
CASES = {**SAME, **OTHER, **LEFT_OUT}
BEFORE = 2  # steps of the first run, on three devices


def run_of(folder: Path, name: str, mode: Fields, devices: int, *, resume: bool) -> Fields:
    kept = {"checkpoints": str(folder / name), "checkpoint_steps": 1, "resume": resume}
    return {
        "name": name,
        "batch_size": 4,
        "num_warmup_batches": 0,
        "num_batches": BEFORE if not resume else 1,
        "optimization": {"optimizer": "sgd"},
        "devices": [{"tower": tower, "device": f"/CPU:{tower}"} for tower in range(devices)],
        "lifecycle": kept,
        **mode,
    }


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Ran]]:
    folder, first, second = (tmp_path_factory.mktemp(name) for name in ("kept", "first", "second"))
    run_all(first, 3, [run_of(first, name, mode, 3, resume=False) for name, mode in BEGUN.items()])
    for name, (begun, _, _) in CASES.items():
        shutil.copytree(first / begun, folder / name)
    again = [run_of(folder, name, mode, devices, resume=True) for name, (_, mode, devices) in CASES.items()]
    return folder, run_all(second, 3, again)


def starts_anew(run: Ran) -> bool:
    assert run.error is None
    assert [one.steps for one in run.reported(Resumed)] == [BEFORE]
    return any("buffers of this mode are not in the checkpoint" in one.says for one in run.reported(Noticed))


def weights_moved(folder: Path) -> bool:
    """Return whether the first step after the resume changed a variable."""
    paths = [files.path_of(folder, steps) for steps in (BEFORE, BEFORE + 1)]
    with np.load(paths[0]) as before, np.load(paths[1]) as after:
        names = [name for name in before.files if name.startswith("variables/")]
        assert names
        return any((before[name] != after[name]).any() for name in names)


@pytest.mark.parametrize("name", SAME)
def test_the_same_mode_on_as_many_devices_applies_what_it_carried(
    resumed: tuple[Path, dict[str, Ran]], name: str
) -> None:
    folder, runs = resumed
    assert not starts_anew(runs[name])
    assert weights_moved(folder / name)


@pytest.mark.parametrize("name", OTHER)
def test_what_another_mode_or_other_devices_carried_is_not_applied_and_it_is_reported(
    resumed: tuple[Path, dict[str, Ran]], name: str
) -> None:
    folder, runs = resumed
    assert starts_anew(runs[name])
    assert not weights_moved(folder / name)


def test_what_a_plain_mode_leaves_of_a_checkpoint_is_reported(resumed: tuple[Path, dict[str, Ran]]) -> None:
    _, runs = resumed
    for name in CASES:
        assert not starts_anew(runs[name]) or name not in LEFT_OUT
        left = any("Buffers of another mode" in one.says for one in runs[name].reported(Noticed))
        assert left == (name in LEFT_OUT)
