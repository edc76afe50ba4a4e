"""What waits for whose time marks: graphs of a process of their own, with fewer cores than towers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.worker_process import environment

pytestmark = pytest.mark.tensorflow

Waits = dict[str, list[int]]


def built(cores: int, towers: int) -> Waits:
    done = subprocess.run(
        [sys.executable, "-m", "tests.launch.core.turns_process", str(cores), str(towers)],
        env=environment(),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: Waits = json.loads(done.stdout)
    return found


def test_where_devices_take_turns_sums_wait_for_every_tower_so_that_none_counts_as_computing() -> None:
    waits = built(cores=1, towers=3)
    assert {mode: set(waits[mode]) for mode in ("parameter_server", "ring")} == {
        "parameter_server": {3},
        "ring": {3},
    }


def test_devices_that_run_at_once_add_gradients_as_they_come() -> None:
    waits = built(cores=1, towers=1)
    assert waits["parameter_server"] == []  # one tower adds nothing
    two = built(cores=2, towers=2)
    assert set(two["parameter_server"]) == {0}
    assert set(two["ring"]) == {0}


def test_an_independent_tower_changes_its_copy_without_waiting_for_those_that_run_beside_it() -> None:
    assert set(built(cores=2, towers=2)["independent"]) == {1}
    assert set(built(cores=2, towers=4)["independent"]) == {1}
