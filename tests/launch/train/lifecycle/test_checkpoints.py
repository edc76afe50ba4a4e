"""A run that was interrupted and resumed is the run that was not, to the last bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gputopo.values.errors import ExitCode
from gputopo.values.run.events import CheckpointSaved, Noticed, Resumed, Step
from tests.launch.train.lifecycle.life import Fields, Ran, run_all

pytestmark = pytest.mark.tensorflow

STEPS = 9  # the warm-up included
PART = 4  # after which the checkpoint was saved that the rest begins with
TOWERS = 2
SERVER: Fields = {"variable_update": "parameter_server", "ps_device": "/CPU:0"}
REPLICATED: Fields = {"variable_update": "replicated", "all_reduce": "copy"}
SCHEDULE = {"schedule": {"kind": "cosine", "decay_steps": 8, "warmup_steps": 3}}
FP16 = {"compute": "fp16", "auto_loss_scale": True, "loss_scale": 2.0**18, "loss_scale_steps": 2}
# What each place holds is saved alike by any mode: once where each place trains alone, once with copies.
CASES: dict[str, Fields] = {
    "adam": {"variable_update": "independent", "optimization": {"optimizer": "adam", **SCHEDULE}},
    "fp16": {**REPLICATED, "precision": FP16, "optimization": {"optimizer": "momentum", **SCHEDULE}},
}


def whole_and_rest(folder: Path, name: str) -> list[Fields]:
    """The rest has its own number of steps, or, with Adam, the number of all steps and where it ends."""
    fields = {"batch_size": 4, "learning_rate": 0.05, **CASES[name]}
    all_steps = {"num_warmup_batches": 2, "num_batches": STEPS - 2}
    its_own = {"num_warmup_batches": 1, "num_batches": STEPS - PART - 1}
    whole = {"checkpoints": str(folder / name), "checkpoint_steps": PART}
    rest = {"checkpoints": str(folder / f"{name}-rest"), "resume": True}
    steps = (all_steps, {**rest, "until": STEPS}) if name == "adam" else (its_own, rest)
    begun = str(folder / name / f"checkpoint-{PART:08}.npz")
    return [
        {"name": f"{name}-whole", **fields, **all_steps, "lifecycle": whole},
        {"name": f"{name}-rest", **fields, **steps[0], "lifecycle": steps[1], "from_checkpoint": begun},
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def ran(folder: Path) -> dict[str, Ran]:
    runs = [one for name in CASES for one in whole_and_rest(folder, name)]
    return run_all(folder, TOWERS, runs + odd_runs(folder))


def losses(run: Ran) -> dict[int, float]:
    return {step.global_step: step.loss for step in run.reported(Step)}


def test_resumed_losses_equal_uninterrupted_ones_to_the_last_bit(ran: dict[str, Ran]) -> None:
    for name in CASES:
        whole = losses(ran[f"{name}-whole"])
        assert set(whole) == set(range(1, STEPS + 1))
        assert len(set(whole.values())) > STEPS / 2, "training changes the loss, or equal ones mean nothing"
        (resumed,) = ran[f"{name}-rest"].reported(Resumed)
        assert resumed.steps == PART
        assert losses(ran[f"{name}-rest"]) == {step: whole[step] for step in range(PART + 1, STEPS + 1)}, name


def test_resumed_weights_and_statistics_equal_uninterrupted_ones_to_the_last_bit(
    ran: dict[str, Ran],
) -> None:
    for name in CASES:
        whole, rest = ran[f"{name}-whole"].last, ran[f"{name}-rest"].last
        assert set(whole) == set(rest)
        assert len({key.split("/")[1] for key in whole if key.startswith("variables")}) == TOWERS
        assert any(key.startswith("state") for key in whole)
        for key, array in whole.items():
            np.testing.assert_array_equal(array, rest[key], err_msg=f"{name} {key}")


def other(name: str, folder: Path, **fields: Any) -> Fields:
    lifecycle = {"checkpoints": str(folder), "resume": True, **fields.pop("lifecycle", {})}
    base = {"batch_size": 4, "num_warmup_batches": 0, "num_batches": 2, **SERVER}
    optimization = fields.pop("optimization", {"optimizer": "momentum"})
    return {"name": name, **base, "lifecycle": lifecycle, "optimization": optimization, **fields}


def odd_runs(folder: Path) -> list[Fields]:
    """Return runs that go wrong or must report something, in three folders of checkpoints."""
    kept, relaxed, adam = (folder / name for name in ("kept", "relaxed", "by_adam"))
    by_adam: Fields = {"optimization": {"optimizer": "adam"}}
    every = {"lifecycle": {"checkpoint_steps": 2, "keep_checkpoints": 2, "resume": False}}
    carries: Fields = {"variable_update": "replicated", "exchange": {"relaxed": True}, "precision": FP16}
    return [
        other("many", kept, num_batches=9, **every),  # saved at 2, 4, 6, 8 and 9
        other("filters", kept, model={"filters": 6}),
        other("ended", kept, num_batches=9, lifecycle={"until": 9}),
        other("carried", relaxed, **REPLICATED, lifecycle={"resume": False}),
        other("full", relaxed, disk_bytes=3000, num_batches=4, lifecycle={"checkpoint_steps": 2}),
        other("carries", relaxed, **carries),
        other("anew", adam, **by_adam, lifecycle={"resume": False, "resume_or_start": True}),
        other("method", adam, **by_adam, method="kuza55", seed=99),
    ]


def test_every_so_many_steps_and_the_end_are_saved_and_the_oldest_go(
    ran: dict[str, Ran], folder: Path
) -> None:
    saved = ran["many"].reported(CheckpointSaved)
    assert [one.steps for one in saved] == [2, 4, 6, 8, 9]
    assert [len(one.removed) for one in saved] == [0, 0, 1, 1, 1]
    assert all(one.bytes > 0 for one in saved)
    names = sorted(path.name for path in (folder / "kept").iterdir())
    assert names == ["checkpoint-00000008.npz", "checkpoint-00000009.npz"]


def test_a_job_whose_checkpoint_has_all_its_steps_takes_none(ran: dict[str, Ran]) -> None:
    ended = ran["ended"]
    assert ended.error is None
    assert ended.reported(Step) == []
    assert any("all 9 steps" in notice.says for notice in ended.reported(Noticed))


def test_a_checkpoint_of_another_model_is_refused_by_name(ran: dict[str, Ran]) -> None:
    refused = ran["filters"]
    assert "variables/0/conv/kernel of shape [3, 3, 2, 6]" in (refused.error or "")
    assert refused.exit_code == ExitCode.USAGE
    assert refused.reported(Step) == []


def test_another_seed_and_an_empty_folder_are_reported_and_training_goes_on(ran: dict[str, Ran]) -> None:
    said = [notice.says for notice in ran["method"].reported(Noticed)]
    assert sum("--seed 1234, this run continues with 99" in says for says in said) == 1
    (anew,) = ran["anew"].reported(Noticed)
    assert "There is no checkpoint" in anew.says
    assert len(ran["anew"].reported(Step)) == 2


def test_a_full_disk_ends_the_run_with_its_steps_reported_and_the_last_checkpoint_intact(
    ran: dict[str, Ran], folder: Path
) -> None:
    full = ran["full"]
    assert full.exit_code == ExitCode.HARDWARE
    assert full.error is not None
    assert "checkpoint-00000004.npz" in full.error
    assert [step.global_step for step in full.reported(Step)] == [3, 4]
    (resumed,) = ran["carries"].reported(Resumed)
    assert resumed.steps == 2
    assert not list((folder / "relaxed").glob(".*"))


def test_a_keras_method_continues_the_checkpoint_of_another_mode(ran: dict[str, Ran], folder: Path) -> None:
    (resumed,) = ran["method"].reported(Resumed)
    assert resumed.steps == 2
    found = {}
    for steps in (2, 4):
        with np.load(folder / "by_adam" / f"checkpoint-0000000{steps}.npz") as file:
            found[steps] = {name: file[name] for name in file.files}
    assert found[2].keys() == found[4].keys()
    shapes = [{name: array.shape for name, array in one.items() if "/" in name} for one in found.values()]
    assert shapes[0] == shapes[1]


def test_what_the_checkpoint_lacks_starts_anew_and_is_reported(ran: dict[str, Ran]) -> None:
    """The gradients of the step before, and a loss scale."""
    said = [notice.says for notice in ran["carries"].reported(Noticed)]
    for words in ("the first step applies none", "no automatic loss scale"):
        assert sum(words in says for says in said) == 1
    assert ran["carries"].error is None
