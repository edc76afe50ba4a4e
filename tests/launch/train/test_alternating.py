"""What waits for which towers: graphs as they are with as many cores as towers, and with fewer."""

import functools

import pytest

from tests.launch.forks import answer_of

pytestmark = pytest.mark.tensorflow

# By mode: the time marks of towers that each op waits for.
Found = dict[str, dict[str, list[int]]]


@functools.cache
def all_built() -> dict[str, Found]:
    found: dict[str, Found] = answer_of("-m", "tests.launch.train.alternating_process")
    return found


def built(cores: int, towers: int) -> Found:
    return all_built()[f"{cores}x{towers}"]


def test_where_devices_alternate_sums_wait_for_every_tower_so_that_none_counts_as_computing() -> None:
    found = built(cores=1, towers=3)["parameter_server"]
    assert (set(found["adds"]), set(found["changes"])) == ({3}, {3})


def test_buffered_gradients_are_reduced_while_the_towers_compute() -> None:
    found = built(cores=1, towers=3)["relaxed"]
    assert (set(found["adds"]), set(found["changes"])) == ({0}, {3})


def test_devices_that_run_at_once_add_gradients_as_they_come_and_change_variables_when_all_are_done() -> None:
    found = built(cores=2, towers=2)["ring"]
    # All but the kernels of dense layers, which nothing reads once the layer before has its gradients.
    assert (set(found["adds"]), set(found["changes"])) == ({0}, {0, 2})


def test_an_independent_tower_changes_its_copy_without_waiting_for_those_that_run_beside_it() -> None:
    assert max(built(cores=2, towers=3)["independent"]["changes"]) == 1
