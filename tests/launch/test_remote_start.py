"""A driver with stand-ins for ssh, srun and mpirun, whose agents start what pretends to be gputopo run."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch import remote_start
from gputopo.launch.hosts.allocation import HostOptions, Starter
from gputopo.launch.hosts.hostlists import HostAddress, read_hosts
from gputopo.launch.remote_start import (
    Agents,
    Start,
    find,
    not_started,
    starts,
)
from gputopo.values.errors import HardwareError, UsageError
from tests.launch.hosts.environs import open_mpi_5, ray_train, slurm_step, torchrun
from tests.launch.remote_driven import drives
from tests.launch.remote_stand_ins import installed

SALLOC = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-4]", "SLURM_JOB_NUM_NODES": "4"}
HOSTS = read_hosts("--hosts", "n[1-3]")


def agents(*words: str, **environ: str) -> Agents:
    return Agents(
        words=("-m", "gputopo", "run", *words),
        python="/here/python",
        remote_python="/there/python",
        folder="/a folder",
        environment=environ,
    )


def never(name: str) -> bool:
    return False


@pytest.mark.parametrize(
    ("environ", "asked", "starter"),
    [({}, "auto", "ssh"), (SALLOC, "auto", "srun"), (SALLOC, "ssh", "ssh"), ({}, "mpirun", "mpirun")],
)
def test_hosts_without_a_rank_are_started_by_what_there_is(
    environ: Mapping[str, str], asked: Starter, starter: str
) -> None:
    found = find(HostOptions(hosts=HOSTS, starter=asked), environ)
    assert found is not None
    assert (found.starter, found.hosts, found.size) == (starter, HOSTS, 3)


@pytest.mark.parametrize("environ", [slurm_step(), open_mpi_5(0, 3), ray_train(), torchrun()])
def test_who_has_a_rank_starts_nobody(environ: Mapping[str, str]) -> None:
    assert find(HostOptions(hosts=HOSTS), environ) is None
    assert find(HostOptions(hosts=HOSTS, node_rank=0), {}) is None
    assert find(HostOptions(hosts=HOSTS, num_hosts=1), {}) is None
    with pytest.raises(UsageError, match="has a rank already"):
        find(HostOptions(hosts=HOSTS, starter="ssh"), environ)


def test_the_nodes_of_a_job_are_hosts_where_so_many_are_asked_for() -> None:
    assert find(HostOptions(), SALLOC) is None, "as without several hosts"
    assert find(HostOptions(num_hosts=2), {}) is None, "refused where the rank is looked for"
    two, all_four = find(HostOptions(num_hosts=2), SALLOC), find(HostOptions(starter="srun"), SALLOC)
    assert two is not None
    assert two.hosts == read_hosts("", "n[1-2]")
    assert all_four is not None
    assert all_four.size == 4
    with pytest.raises(UsageError, match="--starter ssh needs the hosts"):
        find(HostOptions(starter="ssh"), {})


def started(starter: Starter, hosts: str, to_run: Agents) -> tuple[Start, ...]:
    found = find(HostOptions(hosts=read_hosts("--hosts", hosts), starter=starter), {})
    assert found is not None
    return starts(found, to_run, lambda name: name == "localhost")


def test_ssh_starts_each_rank_and_this_host_needs_none() -> None:
    here, there = started("ssh", "localhost:2300,n2", agents("--json", NCCL_DEBUG="INFO", HOME="/me"))
    assert here.command == (
        *("env", "/here/python", "-P", "-m", "gputopo.launch.remote_agent", "0", "localhost", "/a folder"),
        *("-m", "gputopo", "run", "--json", "--hosts", "localhost:2300,n2", "--node-rank", "0"),
    )
    *options, end, host, command = there.command
    assert (options[0], "BatchMode=yes" in options, end, host) == ("ssh", True, "--", "n2")
    words = shlex.split(command)
    assert words[:3] == ["env", "NCCL_DEBUG=INFO", "/there/python"]
    assert words[-2:] == ["--node-rank", "1"]
    assert (there.ranks, there.host) == ((1,), "n2")


@pytest.mark.parametrize(
    ("starter", "where"),
    [("srun", ["--nodes=2", "--ntasks=2", "--nodelist=n2,n3"]), ("mpirun", ["-n", "2", "--host", "n2,n3"])],
)
def test_srun_and_mpirun_start_one_agent_on_each_host(starter: Starter, where: list[str]) -> None:
    (start,) = started(starter, "n[2-3]", agents("--json"))
    assert start.command[0] == starter
    assert set(where) <= set(start.command)
    assert start.command[-5:] == ("gputopo", "run", "--json", "--hosts", "n[2-3]")
    assert (start.ranks, start.host) == ((0, 1), None)


def test_the_words_of_a_program_stay_behind_the_dashes() -> None:
    (start,) = started("srun", "n1", agents("--", "python", "--hosts"))
    assert start.command[-5:] == ("--hosts", "n1", "--", "python", "--hosts")


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5))
def test_a_shell_gives_an_agent_the_words_as_they_were_typed(words: list[str]) -> None:
    (start,) = started("ssh", "n1", agents(*(word for word in words if word != "--")))
    assert [one for one in words if one != "--"] == shlex.split(start.command[-1])[11:-4]


def test_the_names_of_hosts_cannot_be_options_or_commands() -> None:
    for name in ("-oProxyCommand=x", "a;b", "$(x)", "a b"):
        with pytest.raises(UsageError):
            read_hosts("--hosts", name)


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
            "/there/python: No module named gputopo.launch.remote_agent",
            "cannot be started on n2",
            "same version",
        ),
        (137, "", "n2 ended with exit code 137", "by hand"),
    ],
)
def test_a_host_that_cannot_be_started_is_named_with_what_to_do(
    code: int, line: str, what: str, hint: str
) -> None:
    start = Start(ranks=(1,), command=("ssh", "n2"), host="n2")
    error = not_started(start, code, [line, ""], "/there/python")
    assert (what in error.what, hint in error.hint) == (True, True), error.args
    assert error.exit_code == 3


def test_hosts_with_ports_are_named_with_them() -> None:
    assert HostAddress("n1", 2300) in read_hosts("", "n1:2300")
    (start,) = started("srun", "n1:2300,n2", agents())
    assert start.command[-1] == "n1:2300,n2"
    assert "--nodelist=n1,n2" in start.command


def test_options_that_contradict_one_another_start_nothing() -> None:
    hosts = read_hosts("--hosts", "n1,n2")
    with pytest.raises(UsageError, match="--hosts names 2 hosts, and --num-hosts is 3"):
        find(HostOptions(hosts=hosts, num_hosts=3), {})
    with pytest.raises(UsageError, match="--hosts and --hostfile name different hosts"):
        find(HostOptions(hosts=hosts, hostfile=hosts[:1]), {})


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
    monkeypatch.setattr(remote_start, "LEADER_S", 0.2)
    monkeypatch.setattr(remote_start, "SETTLE_S", 0.2)
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
    monkeypatch.setattr(remote_start, "OTHERS_S", 0.2)
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
            [sys.executable, "-m", "tests.launch.remote_driven", starter, "localhost,n2", behaviours],
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
