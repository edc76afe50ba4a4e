"""Claims of GPUs: locks between real processes, freed when a process ends in whatever manner."""

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from gputopo.launch import claim_free
from gputopo.launch.jobs import ClaimedError, claimed, claimed_by_others
from gputopo.values.errors import HardwareError
from tests.kit import commands
from tests.launch.claiming import other
from tests.launch.specs import machine


def take(folder: Path, *gpus: int) -> contextlib.AbstractContextManager[None]:
    return claimed([machine().gpus[index] for index in gpus], folder, "gputopo run")


def test_a_claimed_gpu_is_shown_to_others_and_refused_until_its_process_ends(tmp_path: Path) -> None:
    with other(tmp_path, 1, 2) as process:
        words = f"claimed by gputopo run (pid {process.pid})"
        assert claimed_by_others(machine(), tmp_path) == {1: words, 2: words}
        with pytest.raises(ClaimedError), take(tmp_path, 0, 1):
            pass
        with take(tmp_path, 0, 3):  # nothing is left of the attempt
            pass
    assert claimed_by_others(machine(), tmp_path) == {}, "the kernel frees the claims of a killed process"
    with take(tmp_path, 0, 1):
        pass


def test_what_this_process_or_one_that_started_it_has_claimed_is_for_it(tmp_path: Path) -> None:
    with take(tmp_path, 0, 1):
        assert claimed_by_others(machine(), tmp_path) == {}
        code = (
            "from pathlib import Path\n"
            "from gputopo.launch.jobs import claimed, claimed_by_others\n"
            "from tests.launch.specs import machine\n"
            f"folder = Path({str(tmp_path)!r})\n"
            "assert claimed_by_others(machine(), folder) == {}\n"
            "with claimed(machine().gpus[1:2], folder, 'gputopo run'): pass\n"
        )
        done = commands.run("-c", code)
        assert done.returncode == 0, done.stderr


def test_a_link_in_the_place_of_a_claim_is_not_followed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / "GPU-00-aa.lock").symlink_to(precious)
    os.link(precious, tmp_path / "GPU-11-aa.lock")
    for index in (0, 1):
        with take(tmp_path, index):
            pass
    assert precious.read_text() == "precious"
    assert capfd.readouterr().err.count("no GPU is claimed") == 2
    assert claimed_by_others(machine(), tmp_path) == {}


def test_without_a_folder_that_can_be_written_there_are_no_claims_and_that_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with take(tmp_path / "file/claims", 0):
        pass
    said = f"gputopo: no GPU is claimed: cannot write {tmp_path}/file/claims: File exists\n"
    assert capfd.readouterr().err == said


def test_all_users_share_the_folder_and_its_files(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    before = os.umask(0o077)
    try:
        with take(tmp_path / "gputopo", 0):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "gputopo").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "gputopo/GPU-00-aa.lock").stat().st_mode) == 0o666


def test_a_measurement_takes_the_free_gpus_or_the_named_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path))

    def free(*named: int) -> Mapping[int, str]:
        with contextlib.ExitStack() as held:
            return claim_free(machine(), named or None, held)

    with other(tmp_path / "claims", 1) as process:
        assert free() == {1: f"claimed by gputopo run (pid {process.pid})"}
        assert free(0, 2) == {}
        with pytest.raises(
            HardwareError, match=rf"GPU 1 is claimed by gputopo run \(pid {process.pid}\)"
        ) as error:
            free(0, 1)
        assert error.value.hint == "wait until it has ended, or use 0, 2, 3"
    with other(tmp_path / "claims", 0, 1, 2, 3), pytest.raises(HardwareError, match="no GPU is free"):
        free()
