"""Runs of several hosts, as a driver or their starters start them."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gputopo.cli import run_command
from tests.cli.conftest import Call
from tests.kit.ports import free_port


def test_a_rank_0_whose_name_is_not_known_yet_is_found_once_it_is(
    call: Call, without_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, unknown = socket.getaddrinfo, [None] * 3

    def resolve_later(name: str, *given: Any, **options: Any) -> Any:
        if name == "n0.never" or (name == "set-workers-0-0.set" and unknown):
            unknown[:1] = []
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve("localhost" if name == "set-workers-0-0.set" else name, *given, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_later)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    words = ("run", "--model", "trivial", "--node-rank", "1", "--join-timeout")
    done = call(*words, "0.5", "--hosts", f"set-workers-0-0.set:{free_port()},n2")
    assert done.code == 3
    assert done.err.count("cannot resolve yet: Name or service not known; retrying for 0.5 s") == 1
    assert "did not answer within 0.5 s: connection refused" in done.err, "its address is known"
    done = call(*words, "0.000001", "--hosts", "n0.never,n2")
    assert "which this host cannot resolve: Name or service not known" in done.err


@pytest.fixture
def by(ssh: None) -> tuple[str, ...]:
    return ("run", "--hosts", f"localhost:{free_port()},127.0.0.2")


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
