"""Starts steps_process and process for the tests, and returns what they found."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.launch.forks import run_program

USER = "tests.launch.train.user_models"
Found = dict[str, Any]
Cases = dict[str, dict[str, Any]]


def steps_of(folder: Path, towers: int, cases: Cases) -> Found:
    """Take steps in one process: {name: what steps_process found, with the arrays that it saved}."""
    _run("steps_process", folder, towers, cases)
    found: Found = json.loads((folder / "found.json").read_text())
    return {name: one if "error" in one else one | arrays_of(folder, name) for name, one in found.items()}


def trained(folder: Path, towers: int, cases: Cases) -> Found:
    """As `steps_of`; with the loss of each step, marks one after another, and the variables in `arrays`.

    These are `w<place>_<number>`, and `s<number>` the statistics.
    """
    found = steps_of(folder, towers, cases)
    for one in found.values():
        if "error" not in one:
            one["losses"] = one["losses"].mean(axis=1).tolist()
            one["marks"] = np.diff(one["marks"], axis=2, prepend=0.0)
            short = {name.replace("last", "w").replace("state0_", "s"): one[name] for name in one}
            one["arrays"] = {name: short[name] for name in short if re.match(r"w|s\d", name)}
    return found


def run_cases(folder: Path, towers: int, cases: Cases, **several: Any) -> Found:
    """Run the cases by `process`: {name: the arrays of a case, or what it was refused with}."""
    _run("process", folder, towers, cases, **several)
    errors = {path.stem: path.read_text() for path in folder.glob("*.error")}
    return {path.stem: arrays_of(folder, path.stem) for path in folder.glob("*.npz")} | errors


def arrays_of(folder: Path, name: str) -> Found:
    return dict(np.load(folder / f"{name}.npz"))


def _run(program: str, folder: Path, towers: int, cases: Cases, **several: Any) -> None:
    file = folder / "cases.json"
    file.write_text(json.dumps({"towers": towers, "cases": cases, **several}))
    done = run_program("-m", f"tests.launch.train.{program}", str(file), str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
