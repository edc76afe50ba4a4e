"""Asks TensorFlow in its own process."""

import json
from typing import Any

from tests.launch.forks import run_program


def answer_of(program: str) -> dict[str, Any]:
    """Run the text of a program, and return the JSON object that it prints."""
    done = run_program("-c", program)
    assert done.returncode == 0, done.stderr[-2000:]
    reported: dict[str, Any] = json.loads(done.stdout)
    return reported
