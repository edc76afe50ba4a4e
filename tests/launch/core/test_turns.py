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
    assert set(waits) == {"parameter_server", "ring"}
    assert all(waits.values())
    assert {mode: set(counts) for mode, counts in waits.items()} == {"parameter_server": {3}, "ring": {3}}


def test_devices_that_run_at_once_add_gradients_as_they_come() -> None:
    waits = built(cores=1, towers=1)
    assert waits["parameter_server"] == []  # one tower adds nothing
    two = built(cores=2, towers=2)
    assert all(count == 0 for counts in two.values() for count in counts)
    assert two["parameter_server"]
