"""Programs of several hosts: which failure is the first, and when the run is over."""

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.failure import UNREACHABLE
from gputopo.launch.hosts.gathering.messages import End
from gputopo.launch.hosts.gathering.patience import SILENT_S
from gputopo.launch.jobs.hosts.program import Endings, Following, Leading
from gputopo.launch.jobs.program import Ending, Stop
from gputopo.launch.throughput import StepDone
from gputopo.values.run.events import Event, GpuSample, RankFailed, RunFinished, Sample
from tests.launch.hosts.meetings import START, Later, guest, joining, meeting


def failed(rank: int, time_s: float, kind: str = "error") -> RankFailed:
    return RankFailed(
        time_s=time_s, rank=rank, kind=kind, cause=f"{kind} of {rank}", remedy="", exit_code=rank + 1
    )


@given(st.permutations(range(4)), st.lists(st.floats(0, 1e9), min_size=4, max_size=4, unique=True))
def test_the_first_failure_is_the_earliest_in_whatever_order_they_are_heard_of(
    order: list[int], times: list[float]
) -> None:
    endings = Endings(range(4))
    for rank in order:
        endings.ended(rank, failed(rank, times[rank]))
    assert endings.first is not None
    assert endings.first.rank == times.index(min(times))
    assert not endings.running


def test_a_host_that_is_gone_was_gone_before_programs_failed_by_it() -> None:
    endings = Endings(range(3))
    endings.ended(1, failed(1, 103.0))
    endings.ended(2, failed(2, 102.0 + SILENT_S, UNREACHABLE))
    assert endings.first is not None
    assert endings.first.rank == 2


def test_a_host_that_is_gone_after_its_program_has_ended_is_no_failure() -> None:
    endings = Endings(range(2))
    endings.ended(1)
    endings.ended(1, failed(1, 50.0, UNREACHABLE))
    assert endings.first is None
    assert endings.running == {0}


class Run:
    """Rank 0 and a guest whose programs are pretended. `stops`: what would end them."""

    def __init__(self, leading: Leading, following: Following, stops: tuple[Stop, Stop]) -> None:
        self.leading, self.following, self.stops = leading, following, stops
        self.recorded: list[Event] = []


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr("gputopo.launch.jobs.hosts.program.SETTLE_S", 0.2)
    monkeypatch.setattr("gputopo.launch.jobs.program.signal.pthread_kill", lambda *_: None)
    stops = (Stop(), Stop())
    with meeting("n2") as held:
        there = guest(held, 1)
        reply = Later(lambda: there.join(joining(1, "n2")))
        held.wait(10)
        held.answer({1: START})
        reply.result()
        with (
            Leading(held, [0, 1], "n1", "/bin/train", stops[0]) as leading,
            Following(there, "n2", "/bin/train", stops[1]) as following,
        ):
            yield Run(leading, following, stops)


def test_a_program_that_ends_well_is_waited_for_by_the_others_and_to_the_last(run: Run) -> None:
    run.leading.ended(Ending(0))
    threading.Timer(0.3, run.following.ended, [Ending(0)]).start()
    began = time.monotonic()
    assert run.leading.wait() is None
    assert time.monotonic() - began >= 0.25
    assert run.following.wait() is None
    assert run.following.end == End(exit_code=0)
    assert not run.stops[0].asked


def test_the_failure_of_another_host_ends_this_one_and_is_named_with_its_host(run: Run) -> None:
    run.following.ended(Ending(7))
    found = run.leading.wait()
    assert found is not None
    assert (found.cause, found.exit_code) == ("host n2 (rank 1): train ended with exit code 7", 7)
    assert (run.stops[0].asked, run.stops[0].exit_code) == (True, 7)


def test_the_failure_of_rank_0_ends_the_others_and_is_named_with_its_host(run: Run) -> None:
    run.leading.ended(Ending(-9))
    found, theirs = run.leading.wait(), run.following.wait()
    assert found is not None
    assert theirs is not None
    assert found.cause == theirs.cause == "host n1 (rank 0): train was killed by SIGKILL"
    assert (found.exit_code, theirs.exit_code) == (137, 137)
    _until(lambda: run.stops[1].asked)
    assert run.stops[1].exit_code == 137


def test_of_two_failures_the_earlier_one_counts(run: Run) -> None:
    run.following.ended(Ending(5))
    time.sleep(0.05)
    run.leading.ended(Ending(1))
    found = run.leading.wait()
    assert found is not None
    assert found.exit_code == 5


def test_a_program_that_was_asked_to_end_and_did_ends_the_run_without_a_failure(run: Run) -> None:
    run.leading.ended(Ending(0, passed=frozenset({15})))
    assert run.leading.wait() is None
    assert run.following.wait() is None
    _until(lambda: run.stops[1].asked)
    assert run.stops[1].exit_code == 0


def test_a_program_that_hangs_is_a_failure_of_its_host(run: Run) -> None:
    run.following.event(failed(0, time.time(), "hung"))
    run.following.ended(Ending(-15, stopped=3))
    found = run.leading.wait()
    assert found is not None
    assert (found.kind, found.cause) == ("hung", "host n2 (rank 1): hung of 0")


def test_samples_of_other_hosts_are_recorded_and_ends_are_not(run: Run) -> None:
    run.following.event(Sample(time_s=time.time(), gpus=(GpuSample(gpu=3),)))
    run.following.ended(Ending(0))
    run.leading.ended(Ending(0))
    run.leading.wait()
    events = [event for source in run.leading.sources for event in source.take()]
    assert [type(event) for event in events] == [Sample]
    assert events[0].rank == 1
    assert not any(isinstance(event, RunFinished) for event in events)


def test_steps_of_other_hosts_come_to_rank_0_with_their_place_and_before_the_end(run: Run) -> None:
    step = StepDone(pid=5, step=2, seconds=0.5, examples=8)
    now_s = time.time()
    run.following.reported(now_s, step)
    run.following.ended(Ending(0))
    run.leading.ended(Ending(0))
    run.leading.wait()
    assert run.leading.steps is not None
    (came,) = run.leading.steps.take()
    ((time_s, report),) = came.reports
    assert (came.rank, report) == (1, step)
    assert time_s == pytest.approx(now_s, abs=1.0)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds() and time.monotonic() < deadline:
        os.sched_yield()
    assert holds()
