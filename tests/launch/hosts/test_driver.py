"""Hosts that are started by a stand-in for ssh, whose agents start what pretends to be gputopo run."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gputopo.launch.hosts import DriverTimeouts, HostCommand, RankEnds, host_command, read_hosts
from gputopo.values.errors import HardwareError
from tests.kit.processes import still_running
from tests.launch.hosts import driven, pretends, stand_ins

Shown = pytest.CaptureFixture[str]
LIMITS = DriverTimeouts()
PYTHON = sys.executable


def command_on(host: str, *words: str) -> HostCommand:
    folder, environ = "/a folder", {"TF_TOKEN": "secret"}
    return host_command(1, host, words, python="/there/python", environ=environ, folder=folder)


def test_ssh_starts_a_command_on_another_host_and_this_one_needs_none() -> None:
    typed = ("-m", "gputopo", "run", "$HOME 'it''s'", "*")
    here, there = (command_on(host, *typed) for host in ("localhost", "n2"))
    agent = ("-P", "-m", "gputopo.launch.hosts.agent", "/a folder")
    assert here.command == (sys.executable, *agent, sys.executable, *typed)
    *options, end, host, command = there.command
    assert (options[0], "BatchMode=yes" in options, end, host) == ("ssh", True, "--", "n2")
    assert shlex.split(command) == ["/there/python", *agent, "/there/python", *typed]
    assert "secret" not in " ".join(there.command)


def test_the_run_is_over_with_its_last_host_and_has_the_exit_code_of_rank_0() -> None:
    endings = RankEnds()
    endings.ended(0, 1, 10.0)
    assert (endings.codes, endings.end_at) == ({0: 1}, 10.0 + LIMITS.others_s)
    endings.ended(1, 3, 11.0)
    assert (endings.codes, endings.exit_code) == ({0: 1, 1: 3}, 1)


def test_a_host_that_failed_ends_all_after_rank_0_could_say_why() -> None:
    endings = RankEnds()
    endings.ended(2, 0, 1.0)  # not needed
    assert endings.end_at is None
    endings.ended(1, 2, 5.0)
    assert endings.end_at == 5.0 + LIMITS.leader_s
    endings.ended(0, 143, 5.1 + LIMITS.leader_s)
    assert (endings.exit_code, endings.blamed) == (2, (1, 2)), "rank 0 did not end by itself"


def test_rank_0_that_ends_by_itself_has_the_last_word() -> None:
    endings = RankEnds()
    endings.ended(1, 2, 5.0)
    endings.ended(0, 3, 5.5)
    assert (endings.exit_code, endings.blamed) == (3, None)


def test_a_host_that_cannot_be_started_ends_all_at_once() -> None:
    endings = RankEnds()
    endings.end_within(0.0, 7.0)
    endings.ended(1, 3, 7.0)
    assert endings.end_at == 7.0


def test_ctrl_c_leaves_rank_0_its_time_and_more_of_them_do_not() -> None:
    endings = RankEnds()
    ends = []
    for at in (1.0, 2.0, 3.0):
        endings.signalled(signal.SIGINT, at)
        ends.append(endings.end_at)
    assert ends == [None, 2.0 + LIMITS.term_s, 3.0]
    endings.ended(0, 137, 4.0)
    assert endings.exit_code == 130


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Puts the stand-ins in place of ssh and Python; at the end nothing that they started runs."""
    bin = stand_ins.installed(tmp_path / "bin")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "executable", str(driven.installed(bin)))
    yield tmp_path
    left = [one for one in tmp_path.glob("rank-*") if psutil.pid_exists(int(one.read_text()))]
    assert not left


def test_the_driver_has_the_stdout_of_rank_0_and_labels_the_lines_of_others(capfd: Shown, home: Path) -> None:
    assert driven.drives("localhost,elsewhere", "fine,fine") == 0
    shown = capfd.readouterr()
    assert shown.out == f"stdout of rank 0 in {os.getcwd()}\n"
    assert sorted(shown.err.splitlines()) == [
        f"elsewhere: gputopo: /not/there: No such file or directory; started in {home / 'home'}",
        "elsewhere: gputopo: rank 1: fine",
        f"elsewhere: stdout of rank 1 in {home / 'home'}",
        "gputopo: rank 0: fine",
    ]


def shown_by(capfd: Shown, hosts: str, *words: str) -> dict[str, Any]:
    """Return words and variables of rank 0."""
    assert driven.drives(hosts, ",".join(["shows"] * 3), *words) == 0
    shown: dict[str, Any] = json.loads(capfd.readouterr().out)
    return shown


def test_hosts_meet_at_a_port_of_their_own_and_the_words_of_a_program_stay_behind_the_dashes(
    capfd: Shown,
) -> None:
    shown = shown_by(capfd, "localhost,n2", "--json", "--", "python", "--hosts")
    *words, hosts, rank, number, end, program, option = shown["words"]
    assert (words, rank, number) == (["--json", "--hosts"], "--node-rank", "0")
    assert (end, program, option) == ("--", "python", "--hosts")
    leader, *others = read_hosts("--hosts", hosts)
    assert [str(one) for one in others] == ["n2"]
    assert leader.port is not None
    assert 20_000 <= leader.port < 32_000
    assert "localhost:2300" in shown_by(capfd, "localhost:2300")["words"]


def test_variables_of_libraries_are_passed_on_and_no_others(
    capfd: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = ("GPUTOPO_X", "TF_CPP_MIN_LOG_LEVEL", "NCCL_DEBUG", "COLUMNS")
    others = ("TF_VAR_db_password", "TF_TOKEN_app", "GPUTOPO_SECRET", "TF_CONFIG", "AWS_SECRET_ACCESS_KEY")
    for name in (*passed, *others):
        monkeypatch.setenv(name, "of the driver")
    environ = shown_by(capfd, "n1")["environ"]
    assert {name for name, text in environ.items() if text == "of the driver"} == {*passed}
    assert len(environ["GPUTOPO_SECRET"]) == 64


@pytest.mark.parametrize(
    ("behaviours", "code", "says"),
    [
        ("train,fails", 2, "this host is no good"),
        ("killed,train", 137, "rank 0 trains"),
    ],
)
def test_the_first_host_that_fails_ends_all_and_its_exit_code_counts(
    behaviours: str, code: int, says: str, capfd: Shown
) -> None:
    assert driven.drives("localhost,n2", behaviours) == code
    shown = capfd.readouterr().err
    assert says in shown
    assert ("n2 (rank 1) failed first, with exit code" in shown) == behaviours.startswith("train")


@pytest.mark.parametrize(
    ("host", "what", "hint"),
    [
        ("refused", "ssh cannot connect to refused: .* port 22: Connection refused", "the host is up"),
        ("denied", "ssh cannot connect to denied: .* Permission denied", "ssh-copy-id denied"),
        ("unnamed", "cannot connect to unnamed: .*resolve", "~/.ssh/config"),
        ("bare", "cannot be started on bare: .*/nowhere/python: (not found|No such)", "--remote-python"),
        ("old", "cannot be started on old: .*No module named", "same version"),
        ("killed", "killed ended with exit code 137 before gputopo started", "by hand"),
    ],
)
def test_a_host_that_cannot_be_started_is_named_with_what_to_do_and_nobody_waits_for_it(
    host: str, what: str, hint: str
) -> None:
    with pytest.raises(HardwareError, match=what) as refused:
        driven.drives(f"localhost,{host}" if host == "refused" else host, "train,train")
    assert hint in refused.value.hint


class Driver:
    """A driver in a process of its own, with ranks that train."""

    def __init__(self, behaviours: str) -> None:
        self._process = subprocess.Popen(
            [PYTHON, "-m", "tests.launch.hosts.driven", sys.executable, "localhost,n2", behaviours],
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


def test_a_signal_to_the_driver_ends_rank_0_which_has_the_exit_code() -> None:
    driver = Driver("train,train")
    driver.signal(signal.SIGINT)
    code, rest = driver.ended()
    assert code == 128 + signal.SIGINT
    assert "stopped by SIGINT" in rest.splitlines()[0], "the process of rank 0"


def test_nothing_outlives_a_driver_that_is_killed() -> None:
    driver = Driver("train,train")
    driver.signal(signal.SIGKILL)
    assert driver.all
    assert still_running(driver.all, 5) == []
    assert driver.ended()[0] == -signal.SIGKILL


AGENT = """
import sys
from gputopo.launch.hosts.agent import main
sys.exit(main(sys.argv[1:], end_s=0.1))
"""


def test_a_host_that_does_not_end_when_it_is_asked_to_is_killed(home: Path) -> None:
    words = ("-IS", pretends.__file__, "train,deaf", "--node-rank", "1")
    with subprocess.Popen(
        [PYTHON, "-c", AGENT, str(home), PYTHON, *words],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("{}\n")
        process.stdin.flush()
        next(line for line in process.stderr if "trains" in line)
        process.stdin.close()  # as when its driver has ended
        assert process.stderr.read() == "\x1egputopo ended 137\n"
