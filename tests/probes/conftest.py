"""The stand-ins of the programs that measure a network."""

from pathlib import Path

import pytest

from tests.probes.stand_ins import NcclTests


@pytest.fixture
def nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NcclTests:
    return NcclTests(tmp_path, monkeypatch)
