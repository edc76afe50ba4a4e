"""What the cases gave, on logical CPU devices: they run once, in one process, for all tests of inputs."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launch.forks import run_program


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("inputs")
    done = run_program("-m", "tests.launch.train.inputs.process", str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.fixture(scope="session")
def given(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
