"""Runs the programs of `driving` in a process that finds the double."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kit.cuda.derive import from_scenario
from tests.kit.cuda.layouts import named
from tests.kit.cuda.scenario import CudaSpec
from tests.kit.cuda.session import environment
from tests.kit.cuda.words import spoilt

ROOT = Path(__file__).parents[3]


def box(machine: str, *words: str) -> CudaSpec:
    """Give the box of a scenario or layout by its name, with faults in words."""
    return spoilt(from_scenario(named(machine)), words)


def driven(spec: CudaSpec, program: str, **arguments: Any) -> Any:
    """Give what a program of `driving` saw."""
    with tempfile.TemporaryDirectory() as folder:
        given = environment(spec, Path(folder))
        command: Sequence[str] = (
            *(sys.executable, "-m", "tests.kit.cuda.driving"),
            *(program, json.dumps(arguments)),
        )
        done = subprocess.run(
            command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=60, check=False
        )
    if done.returncode:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)
