import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.launch.spec.run_spec import Lifecycle
from gputopo.launch.supervise.folder_claims import claimed_folders
from gputopo.launch.train.lifecycle.checkpoint_files import FolderError
from gputopo.values.errors import ExitCode, InputError
from gputopo.values.events import RankFailed
from tests.launch.train.worker_process import run_worker, trivial_spec


def checkpoints_in(folder: Path) -> Lifecycle:
    return Lifecycle(checkpoints=str(folder))


def export_in(folder: Path) -> Lifecycle:
    return Lifecycle(export=str(folder))


@pytest.mark.parametrize(("kept_in", "option"), [(checkpoints_in, "--checkpoints"), (export_in, "--export")])
def test_a_folder_is_one_runs_own_while_it_goes_on_and_free_afterwards(
    tmp_path: Path, kept_in: Callable[[Path], Lifecycle], option: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    with claimed_folders(kept_in(tmp_path / "kept")):
        for name in ("kept", "link"):
            with (
                pytest.raises(InputError, match="another run, which goes on, writes in") as refused,
                claimed_folders(kept_in(tmp_path / name)),
            ):
                pass
            assert option in refused.value.hint
    with claimed_folders(kept_in(tmp_path / "kept")):
        assert list((tmp_path / "kept").iterdir()) == []


def test_the_second_folder_of_a_refused_run_is_free_again(tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with (
        claimed_folders(Lifecycle(export=second)),
        pytest.raises(InputError),
        claimed_folders(Lifecycle(checkpoints=first, export=second)),
    ):
        pass
    with claimed_folders(Lifecycle(checkpoints=first, export=second)):
        pass


def test_one_folder_may_have_the_checkpoints_and_the_export_of_a_run(tmp_path: Path) -> None:
    with claimed_folders(Lifecycle(checkpoints=str(tmp_path / "a"), export=f"{tmp_path}/b/../a")):
        pass


def test_a_disk_without_locks_of_folders_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with claimed_folders(Lifecycle(checkpoints=str(tmp_path))):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(FolderError, match="cannot write the exported model") as refused,
        claimed_folders(Lifecycle(export=str(tmp_path / "file"))),
    ):
        pass
    assert refused.value.exit_code == ExitCode.USAGE


@pytest.mark.tensorflow
def test_a_training_is_refused_the_folder_of_one_that_goes_on(tmp_path: Path) -> None:
    kept = Lifecycle(checkpoints=str(tmp_path / "kept"), resume=True)
    with claimed_folders(kept):
        code, events, stderr = run_worker(tmp_path, trivial_spec(2, lifecycle=kept))
    assert code == ExitCode.USAGE, stderr[-2000:]
    failed = events[-1]
    assert isinstance(failed, RankFailed)
    assert failed.cause == f"another run, which goes on, writes in {tmp_path / 'kept'}"
    assert list((tmp_path / "kept").iterdir()) == []
