"""Hosts that a stand-in for ssh reaches."""

import os
from pathlib import Path

import pytest

from tests.launch.remote_stand_ins import installed


@pytest.fixture
def ssh(tmp_path: Path, without_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the stand-in on PATH."""
    monkeypatch.setenv("PATH", f"{installed(tmp_path / 'bin')}:{os.environ['PATH']}")
    monkeypatch.setenv("GPUTOPO_HOME", str(tmp_path / "home"))
