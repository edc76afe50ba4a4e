import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gputopo.launch.supervise.locks import claimed, is_left_over

ROOT = Path(__file__).parents[3]
KILLED_WITH_A_CLAIM = """
import os, signal, sys
from pathlib import Path
from gputopo.launch.supervise.locks import claimed
with claimed(Path(sys.argv[1])) as is_ours:
    assert is_ours
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return tmp_path / "spec.json"


def leave_over(spec: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED_WITH_A_CLAIM, str(spec)], cwd=ROOT, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert is_left_over(spec)


def test_a_folder_is_claimed_by_one_run_at_a_time(spec: Path) -> None:
    with claimed(spec) as first, claimed(spec) as second, claimed(spec) as third:
        assert (first, second, third) == (True, False, False)
    with claimed(spec) as after:
        assert after


def test_a_run_that_was_killed_with_its_claim_leaves_the_folder_to_one_other(spec: Path) -> None:
    leave_over(spec)
    with claimed(spec) as first, claimed(spec) as second:
        assert (first, second) == (True, False)


def test_a_spec_that_is_whole_is_a_claim_for_ever(spec: Path) -> None:
    spec.write_text("{}")
    with claimed(spec) as is_ours:
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
    with claimed(spec) as is_ours:
        assert not is_ours
    assert spec.exists() == whole


def test_where_a_disk_knows_no_locks_only_a_new_file_is_a_claim(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unknown)
    with claimed(spec) as first, claimed(spec) as second:
        assert (first, second) == (True, False)


def test_a_place_that_takes_no_file_is_told_by_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), claimed(tmp_path / "gone" / "spec.json"):
        pass
