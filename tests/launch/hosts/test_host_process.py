"""What the process of a host prints, and what its agent reports, by commands that pretend."""

import os
import shlex
from pathlib import Path

import pytest

from gputopo.launch.hosts import HostCommand, HostProcess

LONG_S = 60.0


def reporting(words: str) -> str:
    """Return a command of a shell that reports as the agent of a host does."""
    return f"printf %s {shlex.quote(f'{chr(0x1E)}gputopo {words}{chr(10)}')} >&2"


def printing(script: str) -> HostCommand:
    return HostCommand(rank=1, host="n1", command=("sh", "-c", script), remote=False)


def test_reports_are_taken_out_of_what_it_writes() -> None:
    words = f"{reporting('started')}; {reporting('ended 7')}"
    with HostProcess(printing(f"echo banner >&2; printf 'half ' >&2; {words}; echo answer"), {}) as process:
        assert process.output(LONG_S) == b"answer\n"
        assert (process.has_started, process.ended) == (True, 7)
        assert process.said == "banner\nhalf "


def test_what_a_program_leaves_behind_is_not_waited_for() -> None:
    left = f"echo answer; {reporting('ended 0')}; sleep 60"
    with HostProcess(printing(left), {}, end_s=0.1) as process:
        assert process.output(LONG_S) == b"answer\n"
        assert (process.is_done, process.is_over) == (True, False)


def test_variables_come_by_stdin_and_ssh_asks_a_name_server_again_after_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text('#!/bin/sh\nread -r line; echo "$line $RES_OPTIONS"\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    start = HostCommand(rank=0, host="n1", command=("ssh", "n1", "true"))
    with HostProcess(start, {"NCCL_X": "secret"}) as process:
        assert process.output(LONG_S) == b'{"NCCL_X": "secret"} timeout:1 attempts:5\n'
    monkeypatch.setenv("RES_OPTIONS", "timeout:9")
    with HostProcess(start, {}) as process:
        assert process.output(LONG_S) == b"{} timeout:9\n"
