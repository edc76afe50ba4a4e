"""What TensorFlow wrote and read, in one process for all tests of data files."""

import json
from typing import Any

import pytest

from tests.launch.forks import run_program


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("data")
    done = run_program("-m", "tests.launch.data.process", str(root))
    assert done.returncode == 0, done.stderr[-3000:]
    cases: dict[str, Any] = json.loads((root / "found.json").read_text())
    return cases
