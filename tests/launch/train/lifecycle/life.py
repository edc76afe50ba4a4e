"""Starts `life_process` for the tests, and returns what its runs reported."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gputopo.values.run.events import Event, decode_line
from tests.launch.forks import run_program

Fields = dict[str, Any]


@dataclass(frozen=True)
class Ran:
    """One run: its events, its last variables by `variables/PLACE/NUMBER`, and why it was refused."""

    events: list[Event]
    last: dict[str, Any]
    error: str | None
    hint: str | None
    exit_code: int | None

    def reported(self, kind: type[Any]) -> list[Any]:
        """Return the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


def run_all(folder: Path, towers: int, runs: list[Fields]) -> dict[str, Ran]:
    """Run them in one process, in order, and return each by its name."""
    file = folder / f"cases{towers}.json"
    out = folder / f"out{towers}"
    out.mkdir()
    file.write_text(json.dumps({"towers": towers, "runs": runs}))
    done = run_program("-m", "tests.launch.train.lifecycle.life_process", str(file), str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    return {path.stem: _read(path) for path in out.glob("*.json")}


def _read(path: Path) -> Ran:
    reported = json.loads(path.read_text())
    arrays = path.with_suffix(".npz")
    return Ran(
        events=[decode_line(msgspec.json.encode(event)) for event in reported["events"]],
        last=dict(np.load(arrays)) if arrays.exists() else {},
        error=reported.get("error"),
        hint=reported.get("hint"),
        exit_code=reported.get("exit_code"),
    )
