"""What the cases gave, on logical CPU devices: they run once, in one process, for all tests of inputs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("inputs")
    done = subprocess.run(
        [sys.executable, "-m", "tests.launch.core.inputs.process", str(out)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.fixture(scope="session")
def given(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
