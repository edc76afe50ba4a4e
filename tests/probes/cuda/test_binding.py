"""Binding the measuring thread."""

import os

import pytest

from gputopo.probes.cuda.binding import bound_to

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no CPU affinity here")


def test_the_thread_is_bound_and_set_free_again() -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    with bound_to([one, 100_000]) as bound:
        assert bound
        assert os.sched_getaffinity(0) == {one}
    assert os.sched_getaffinity(0) == before


def test_it_is_set_free_after_an_error() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(RuntimeError), bound_to([min(before)]):
        raise RuntimeError
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("cpus", [None, (), (100_000,)])
def test_nothing_is_changed_where_there_is_nothing_to_bind_to(cpus: tuple[int, ...] | None) -> None:
    before = os.sched_getaffinity(0)
    with bound_to(cpus) as bound:
        assert not bound
        assert os.sched_getaffinity(0) == before
