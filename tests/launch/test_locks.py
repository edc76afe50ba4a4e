from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.launch.locks import locked_outputs
from gputopo.launch.train.lifecycle.folders import FolderError
from gputopo.values.errors import ExitCode, InputError
from gputopo.values.run.events import RankFailed
from gputopo.values.run.spec import Lifecycle
from tests.launch.train.worker_process import run_worker, trivial_spec


def checkpoints_in(folder: Path) -> Lifecycle:
    return Lifecycle(checkpoints=str(folder))


def export_in(folder: Path) -> Lifecycle:
    return Lifecycle(export=str(folder))


@pytest.mark.parametrize(
    ("lifecycle_of", "option"), [(checkpoints_in, "--checkpoints"), (export_in, "--export")]
)
def test_a_folder_is_locked_by_one_run_and_free_afterwards(
    tmp_path: Path, lifecycle_of: Callable[[Path], Lifecycle], option: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    with locked_outputs(lifecycle_of(tmp_path / "kept")):
        for name in ("kept", "link"):
            with (
                pytest.raises(InputError, match="another run is writing to") as refused,
                locked_outputs(lifecycle_of(tmp_path / name)),
            ):
                pass
            assert option in refused.value.hint
    with locked_outputs(lifecycle_of(tmp_path / "kept")):
        assert list((tmp_path / "kept").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(FolderError, match="cannot write the exported model") as refused,
        locked_outputs(Lifecycle(export=str(tmp_path / "file"))),
    ):
        pass
    assert refused.value.exit_code == ExitCode.USAGE


@pytest.mark.tensorflow
def test_a_training_is_refused_the_folder_of_a_running_one(tmp_path: Path) -> None:
    kept = Lifecycle(checkpoints=str(tmp_path / "kept"), resume=True)
    with locked_outputs(kept):
        code, events, stderr = run_worker(tmp_path, trivial_spec(2, lifecycle=kept))
    assert code == ExitCode.USAGE, stderr[-2000:]
    failed = events[-1]
    assert isinstance(failed, RankFailed)
    assert failed.cause == f"another run is writing to {tmp_path / 'kept'}"
    assert list((tmp_path / "kept").iterdir()) == []
