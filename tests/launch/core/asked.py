"""Asks TensorFlow in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.launch.worker_process import environment


def answer_of(program: str) -> dict[str, Any]:
    """Run the text of a program in the repository's root, and give the JSON object that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout)
    return told
