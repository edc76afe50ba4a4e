import contextlib
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gputopo.launch.hosts import HostStart, RendezvousClient, RendezvousServer, RunEnd
from gputopo.values.errors import HardwareError, UsageError
from gputopo.values.run.events import Noticed, RankFailed
from tests.launch.hosts.meetings import (
    LOOPBACK,
    PATIENT,
    PROMPT,
    SECRET,
    START,
    UNUSED,
    Hang,
    Later,
    guest,
    hang_rank_0,
    joining,
    meeting,
    started,
)

OVER = RunEnd(exit_code=0)


def join(of: RendezvousServer, rank: int) -> Later[HostStart | RunEnd]:
    return Later(lambda: guest(of).join(joining(rank)))


def taken(events: Any, number: int) -> list[Any]:
    """Return the next events, in their order."""
    found: list[Any] = []
    while len(found) < number:
        assert select.select([events.ready], [], [], 5)[0], f"only {found} came"
        found += events.take()
    return found


def noticed(says: str) -> Noticed:
    return Noticed(time_s=time.time(), says=says)


def test_hosts_join_are_answered_and_learn_the_end() -> None:
    with meeting("n1", "n2") as one:
        later = {rank: join(one, rank) for rank in (2, 1)}
        brought = one.wait(5)
        assert brought == {1: joining(1), 2: joining(2)}
        one.answer({1: START, 2: UNUSED})
        start = later[1].result()
        assert isinstance(start, HostStart)
        assert bytes(start.spec) == bytes(START.spec)
        assert start.environment == {"A": "b"}
        assert later[2].result() == UNUSED
        one.end(OVER)


def test_events_come_with_their_rank_in_their_order_and_the_end_is_told() -> None:
    with meeting("n1", "n2") as one:
        first, second = started(one, 1, 2)
        for number in range(20):
            first.put(noticed(str(number)))
        second.put(noticed("a"), noticed("b"))
        found = taken(one.events, 22)
        assert [event.says for event in found if event.rank == 1] == [str(number) for number in range(20)]
        assert [event.says for event in found if event.rank == 2] == ["a", "b"]
        one.end(RunEnd(exit_code=3, cause="out of memory", hint="less"))
        for host in (first, second):
            assert select.select([host.ready], [], [], 5)[0]
            assert host.end == RunEnd(exit_code=3, cause="out of memory", hint="less")


def test_the_missing_hosts_are_named_after_the_time_to_join() -> None:
    with meeting("n1", "n2", None) as one:
        later = join(one, 2)
        with pytest.raises(HardwareError) as failed:
            one.wait(0.3)
        assert failed.value.what == "2 of 4 hosts did not join within 0.3 s: n1 (rank 1) and rank 3"
        assert f"port {one.port}" in failed.value.hint
        one.end(RunEnd(exit_code=3, cause=failed.value.what, hint="start them"))
    assert later.result() == RunEnd(cause=failed.value.what, hint="start them", exit_code=3)


def test_a_refused_host_hears_why_and_rank_0_does_too_at_once() -> None:
    with meeting("n1", asked={"--batch-size": 64}) as one:
        refused = guest(one).join(joining(1, asked={"--batch-size": 32}))
        said = "--batch-size is 32 on n1 (rank 1), 64 on rank 0"
        assert refused == RunEnd(cause=said, hint="start all hosts with the same options", exit_code=2)
        with pytest.raises(UsageError, match=re.escape(said)):
            one.wait(60)


def test_a_host_that_cannot_join_is_the_reason_at_once_whoever_else_is_missing() -> None:
    with meeting("n1", "n2", "n3") as one:
        unable = RunEnd(exit_code=3, cause="no disk", hint="mount it")
        excused = Later(lambda: guest(one).join(joining(2, unable=unable)))
        with pytest.raises(HardwareError) as failed:
            one.wait(60)
    assert excused.result() == unable
    assert (failed.value.what, failed.value.hint) == ("host n2 (rank 2): no disk", "mount it")


def test_the_reason_of_a_host_comes_before_its_silence_and_one_that_lives_is_not_named() -> None:
    died = RankFailed(time_s=time.time(), kind="killed", cause="its server died", remedy="", exit_code=137)
    hang = Hang()
    with meeting("n1", "n2", "n3") as one:
        first, lives, _ = started(one, 1, 2, 3, clock=hang)
        first.put(died)
        found = taken(one.events, 1)
        hang.begin()
        found += taken(one.events, 1)
        assert [(event.rank, event.kind, event.cause) for event in found] == [
            (1, "killed", "host n1 (rank 1): its server died"),
            (3, "unreachable", "host n3 (rank 3) no longer answers"),
        ]
        one.end(OVER)
        assert lives.end == OVER


def absence(one: RendezvousServer) -> str:
    """Return what rank 0 says of the hosts that are missing now."""
    with pytest.raises(HardwareError) as failed:
        one.wait(0)
    return failed.value.what


def test_a_host_that_ends_before_it_is_answered_is_missing_and_may_be_started_again() -> None:
    with meeting("n1", None) as one:
        its = RendezvousClient(LOOPBACK, one.port, SECRET, patience=replace(PROMPT, silent_s=0.01))
        with pytest.raises(HardwareError, match="has not answered"):
            its.join(joining(1))
        until(lambda: "n1 (rank 1) joined and closed the connection" in absence(one))
        later = join(one, 1)
        until(lambda: "n1" not in absence(one))
    later.result()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UsageError("no plan", "fewer GPUs"), RunEnd(cause="no plan", hint="fewer GPUs", exit_code=2)),
        (KeyboardInterrupt(), RunEnd(cause="rank 0 has ended", hint="see its output", exit_code=130)),
    ],
)
def test_waiting_hosts_are_told_the_error_and_the_exit_code_of_rank_0(
    error: BaseException, told: RunEnd
) -> None:
    with contextlib.suppress(type(error)), meeting("n1") as one:
        later = join(one, 1)
        one.wait(5)
        raise error
    assert later.result() == told


@pytest.mark.parametrize("stopped", ["rank 0", "host"])
def test_a_time_in_which_a_process_was_stopped_itself_is_no_silence_of_the_other(stopped: str) -> None:
    at_rank_0, at_host = (PROMPT, PATIENT) if stopped == "rank 0" else (PATIENT, PROMPT)
    hang, never = Hang(), Hang()
    with meeting("n1", patience=at_rank_0, note=hang) as one:
        (its,) = started(one, 1, patience=at_host, clock=hang if stopped == "host" else never)
        if stopped == "host":
            hang.begin()
        else:
            hang_rank_0(one, hang)
        its.put(noticed("well"))
        assert [event.says for event in taken(one.events, 1)] == ["well"]
        one.end(OVER)
        assert its.end == OVER


def test_hosts_that_left_while_rank_0_was_stopped_are_not_the_cause() -> None:
    hang = Hang()
    with meeting("n1", note=hang) as one:
        (its,) = started(one, 1)
        hang_rank_0(one, hang)
        its.outlast()
        failed, *_ = taken(one.events, 1)
        assert failed.rank == 0
        assert "host 127.0.0.1 (rank 0) was silent" in failed.cause
        one.end(OVER)


def test_nothing_is_left_of_a_meeting() -> None:
    with meeting("n1") as one:
        one.end(OVER)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(one.events.ready)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, one.port))
    assert "rendezvous" not in {thread.name for thread in threading.enumerate()}


def until(so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 5
    while not so():
        assert time.monotonic() < end_s
        time.sleep(0.005)
