"""Hosts that are started by a stand-in for ssh, whose agents start what pretends to be gputopo run."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.hosts import agent, driver
from gputopo.launch.hosts.driver import (
    LEADER_S,
    OTHERS_S,
    TERM_S,
    Agents,
    RankEnds,
    commands,
)
from gputopo.launch.hosts.host_process import HostCommand, not_started, passed_on
from gputopo.launch.hosts.hostlists import read_hosts
from gputopo.values.errors import HardwareError
from tests.launch.hosts import pretends
from tests.launch.hosts.driven import drives
from tests.launch.hosts.stand_ins import installed

Shown = pytest.CaptureFixture[str]


def agents(*words: str, **environ: str) -> Agents:
    return Agents(
        words=("-m", "gputopo", "run", *words),
        remote_python="/there/python",
        folder="/a folder",
        environment=environ,
    )


def started(hosts: str, to_run: Agents) -> tuple[HostCommand, ...]:
    return commands(read_hosts("--hosts", hosts), to_run)


def test_ssh_starts_each_rank_and_this_host_needs_none() -> None:
    here, there = started("localhost:2300,n2", agents("--json"))
    assert here.command == (
        *(sys.executable, "-P", "-m", "gputopo.launch.hosts.agent", "/a folder", sys.executable),
        *("-m", "gputopo", "run", "--json", "--hosts", "localhost:2300,n2", "--node-rank", "0"),
    )
    *options, end, host, command = there.command
    assert (options[0], "BatchMode=yes" in options, end, host) == ("ssh", True, "--", "n2")
    words = shlex.split(command)
    assert words[:2] == ["/there/python", "-P"]
    assert words[-2:] == ["--node-rank", "1"]
    assert (there.rank, there.host) == (1, "n2")


def test_the_words_of_a_program_stay_behind_the_dashes() -> None:
    (start,) = started("localhost:2300", agents("--", "python", "--hosts"))
    assert start.command[-7:] == ("--hosts", "localhost:2300", "--node-rank", "0", "--", "python", "--hosts")


def test_hosts_meet_at_a_port_of_their_own_unless_one_is_given() -> None:
    ports = set()
    for _ in range(2):
        first, second = (start.command[-1] for start in started("n1,n[2-3]", agents())[:2])
        (hosts,) = {re.search(r"--hosts '?([^' ]+)", text)[1] for text in (first, second)}  # type: ignore[index]
        leader, *others = read_hosts("--hosts", hosts)
        assert [str(one) for one in others] == ["n2", "n3"]
        assert leader.port is not None
        assert 20_000 <= leader.port < 32_000
        ports.add(leader.port)
    assert len(ports) == 2


def test_no_variable_is_in_a_command_and_none_that_is_no_library_s_is_passed_on() -> None:
    given = {
        "GPUTOPO_HOME": "v1",
        "TF_CPP_MIN_LOG_LEVEL": "v2",
        "NCCL_DEBUG": "v3",
        "COLUMNS": "v4",
        "TF_VAR_db_password": "v5",
        "TF_TOKEN_app": "v6",
        "GPUTOPO_SECRET": "v7",
        "TF_CONFIG": "v8",
        "AWS_SECRET_ACCESS_KEY": "v9",
        "HOME": "v10",
    }
    _, there = started("localhost,n2", agents(**given))
    words = " ".join(there.command)
    assert not [name for name, text in given.items() if name in words or text in words]
    assert passed_on(given) == {name: given[name] for name in sorted([*given][:4])}


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5))
def test_a_shell_gives_an_agent_the_words_as_they_were_typed(words: list[str]) -> None:
    (start,) = started("n1", agents(*(word for word in words if word != "--")))
    assert [one for one in words if one != "--"] == shlex.split(start.command[-1])[9:-4]


@pytest.mark.parametrize(
    ("code", "line", "what", "hint"),
    [
        (255, "Host key verification failed.", "ssh cannot connect to n2: Host key", "confirm the key"),
        (255, "u@n2: Permission denied (publickey).", "ssh cannot connect to n2", "ssh-copy-id n2"),
        (255, "ssh: Could not resolve hostname n2: Name or", "cannot connect to n2", "~/.ssh/config"),
        (255, "ssh: connect to host n2 port 22: Connection timed out", "timed out", "the host is up"),
        (255, "kex_exchange_identification: read", "kex_exchange", "ssh n2 true"),
        (
            127,
            "env: '/there/python': No such file or directory",
            "cannot be started on n2",
            "--remote-python",
        ),
        (
            1,
            "/there/python: No module named gputopo.launch.hosts.agent",
            "cannot be started on n2",
            "same version",
        ),
        (137, "", "n2 ended with exit code 137", "by hand"),
    ],
)
def test_a_host_that_cannot_be_started_is_named_with_what_to_do(
    code: int, line: str, what: str, hint: str
) -> None:
    start = HostCommand(rank=1, command=("ssh", "n2"), host="n2")
    error = not_started(start, code, [line, ""], "/there/python")
    assert (what in error.what, hint in error.hint) == (True, True), error.args
    assert error.exit_code == 3


def test_the_run_is_over_with_its_last_host_and_has_the_exit_code_of_rank_0() -> None:
    endings = RankEnds()
    endings.ended(0, 1, 10.0)
    assert (endings.codes, endings.end_at) == ({0: 1}, 10.0 + OTHERS_S)
    endings.ended(1, 3, 11.0)
    assert (endings.codes, endings.exit_code) == ({0: 1, 1: 3}, 1)


def test_a_host_that_failed_ends_all_after_rank_0_could_say_why() -> None:
    endings = RankEnds()
    endings.ended(2, 0, 1.0)  # not needed
    assert endings.end_at is None
    endings.ended(1, 2, 5.0)
    assert endings.end_at == 5.0 + LEADER_S
    endings.ended(0, 143, 5.1 + LEADER_S)
    assert (endings.exit_code, endings.blamed) == (2, (1, 2)), "rank 0 did not end by itself"


def test_rank_0_that_ends_by_itself_has_the_last_word() -> None:
    endings = RankEnds()
    endings.ended(1, 2, 5.0)
    endings.ended(0, 3, 5.5)
    assert (endings.exit_code, endings.blamed) == (3, None)


def test_a_rank_0_that_ends_well_leaves_the_others_their_time() -> None:
    endings = RankEnds()
    endings.ended(0, 0, 5.0)
    assert endings.end_at is None


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
    assert ends == [None, 2.0 + TERM_S, 3.0]
    endings.ended(0, 137, 4.0)
    assert endings.exit_code == 130


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Puts the stand-ins on PATH; at the end nothing that they started runs."""
    bin = installed(tmp_path / "bin")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(driver, "LEADER_S", 0.2)
    monkeypatch.setattr(driver, "OTHERS_S", 0.2)
    monkeypatch.setattr(driver, "DRAIN_S", 0.2)
    yield tmp_path
    left = [one for one in tmp_path.glob("rank-*") if psutil.pid_exists(int(one.read_text()))]
    assert not left


@pytest.mark.usefixtures("home")
def test_the_driver_has_the_stdout_of_rank_0_and_labels_the_lines_of_others(capfd: Shown) -> None:
    assert drives("n1,n2", "fine,fine") == 0
    shown = capfd.readouterr()
    assert shown.out == f"stdout of rank 0 in {os.getcwd()}\n"
    assert sorted(shown.err.splitlines()) == [
        "gputopo: rank 0: fine",
        "n2: gputopo: rank 1: fine",
        f"n2: stdout of rank 1 in {os.getcwd()}",
    ]


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("behaviours", "code", "says"),
    [
        ("train,fails", 2, "this host is no good"),
        ("train,killed", 137, "rank 1 trains"),
        ("killed,train", 137, "rank 0 trains"),
    ],
)
def test_the_first_host_that_fails_ends_all_and_its_exit_code_counts(
    behaviours: str, code: int, says: str, capfd: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "OTHERS_S", 0.2)
    assert drives("n1,n2", behaviours) == code
    shown = capfd.readouterr().err
    assert says in shown
    assert ("(rank 1) failed first" in shown or "rank 1 failed first" in shown) == behaviours.startswith("tr")


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("host", "what"),
    [
        ("refused", "ssh cannot connect to refused: ssh: connect to host refused port 22"),
        ("denied", "Permission denied"),
        ("unknown", "Host key verification failed"),
        ("bare", "gputopo cannot be started on bare: .*/nowhere/python: (not found|No such file)"),
    ],
)
def test_a_host_that_ssh_cannot_start_is_named_and_nobody_waits_for_it(host: str, what: str) -> None:
    with pytest.raises(HardwareError, match=what):
        drives(f"localhost,{host}", "train,train")


def test_a_folder_that_a_host_has_not_is_replaced_by_its_home_with_a_word(capfd: Shown, home: Path) -> None:
    assert drives("n1,n2", "fine,fine", folder="/not/there") == 0
    shown = capfd.readouterr()
    assert f"stdout of rank 0 in {home / 'home'}" in shown.out
    assert f"n2: gputopo: /not/there: No such file or directory; started in {home / 'home'}" in shown.err


class Driver:
    """A driver in a process of its own, with ranks that train."""

    def __init__(self, behaviours: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.launch.hosts.driven", "localhost,n2", behaviours],
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


@pytest.mark.usefixtures("home")
def test_a_signal_to_the_driver_ends_rank_0_which_has_the_exit_code() -> None:
    driver = Driver("train,train")
    driver.signal(signal.SIGINT)
    code, rest = driver.ended()
    assert code == 128 + signal.SIGINT
    assert "stopped by SIGINT" in rest.splitlines()[0], "the process of rank 0"


@pytest.mark.usefixtures("home")
def test_nothing_outlives_a_driver_that_is_killed() -> None:
    driver = Driver("train,train")
    driver.signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs(driver.all, timeout=5)
    assert (bool(gone), alive) == (True, [])
    assert driver.ended()[0] == -signal.SIGKILL


AGENT = """
import sys
from gputopo.launch.hosts import agent
agent.AGENT_END_S = 0.1
sys.exit(agent.main(sys.argv[1:]))
"""


def test_a_host_that_does_not_end_when_it_is_asked_to_is_killed(home: Path) -> None:
    words = ("-IS", pretends.__file__, "train,deaf", "--node-rank", "1")
    with subprocess.Popen(
        [sys.executable, "-c", AGENT, str(home), sys.executable, *words],
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
        assert process.stderr.read() == agent.report("ended 137")
