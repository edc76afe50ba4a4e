"""A driver with stand-ins for ssh, srun and mpirun, whose agents start what pretends to be gputopo run."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gputopo.launch.drive import course
from gputopo.launch.hosts.options import Starter
from gputopo.values.errors import HardwareError
from tests.launch.drive.driven import drives
from tests.launch.drive.stand_ins import installed

STARTERS = ("ssh", "srun", "mpirun")
Shown = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Puts the stand-ins on PATH; at the end nothing that they started runs."""
    bin = installed(tmp_path / "bin")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(course, "LEADER_S", 0.2)
    monkeypatch.setattr(course, "SETTLE_S", 0.2)
    yield tmp_path
    left = [one for one in tmp_path.glob("rank-*") if psutil.pid_exists(int(one.read_text()))]
    assert not left


@pytest.mark.parametrize("starter", STARTERS)
def test_the_driver_has_the_stdout_of_rank_0_and_labels_the_lines_of_others(
    starter: Starter, capfd: Shown
) -> None:
    assert drives(starter, "n1,n2", "fine,fine") == 0
    shown = capfd.readouterr()
    assert shown.out == f"stdout of rank 0 in {os.getcwd()}\n"
    name = "n2" if starter == "ssh" else os.uname().nodename
    assert sorted(shown.err.splitlines()) == [
        "gputopo: rank 0: fine",
        f"{name}: gputopo: rank 1: fine",
        f"{name}: stdout of rank 1 in {os.getcwd()}",
    ]


@pytest.mark.parametrize("starter", STARTERS)
@pytest.mark.parametrize(
    ("behaviours", "code", "says"),
    [
        ("train,fails", 2, "this host is no good"),
        ("fails,train", 2, "this host is no good"),
        ("train,killed", 137, "rank 1 trains"),
        ("killed,train", 137, "rank 0 trains"),
    ],
)
def test_the_first_host_that_fails_ends_all_and_its_exit_code_counts(
    starter: Starter, behaviours: str, code: int, says: str, capfd: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "OTHERS_S", 0.2)
    assert drives(starter, "n1,n2", behaviours) == code
    shown = capfd.readouterr().err
    assert says in shown
    assert ("(rank 1) failed first" in shown or "rank 1 failed first" in shown) == behaviours.startswith("tr")


@pytest.mark.parametrize(
    ("host", "what"),
    [
        ("refused", "ssh cannot connect to refused: ssh: connect to host refused port 22"),
        ("denied", "Permission denied"),
        ("unknown", "Host key verification failed"),
        ("bare", "gputopo cannot be started on bare: env: .*/nowhere/python.*No such file"),
    ],
)
def test_a_host_that_ssh_cannot_start_is_named_and_nobody_waits_for_it(host: str, what: str) -> None:
    with pytest.raises(HardwareError, match=what):
        drives("ssh", f"localhost,{host}", "train,train")


def test_a_starter_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin" / "ssh").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(HardwareError, match="cannot start ssh: No such file"):
        drives("ssh", "n1,n2", "fine,fine")


def test_a_folder_that_a_host_has_not_is_replaced_by_its_home_with_a_word(capfd: Shown, home: Path) -> None:
    assert drives("ssh", "n1,n2", "fine,fine", folder="/not/there") == 0
    shown = capfd.readouterr()
    assert f"stdout of rank 0 in {home / 'home'}" in shown.out
    assert f"n2: gputopo: /not/there: No such file or directory; started in {home / 'home'}" in shown.err


class Driver:
    """A driver in a process of its own, with ranks that train."""

    def __init__(self, starter: str, behaviours: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.launch.drive.driven", starter, "localhost,n2", behaviours],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stderr is not None
        self.err = self._process.stderr
        trains = (line for line in self.err if "trains" in line)
        self.seen = [next(trains), next(trains)]
        self.all = psutil.Process(self._process.pid).children(recursive=True)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """Return exit code and the rest of stderr, which ends when all processes have."""
        rest = self.err.read()
        self.err.close()
        return self._process.wait(30), rest


@pytest.mark.parametrize("starter", STARTERS)
@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_to_the_driver_ends_rank_0_which_has_the_exit_code(
    starter: str, number: int, name: str
) -> None:
    driver = Driver(starter, "train,train")
    driver.signal(number)
    code, rest = driver.ended()
    assert code == 128 + number
    assert f"stopped by {name}" in rest.splitlines()[0], "the process of rank 0"


@pytest.mark.parametrize("starter", STARTERS)
def test_nothing_outlives_a_driver_that_is_killed(starter: str) -> None:
    driver = Driver(starter, "train,train")
    driver.signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs(driver.all, timeout=5)
    assert (bool(gone), alive) == (True, [])
    assert driver.ended()[0] == -signal.SIGKILL


def test_a_host_that_does_not_end_when_it_is_asked_to_is_killed() -> None:
    driver = Driver("ssh", "train,deaf")
    driver.signal(signal.SIGKILL)
    assert not psutil.wait_procs(driver.all, timeout=20)[1]
    driver.ended()


@pytest.mark.parametrize(("may_lose", "code"), [(True, 0), (False, 3)])
def test_a_host_that_may_be_lost_does_not_end_the_others(may_lose: bool, code: int) -> None:
    assert drives("ssh", "localhost,n2", "lasts,breaks", may_lose=may_lose) == code
