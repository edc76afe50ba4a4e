"""Runs the programs of `driving` in a process that finds the double."""

import json
from pathlib import Path
from typing import Any

from tests.kit.cuda.derive import from_scenario
from tests.kit.cuda.layouts import named
from tests.kit.cuda.scenario import CudaSpec
from tests.kit.cuda.session import run_program
from tests.kit.cuda.words import spoilt

ROOT = Path(__file__).parents[3]


def box(machine: str, *words: str) -> CudaSpec:
    """Return the box of a scenario or layout by its name, with faults in words."""
    return spoilt(from_scenario(named(machine)), words)


def driven(spec: CudaSpec, program: str, **arguments: Any) -> Any:
    """Return what a program of `driving` saw."""
    done = run_program(spec, "-m", "tests.kit.cuda.driving", program, json.dumps(arguments))
    if done.returncode:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)
