"""What waits for which towers: graphs of a process of their own, with fewer cores than towers."""

import functools
import json
from typing import Any

import pytest

from tests.launch.forks import run_program

pytestmark = pytest.mark.tensorflow

# By mode: [marks, other towers] that each op waits for; `sizes` of the variables.
Found = dict[str, dict[str, list[Any]]]
LARGE = 1 << 20


@functools.cache
def built(cores: int, towers: int) -> Found:
    done = run_program("-m", "tests.launch.train.alternating_process", str(cores), str(towers))
    assert done.returncode == 0, done.stderr[-3000:]
    found: Found = json.loads(done.stdout)
    return found


def marks(found: Found, mode: str, kind: str) -> set[int]:
    return {marks for marks, _ in found[mode][kind]}


def changes(found: Found, mode: str, *, large: bool) -> set[tuple[int, int]]:
    """(marks, other towers) that the changes of large or of small variables wait for."""
    sizes, changes = found[mode]["sizes"], found[mode]["changes"]
    return {
        (changes[n][0], changes[n][1])
        for n in range(len(changes))
        if (sizes[n % len(sizes)] >= LARGE) is large
    }


def test_where_devices_alternate_sums_wait_for_every_tower_so_that_none_counts_as_computing() -> None:
    found = built(cores=1, towers=3)
    assert marks(found, "parameter_server", "adds") == {3}
    assert marks(found, "ring", "adds") == {3}
    assert changes(found, "parameter_server", large=True) == {(3, 0)}


def test_buffered_gradients_are_reduced_while_the_towers_compute() -> None:
    found = built(cores=1, towers=3)
    assert marks(found, "relaxed", "adds") == {0}
    assert changes(found, "relaxed", large=True) == {(3, 0)}


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
