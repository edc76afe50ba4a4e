"""What stands between a machine with GPUs and a training on them: the TensorFlow that is installed."""

from pathlib import Path

import pytest

from gputopo.values import schema
from gputopo.values.run.result import Result
from tests.cli.conftest import ByName, Call

# Every command that trains.
TRAINING = (
    ("run", "--model", "alexnet", "--prefer-pix"),
    ("screen", "--model", "alexnet", "--quick"),
    ("sweep", "--model", "alexnet", "--batch-size", "2,4"),
    ("plan", "--model", "alexnet", "--autotune"),
    ("bench-reduction", "--model", "alexnet"),
)


@pytest.fixture
def without_cuda(on_scenario: ByName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this machine one with four GPUs and TensorFlow as `pip install tensorflow` brings it."""
    on_scenario("four")
    monkeypatch.setenv("LD_LIBRARY_PATH", "")


@pytest.mark.parametrize("words", TRAINING, ids=lambda words: " ".join(words[:3]))
def test_without_cuda_libraries_nothing_starts_and_the_command_that_helps_is_shown(
    call: Call, without_cuda: None, worker: ByName, own_home: Path, words: tuple[str, ...]
) -> None:
    worker("works")
    done = call(*words)
    assert done.code == 3, done.err
    assert done.out == ""
    what, remedy = done.err.splitlines()
    assert what.endswith(
        "libcudart.so.12 (package nvidia-cuda-runtime-cu12) and 6 more libraries are missing"
    )
    assert "-m pip install 'tensorflow[and-cuda]==" in remedy
    assert not list(own_home.glob("runs/*"))


def test_with_cuda_libraries_it_starts_on_the_planned_gpus(
    call: Call, on_scenario: ByName, worker: ByName
) -> None:
    on_scenario("four")
    worker("works")
    done = call("run", "--model", "alexnet", "--prefer-pix", "--json")
    assert done.code == 0, done.err
    result = schema.decode(done.out, Result, origin="stdout")
    assert result.backend == "gpu"
    assert [row.device.gpu for row in result.devices] == [0, 1, 2, 3]


def test_what_does_not_train_on_the_gpus_is_not_checked(
    call: Call, without_cuda: None, worker: ByName
) -> None:
    worker("works")
    assert call("run", "--model", "alexnet", "--cpu").code == 0
    assert call("run", "--model", "alexnet", "--dry-run").code == 0
    assert call("run", "--", "true").code == 0
    assert call("plan", "--model", "alexnet").code == 0
