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
    return folder, result_of(folder, *KEPT)


def test_a_run_goes_on_from_its_checkpoint(trained: tuple[Path, Result]) -> None:
    folder, first = trained
    assert [saved.steps for saved in first.checkpoints] == [7]  # three of warm-up, four
    assert {"keras", "tensorflow", "python", "onednn"} <= set(first.versions)
    second = result_of(folder, *KEPT, "--resume")
    assert second.resumed is not None
    assert second.resumed.steps == 7


def test_far_options_reach_the_core_and_the_result(tmp_path: Path) -> None:
    # Each copy's own norm differed in the last bits after some steps of as many numbers as these.
    options = (
        *(
            "--variable_update=replicated",
            "--all_reduce_spec=xring#2",
            "--gradient_repacking=2",
            "--use_fp16",
        ),
        *("--num-gpus", "3", "--gradient-clip-norm", "0.1", "--num-batches", "12"),
    )
    result = result_of(tmp_path, *options, "--num-warmup-batches", "1")
    assert result.replica_difference == 0.0
    assert (result.ran["all_reduce"], result.ran["precision"]) == ("ring#2", "fp16")
    assert result.asked["all_reduce"] == "xring#2"


def test_the_input_alone_is_judged_by_the_training_before_it(trained: tuple[Path, Result]) -> None:
    folder, first = trained
    assert first.input_verdict is None
    alone = result_of(folder, "--input-only", "--data-source", "python", "--feed", "queue")
    assert alone.input_verdict is not None
    assert str(alone.input_verdict.other).startswith(str(folder / "home"))
    assert alone.parameters == 0
