"""An export that was killed does not block the next one; anything else does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputopo.launch.train import require_files
from gputopo.values.errors import UsageError
from gputopo.values.run.spec import Lifecycle
from tests.launch.specs import cpu_spec


def begin_export(folder: Path) -> None:
    require_files(cpu_spec(lifecycle=Lifecycle(export=str(folder))))


def left_by(pid: int, folder: Path) -> Path:
    left = folder / f".export-{pid}"
    (left / "saved_model").mkdir(parents=True)
    (left / "weights.npz").write_bytes(b"half of it")
    return left


def pid_of_a_process_that_is_gone() -> int:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as gone:
        return gone.pid


def test_what_a_killed_export_left_is_removed(tmp_path: Path) -> None:
    for pid in (pid_of_a_process_that_is_gone(), os.getpid()):
        left_by(pid, tmp_path)
        begin_export(tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_an_export_that_still_runs_is_left_alone(tmp_path: Path) -> None:
    left = left_by(os.getppid(), tmp_path)
    with pytest.raises(UsageError, match="is not empty"):
        begin_export(tmp_path)
    assert (left / "weights.npz").exists()


@pytest.mark.parametrize("name", [".export-0", ".export-notes", "kept.txt"])
def test_a_folder_that_holds_anything_else_is_refused_and_keeps_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match="is not empty") as refused:
        begin_export(tmp_path)
    assert "--export" in refused.value.hint
    assert (tmp_path / name).exists()
