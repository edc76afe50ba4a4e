"""Hosts that a stand-in for ssh reaches."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import commands
from tests.launch.hosts.stand_ins import installed


@pytest.fixture
def ssh(tmp_path: Path, without_gpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts the stand-in on PATH; what commands start are forks."""
    bin = installed(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{bin}:{os.environ['PATH']}")
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path / "home"))
    with commands.server().door(bin) as python:
        monkeypatch.setattr(sys, "executable", python)
        yield
