"""`gputopo inspect` on several hosts at once, as their starters start it."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gputopo.cli import run_command
from gputopo.cli.hosts.meeting import address_of
from gputopo.launch.hosts import addresses, messages
from gputopo.launch.hosts.addresses import free_port
from gputopo.launch.hosts.allocation import Allocation, HostOptions
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.values import schema
from gputopo.values.errors import HardwareError
from gputopo.values.run.plan import Plan
from tests.cli.conftest import Call
from tests.launch.hosts.environs import slurm_step
from tests.launch.remote_stand_ins import installed
from tests.planner.joint_machines import two_switches


def test_rank_0_compares_the_hosts_that_come_and_names_those_that_do_not(
    call: Call, without_gpu: None, tmp_path: Path
) -> None:
    hosts = f"localhost:{free_port()},localhost:{free_port()},n3"
    guest = subprocess.Popen(
        [sys.executable, "-m", "gputopo", "inspect", "--hosts", hosts, "--node-rank", "1"],
        env={**os.environ, "GPUTOPO_ROOT": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done = call("inspect", "--json", "--hosts", hosts, "--node-rank", "0", "--join-timeout", "2.5")
    out, err = guest.communicate(timeout=60)
    assert (guest.returncode, out) == (0, ""), err
    assert "rank 0 has what was read of this host" in err
    assert done.code == 0
    found = json.loads(done.out)
    assert [host for kind in found["kinds"] for host in kind["hosts"]] == ["localhost", "localhost (2)"]
    assert found["unread"] == ["n3"]
    assert "n3 (rank 2)" in next(one["says"] for one in found["findings"] if one["id"] == "fleet.no_answer")


def test_a_host_of_another_command_does_not_take_part(call: Call, without_gpu: None) -> None:
    hosts = f"localhost:{free_port()},localhost:{free_port()}"
    guest = subprocess.Popen(
        (*f"{sys.executable} -m gputopo run --cpu --model trivial --node-rank 1".split(), "--hosts", hosts),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done = call("inspect", "--json", "--hosts", hosts, "--node-rank", "0", "--join-timeout", "20")
    assert guest.communicate(timeout=60)
    assert guest.returncode == 2
    assert json.loads(done.out)["unread"] == ["localhost (2)"]


def test_a_rank_0_whose_name_is_not_known_yet_is_found_once_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[str | OSError] = [socket.gaierror(socket.EAI_NONAME, "Name or service not known")] * 3
    answers.append("10.0.0.6")

    def own_address(name: str, port: int) -> str:
        found = answers.pop(0)
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(addresses, "own_address", own_address)
    monkeypatch.setattr(messages, "RETRY_S", 0.0)
    pods = Allocation(rank=1, hosts=(HostAddress("set-workers-0-0.set"), HostAddress(None)), source="JobSet")
    assert address_of(pods, HostOptions()) == "10.0.0.6"
    said = "cannot find yet: Name or service not known; it is tried for 60 s"
    assert capsys.readouterr().err.count(said) == 1
    answers.append(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    with pytest.raises(HardwareError, match=r"cannot find: Name or service not known$"):
        address_of(pods, HostOptions(join_timeout=1e-9))


def test_inspect_looks_for_other_hosts_only_where_it_is_asked_to(
    call: Call, without_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in slurm_step().items():
        monkeypatch.setenv(name, text)
    assert call("inspect").code == 0
    done = call("inspect", "--fleet", "--join-timeout", "0.1")
    assert (done.code, "rank 0 is 'n1'" in done.err) == (2, True)
    for name in slurm_step():
        monkeypatch.delenv(name)
    done = call("inspect", "--fleet")
    assert done.code == 2
    assert "srun gputopo inspect --fleet" in done.err


def test_options_of_hosts_are_not_ignored_beside_files(call: Call, without_gpu: None) -> None:
    done = call("inspect", "--from", "7gforce", "--node-rank", "0")
    assert (done.code, done.out) == (2, "")
    assert "mutually exclusive" in done.err
    assert call("inspect", "--num-hosts", "1").code == 0


def test_hosts_that_count_one_another_differently_are_no_job(call: Call, without_gpu: None) -> None:
    two = f"localhost:{free_port()},localhost:{free_port()}"
    guest = subprocess.Popen(
        [sys.executable, "-m", "gputopo", "inspect", "--hosts", f"{two},n3", "--node-rank", "1"],
        stderr=subprocess.PIPE,
        text=True,
    )
    done = call("inspect", "--json", "--hosts", two, "--node-rank", "0", "--join-timeout", "2.5")
    _, err = guest.communicate(timeout=60)
    assert guest.returncode == 2
    assert "--num-hosts is 3 on localhost (rank 1), 2 on rank 0" in err
    assert len(json.loads(done.out)["unread"]) == 1


@pytest.fixture
def ssh(tmp_path: Path, without_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the stand-in on PATH."""
    monkeypatch.setenv("PATH", f"{installed(tmp_path / 'bin')}:{os.environ['PATH']}")
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path / "home"))


@pytest.fixture
def by(ssh: None) -> tuple[str, ...]:
    return ("run", "--hosts", f"localhost:{free_port()},127.0.0.2")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--model", "trivial", "--cpu", "--ps", "gpu:9"), "--ps gpu:9 names a device that does not exist"),
        (("--model", "trivial", "--cpu", "--output", "taken"), "already holds a run"),
        (("--", "no-such-program"), "there is no program no-such-program"),
    ],
)
def test_what_each_host_refuses_is_shown_once(
    call: Call,
    by: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    says: str,
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "events.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    done = call(*by, *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.count(says) == 1, done.err
    assert next(line for line in done.err.splitlines() if says in line).startswith("gputopo: ")


def test_a_program_runs_on_all_hosts(by: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command([*by, "--", "sh", "-c", "echo $RANK of $WORLD_SIZE"]) == 0
    shown = capfd.readouterr()
    assert shown.out == "0 of 2\n"
    assert "127.0.0.2: 1 of 2\n" in shown.err


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Recordings of two hosts."""
    for name in ("n1", "n2"):
        schema.write(tmp_path / f"{name}.json", msgspec.structs.replace(two_switches(), source="recording"))
    return sorted(tmp_path.iterdir())


def test_recordings_of_hosts_are_planned_together(call: Call, files: list[Path]) -> None:
    asked = ("plan", "--model", "resnet50", "--single-gpu-images-per-sec", "400", "--from", *files, "--fleet")
    done = call(*asked, "--json")
    assert (done.code, done.err) == (0, "")
    plan = schema.decode(done.out, Plan, origin="stdout")
    assert [(one.host, one.gpus) for one in plan.choice.hosts] == [
        ("n1", tuple(range(8))),
        ("n2", tuple(range(8))),
    ]
    assert set(plan.choice.exposed_ms) == {"weights", "gradients", "variables", "network"}
    table = call(*asked).out
    assert "2 hosts     n1, n2: GPUs 0-7" in table
    assert "16 of 2 hosts" in table
    assert "Environment" not in table
    assert max(map(len, table.splitlines())) <= 80
    markdown = call(*asked, "--format", "markdown").out
    assert markdown.startswith("### Plan for resnet50")
    assert "| 2 hosts | n1, n2: GPUs 0-7 |" in markdown


def test_the_number_of_gpus_may_be_left_to_the_plan(call: Call, files: list[Path]) -> None:
    asked = ("plan", "--model", "vgg16", "--single-gpu-images-per-sec", "400", "--from", *files, "--fleet")
    done = call(*asked, "--num-gpus", "auto", "--gain", "0.4")
    assert done.code == 0
    assert "Number of GPUs" in done.out
    assert "n2 0" in done.err


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--fleet",), "--fleet plans for several hosts, and needs a file of each of two or more"),
        (("--fleet", "--from", "7gforce"), "needs a file of each of two or more"),
        (("--fleet", "--from", "7gforce", "nowhere.json"), "nowhere cannot be read"),
        (("--fleet", "--from", "7gforce", "dgx1-p100", "--explain"), "--explain is for one host"),
        (("--fleet", "--from", "7gforce", "dgx1-p100", "--what-if", "acs off"), "--what-if is for one host"),
        (("--fleet", "--from", "7gforce", "dgx1-p100", "--format", "env"), "--format env is for one host"),
        (("--from", "7gforce", "--node-rank", "0"), "mutually exclusive"),
    ],
)
def test_what_does_not_fit_is_refused_in_two_lines(call: Call, options: tuple[str, ...], what: str) -> None:
    done = call("plan", "--model", "alexnet", *options)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 2)
    assert what in done.err.splitlines()[0]
    assert "--num-hosts" not in done.err, "which files do not go with"


def test_hosts_without_gpus_meet_and_are_told_that_there_is_nothing_to_plan_for(
    call: Call, without_gpu: None, tmp_path: Path
) -> None:
    hosts = f"localhost:{free_port()},localhost:{free_port()}"
    guest = subprocess.Popen(
        (*f"{sys.executable} -m gputopo plan --model alexnet --node-rank 1 --hosts".split(), hosts),
        env={**os.environ, "GPUTOPO_ROOT": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done = call("plan", "--model", "alexnet", "--hosts", hosts, "--node-rank", "0", "--join-timeout", "30")
    out, err = guest.communicate(timeout=60)
    assert (guest.returncode, out) == (0, ""), err
    assert "rank 0 has what was read of this host" in err
    assert (done.code, "there is no GPU to plan for on any of the hosts" in done.err) == (3, True)


def test_a_plan_under_a_starter_waits_for_its_hosts(
    call: Call, without_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in slurm_step().items():
        monkeypatch.setenv(name, text)
    assert "rank 0 is 'n1'" in call("plan", "--model", "alexnet", "--join-timeout", "0.1").err
    assert "there is no GPU to plan for" in call("plan", "--model", "alexnet", "--num-hosts", "1").err


def test_a_dry_run_of_several_hosts_shows_the_plan_and_starts_nothing(
    call: Call, without_gpu: None, tmp_path: Path
) -> None:
    hosts = f"localhost:{free_port()},localhost:{free_port()}"
    guest = subprocess.Popen(
        (
            *f"{sys.executable} -m gputopo run --cpu --dry-run --model trivial --node-rank 1".split(),
            "--hosts",
            hosts,
        ),
        env={**os.environ, "GPUTOPO_ROOT": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    done = call(
        *("run", "--cpu", "--dry-run", "--model", "trivial", "--node-rank", "0"),
        *("--hosts", hosts, "--join-timeout", "30"),
    )
    assert guest.communicate(timeout=60)
    assert (guest.returncode, done.code) == (0, 0), done.err
    assert "training on 4 logical CPU devices of 2 hosts" in done.out
    assert "Starts" in done.out
