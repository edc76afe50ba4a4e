"""Starts trainer_process, process and numerics_process for the tests, and returns what they found."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.launch.forks import run_program

USER = "tests.launch.train.user_models"
Found = dict[str, Any]


def trained(folder: Path, towers: int, cases: dict[str, dict[str, Any]], *, steps: int = 4) -> dict[str, Any]:
    """Run the cases in one process: {name: what trainer_process found, with the arrays it saved}."""
    file = folder / "cases.json"
    file.write_text(json.dumps({"towers": towers, "steps": steps, "cases": cases}))
    done = run_program("-m", "tests.launch.train.trainer_process", str(file), str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    for name, one in found.items():
        if "error" not in one:
            one["arrays"] = dict(np.load(folder / f"{name}.npz"))
    return found


def steps_of(folder: Path, towers: int, cases: dict[str, dict[str, Any]]) -> Found:
    """Run the cases by `numerics_process`, as `run_cases` does."""
    return run_cases(folder, towers, cases, by="numerics_process")


def run_cases(
    folder: Path, towers: int, cases: dict[str, dict[str, Any]], *, by: str = "process", **several: Any
) -> Found:
    """Run the cases by a program: {name: the arrays of a case, or what it was refused with}."""
    file = folder / "cases.json"
    file.write_text(json.dumps({"towers": towers, "cases": cases, **several}))
    done = run_program("-m", f"tests.launch.train.{by}", str(file), str(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    errors = {path.stem: path.read_text() for path in folder.glob("*.error")}
    return {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")} | errors
