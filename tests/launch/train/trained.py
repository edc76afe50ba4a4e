"""Starts `process` for the tests, and returns what it found."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.launch.forks import run_program

USER = "tests.launch.train.user_models"
Found = dict[str, Any]
Cases = dict[str, dict[str, Any]]


def run_cases(folder: Path, towers: int, cases: Cases, **several: Any) -> Found:
    """Run the cases in one process: {name: what it found, with the arrays that it saved}."""
    file = folder / "cases.json"
    file.write_text(json.dumps({"towers": towers, "cases": cases, **several}))
    done = run_program("-m", "tests.launch.train.process", str(file), str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    found: Found = json.loads((folder / "found.json").read_text())
    return {
        name: one if "error" in one else one | dict(np.load(folder / f"{name}.npz"))
        for name, one in found.items()
    }


def steps_of(folder: Path, towers: int, cases: Cases) -> Found:
    """Take steps of each case, 4 where it does not say how many."""
    return run_cases(folder, towers, {name: {"steps": 4, **fields} for name, fields in cases.items()})


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
