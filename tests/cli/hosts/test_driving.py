"""`gputopo run` that starts itself on two hosts, by a stand-in for ssh on this one."""

import os
from pathlib import Path

import pytest

from gputopo.cli import run_command
from gputopo.launch.hosts.addresses import free_port
from tests.cli.conftest import Call
from tests.launch.remote_stand_ins import installed


@pytest.fixture(autouse=True)
def ssh(tmp_path: Path, without_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the stand-in on PATH."""
    monkeypatch.setenv("PATH", f"{installed(tmp_path / 'bin')}:{os.environ['PATH']}")
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path / "home"))


@pytest.fixture
def by() -> tuple[str, ...]:
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
