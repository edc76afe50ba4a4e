"""What waits for which towers: graphs of a process of their own, with fewer cores than towers."""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.train.worker_process import environment

pytestmark = pytest.mark.tensorflow

# By mode: [marks, other towers] that each op waits for; `sizes` of the variables.
Found = dict[str, dict[str, list[Any]]]
LARGE = 1 << 20


@functools.cache
def built(cores: int, towers: int) -> Found:
    done = subprocess.run(
        [sys.executable, "-m", "tests.launch.train.turns_process", str(cores), str(towers)],
        env=environment(),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: Found = json.loads(done.stdout)
    return found


def marks(found: Found, mode: str, kind: str) -> set[int]:
    return {marks for marks, _ in found[mode][kind]}


def changes(found: Found, mode: str, *, large: bool) -> set[tuple[int, int]]:
    """(marks, other towers) that the changes of large or of small variables wait for."""
    sizes, told = found[mode]["sizes"], found[mode]["changes"]
    return {(told[n][0], told[n][1]) for n in range(len(told)) if (sizes[n % len(sizes)] >= LARGE) is large}


def test_where_devices_take_turns_sums_wait_for_every_tower_so_that_none_counts_as_computing() -> None:
    found = built(cores=1, towers=3)
    assert marks(found, "parameter_server", "adds") == {3}
    assert marks(found, "ring", "adds") == {3}
    assert changes(found, "parameter_server", large=True) == {(3, 0)}


def test_devices_that_run_at_once_add_gradients_as_they_come() -> None:
    assert built(cores=1, towers=1)["parameter_server"]["adds"] == []  # one tower adds nothing
    two = built(cores=2, towers=2)
    assert marks(two, "parameter_server", "adds") == {0}
    assert marks(two, "ring", "adds") == {0}


@pytest.mark.parametrize(("mode", "readers"), [("parameter_server", 2), ("ring", 2), ("independent", 1)])
def test_large_variables_change_once_they_are_read_and_small_ones_after_the_backward_pass(
    mode: str, readers: int
) -> None:
    found = built(cores=2, towers=2)
    assert changes(found, mode, large=True) == {(0, readers)}
    assert changes(found, mode, large=False) == {(readers, 0)}


def test_an_independent_tower_changes_its_copy_without_waiting_for_those_that_run_beside_it() -> None:
    found = built(cores=2, towers=4)
    assert changes(found, "independent", large=False) == {(1, 0)}
    assert changes(found, "independent", large=True) == {(0, 1)}


def later(found: Found, mode: str) -> set[tuple[int, int, bool, int]]:
    """Of gradients that wait: tower, tower waited for, whether for a huge variable, own ops waited for."""
    sizes = found[mode]["sizes"]
    told = [(tower, *divmod(change, len(sizes)), rest) for tower, change, rest in found[mode]["later"]]
    return {(tower, of, sizes[variable] >= LARGE, rest) for tower, of, variable, rest in told}


def test_half_of_the_independent_towers_make_huge_gradients_last_when_those_of_the_others_are_used_up() -> (
    None
):
    four = built(cores=2, towers=4)
    small = sum(size < LARGE for size in four["independent"]["sizes"])
    assert small > 1
    assert later(four, "independent") == {(1, 0, True, small), (3, 2, True, small)}
    assert later(built(cores=3, towers=3), "independent") == {(2, 0, True, small)}
    assert later(built(cores=1, towers=3), "independent") == set()
    assert later(four, "parameter_server") == set()
