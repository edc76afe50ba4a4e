"""Starts `numerics_process` for the tests of numerics."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.launch.forks import run_program

Found = dict[str, Any]


def run_cases(folder: Path, towers: int, cases: dict[str, dict[str, Any]], **environment: str) -> Found:
    """Return the arrays of each case, or the text of its refusal."""
    file = folder / "cases.json"
    file.write_text(json.dumps({"towers": towers, "cases": cases}))
    done = run_program("-m", "tests.launch.train.numerics_process", str(file), str(folder), more=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    errors = {path.stem: path.read_text() for path in folder.glob("*.error")}
    return {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")} | errors


def same(found: Found, other: Found, *kinds: str) -> bool:
    """Return whether all arrays whose names start so are equal to the last bit, and that there are some."""
    names = [name for name in found if name.startswith(kinds)]
    assert names
    return all(np.array_equal(found[name], other[name]) for name in names)
