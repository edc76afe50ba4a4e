"""`gputopo run` with the real core: saved files, other tasks and trainers."""

from pathlib import Path

import pytest

from gputopo.values.run.result import Result
from tests.cli import trained as real

pytestmark = pytest.mark.tensorflow

BASE = ("--model", "trivial", "--data-name", "cifar10", "--batch-size", "2", "--num-batches", "4")


def result_of(folder: Path, *options: str) -> Result:
    return real.result_of(folder, *BASE, *options)


KEPT = ("--checkpoints", "kept", "--optimizer", "momentum")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A run that leaves what there is to leave, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, result_of(folder, *KEPT, "--export", "out")


def test_a_run_goes_on_from_its_checkpoint_and_can_be_judged(trained: tuple[Path, Result]) -> None:
    folder, first = trained
    assert [saved.steps for saved in first.checkpoints] == [7]  # three of warm-up, four
    assert first.exports[0].path == str(folder / "out")
    assert {"keras", "tensorflow", "python", "onednn"} <= set(first.versions)
    second = result_of(folder, *KEPT, "--resume")
    assert second.resumed is not None
    assert second.resumed.steps == 7
    judged = result_of(folder, "--checkpoints", "kept", "--eval")
    assert judged.evaluations[0].steps == second.checkpoints[-1].steps


def test_far_options_reach_the_core_and_the_result(tmp_path: Path) -> None:
    # Each copy's own norm differed in the last bits after some steps of as many numbers as these.
    options = (
        *(
            "--variable_update=replicated",
            "--all_reduce_spec=xring#2",
            "--gradient_repacking=2",
            "--use_fp16",
        ),
        *("--num-gpus", "3", "--gradient-clip-norm", "0.1", "--trace", "2", "--num-batches", "30"),
    )
    result = result_of(tmp_path, *options, "--num-warmup-batches", "1")
    assert result.replica_difference == 0.0
    assert (result.ran["all_reduce"], result.ran["precision"]) == ("ring#2", "fp16")
    assert result.traces[0].steps == (2,)


def test_a_rehearsal_runs_the_plan_of_another_machine_and_reports_it(tmp_path: Path) -> None:
    planned = ("--from", "7gforce", "--num-gpus", "3", "--prefer-pix", "--ps", "gpu:2")
    result = result_of(tmp_path, *planned)
    assert result.rehearsal_of == "7gforce"
    assert any("Rehearsal of 7gforce" in said for said in result.says)
    assert [row.device.gpu for row in result.devices] == [0, 1, 2]
    assert [row.device.hop_to_variables for row in result.devices] == ["PIX", "PIX", "local"]
    assert set(result.variables_on) == {"/CPU:2"}


def test_the_input_alone_is_judged_by_the_training_before_it(trained: tuple[Path, Result]) -> None:
    folder, first = trained
    assert first.input_verdict is None
    alone = result_of(folder, "--input-only", "--data-source", "python", "--feed", "queue")
    assert alone.input_verdict is not None
    assert str(alone.input_verdict.other).startswith(str(folder / "home"))
    assert alone.parameters == 0
