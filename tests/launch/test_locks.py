import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.launch.locks import is_left_over, locked_outputs, locked_spec
from gputopo.launch.train.lifecycle.folders import FolderError
from gputopo.values.errors import ExitCode, InputError
from gputopo.values.run.events import RankFailed
from gputopo.values.run.spec import Lifecycle
from tests.launch.train.worker_process import run_worker, trivial_spec

ROOT = Path(__file__).parents[3]
KILLED_WITH_A_LOCK = """
import os, signal, sys
from pathlib import Path
from gputopo.launch.locks import locked_spec
with locked_spec(Path(sys.argv[1])) as is_ours:
    assert is_ours
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return tmp_path / "spec.json"


def leave_over(spec: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED_WITH_A_LOCK, str(spec)], cwd=ROOT, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert is_left_over(spec)


def test_a_folder_is_locked_by_one_run_at_a_time(spec: Path) -> None:
    with locked_spec(spec) as first, locked_spec(spec) as second, locked_spec(spec) as third:
        assert (first, second, third) == (True, False, False)
    with locked_spec(spec) as after:
        assert after


def test_a_run_that_was_killed_with_its_lock_leaves_the_folder_to_one_other(spec: Path) -> None:
    leave_over(spec)
    with locked_spec(spec) as first, locked_spec(spec) as second:
        assert (first, second) == (True, False)


def test_a_complete_spec_locks_its_folder_for_ever(spec: Path) -> None:
    spec.write_text("{}")
    with locked_spec(spec) as is_ours:
        assert not is_ours
    assert not is_left_over(spec)
    assert spec.read_text() == "{}"


@pytest.mark.parametrize("whole", [True, False])
def test_a_run_that_comes_after_the_opening_and_before_the_lock_keeps_its_folder(
    spec: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    lock = fcntl.flock

    def overtaken(handle: int, how: int) -> None:
        spec.unlink()  # what a run does that came to nothing, or that replaces it
        if whole:
            spec.write_text("{}")
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", overtaken)
    with locked_spec(spec) as is_ours:
        assert not is_ours
    assert spec.exists() == whole


def test_where_a_disk_has_no_locks_only_a_new_file_is_a_lock(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unknown)
    with locked_spec(spec) as first, locked_spec(spec) as second:
        assert (first, second) == (True, False)


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
