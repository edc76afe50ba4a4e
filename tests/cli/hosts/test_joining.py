"""Runs of several hosts, as a driver or their starters start them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gputopo.cli import run_command
from gputopo.launch.hosts import joining
from tests.kit.ports import free_port
from gputopo.launch.hosts.allocation import Allocation
from gputopo.launch.hosts.hostlists import HostAddress
from gputopo.launch.hosts.joining import address_of
from gputopo.launch.hosts.options import HostOptions
from gputopo.values.errors import HardwareError
from tests.cli.conftest import Call


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

    monkeypatch.setattr(joining, "own_address", own_address)
    monkeypatch.setattr(joining, "RETRY_S", 0.0)
    pods = Allocation(rank=1, hosts=(HostAddress("set-workers-0-0.set"), HostAddress(None)), source="JobSet")
    assert address_of(pods, HostOptions()) == "10.0.0.6"
    said = "cannot resolve yet: Name or service not known; retrying for 60 s"
    assert capsys.readouterr().err.count(said) == 1
    answers.append(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
    with pytest.raises(HardwareError, match=r"cannot resolve: Name or service not known$"):
        address_of(pods, HostOptions(join_timeout=1e-9))


@pytest.fixture
def by(ssh: None) -> tuple[str, ...]:
    return ("run", "--hosts", f"localhost:{free_port()},127.0.0.2")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--model", "trivial", "--cpu", "--ps", "gpu:9"), "--ps gpu:9 is a device that does not exist"),
        (("--", "no-such-program"), "there is no program no-such-program"),
    ],
)
def test_what_each_host_refuses_is_shown_once(
    call: Call, by: tuple[str, ...], words: tuple[str, ...], says: str
) -> None:
    done = call(*by, *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.count(says) == 1, done.err
    assert next(line for line in done.err.splitlines() if says in line).startswith("gputopo: ")


def test_a_program_runs_on_all_hosts_by_a_secret_that_no_file_and_no_program_has(
    by: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*by, "--", "sh", "-c", "echo $RANK of $WORLD_SIZE$GPUTOPO_SECRET"]) == 0
    shown = capfd.readouterr()
    assert shown.out == "0 of 2\n"
    assert "127.0.0.2: 1 of 2\n" in shown.err
    assert (tmp_path / "home").is_dir()
    assert not (tmp_path / "home" / "secret").exists()


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
    assert "\nCommand\n" in done.out
