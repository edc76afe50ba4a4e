"""Which failure of a run counts, and which are forgotten because another worker goes on."""

import pytest

from gputopo.launch.supervise.record import Record
from gputopo.values.run.events import Event, RankFailed, Step


def failed(kind: str, rank: int = 0) -> RankFailed:
    return RankFailed(time_s=0.0, rank=rank, kind=kind, cause=kind, remedy="", exit_code=3)


def record(written: list[Event], *, steps: int = 1) -> Record:
    """A run that goes on after a worker was killed, or a host lost."""
    found = Record(None, written.append, may_restart=lambda one: one.kind in ("killed", "unreachable"))
    for number in range(1, steps + 1):
        found.add(Step(time_s=0.0, step=number, seconds=0.1, images=8, loss=1.0, marks=()))
    return found


def test_a_signal_counts_also_after_a_failure_that_came_just_before() -> None:
    written: list[Event] = []
    one = record(written)
    one.add(failed("unreachable", rank=1))
    one.add(failed("terminated", rank=2))  # another host, which gets the signals of its own
    assert one.failure == failed("unreachable", rank=1)
    one.add(failed("terminated"))
    assert one.failure == failed("terminated")
    assert one.restartable is None
    one.release()
    assert [event for event in written if isinstance(event, RankFailed)] == [failed("terminated")]


@pytest.mark.parametrize(("rank", "again"), [(0, False), (1, True)])
def test_a_host_may_be_lost_before_the_worker_of_a_restart_has_taken_a_step(rank: int, again: bool) -> None:
    one = record([])
    one.add(failed("killed"))
    assert one.restartable is not None
    one.restart()
    one.add(failed("killed", rank))
    assert (one.restartable is not None) == again


def test_no_host_may_be_lost_before_the_first_step_of_a_run() -> None:
    one = record([], steps=0)
    one.add(failed("unreachable", rank=1))
    assert one.restartable is None
