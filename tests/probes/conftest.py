"""The stand-ins of the programs that measure a network."""

from pathlib import Path

import pytest

from tests.probes.stand_ins import NcclTests, StandIns


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    return StandIns(tmp_path, monkeypatch)


@pytest.fixture
def nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NcclTests:
    return NcclTests(tmp_path, monkeypatch)
