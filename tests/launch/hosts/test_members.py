from typing import Any

import msgspec
import pytest

from gputopo.launch.hosts.members import CLOCK_REPORTS, Member, Members
from gputopo.launch.hosts.messages import (
    HostEvent,
    HostStart,
    HostTimeouts,
    Refused,
    RunEnd,
    Silence,
    Unused,
)
from gputopo.launch.throughput import StepDone, StepsEnded
from gputopo.launch.user_program.steps import StepsReported
from gputopo.values.run.events import HostLoad, Noticed, RankFailed, Sample
from tests.launch.hosts.meetings import joining


def test_silence_adds_up_from_the_last_word() -> None:
    silence = Silence(100.0, expected_s=1.0)
    assert silence.look(100.5) == 0.5
    assert silence.look(101.0) == 1.0
    silence.heard(101.5)
    assert silence.look(101.75) == 0.25


def test_a_time_in_which_this_host_was_stopped_is_no_silence_of_the_other() -> None:
    silence = Silence(100.0, expected_s=1.0)
    silence.look(100.5)
    assert silence.look(3700.0) == 1.5


PATIENCE = HostTimeouts(silent_s=10.0, look_s=0.25)
START = HostStart(spec=msgspec.Raw(b"{}"))


def members(*others: str | None, job: str | None = None, **asked: Any) -> Members:
    return Members(["n0", *others], job=job, asked=asked, patience=PATIENCE, note=lambda line: None)


def look(at: Members, *, until_s: float, from_s: float = 0.0) -> list[RankFailed]:
    """Look four times a second, the other hosts being silent."""
    times = range(int(from_s * 4) + 1, int(until_s * 4) + 1)
    return [failed for time in times for failed in at.look(time / 4, 1000.0 + time / 4)]


def refusal(of: Member | Refused) -> str:
    assert isinstance(of, Refused)
    return of.what


def test_a_host_is_missing_until_it_joins() -> None:
    one = members("n1", None, "n3")
    assert one.missing() == (1, 2, 3)
    assert isinstance(one.join(joining(2), 0.0), Member)
    assert one.missing() == (1, 3)
    assert one.absence(" within 60 s") == "2 of 4 hosts did not join within 60 s: n1 (rank 1) and n3 (rank 3)"


@pytest.mark.parametrize(
    ("mine", "its", "said"),
    [
        ("7", "8", "n1 (rank 1) belongs to job 8, rank 0 to job 7"),
        ("7", None, "n1 (rank 1) belongs to no job, rank 0 to job 7"),
        (None, "8", "n1 (rank 1) belongs to job 8, rank 0 to no job"),
    ],
)
def test_a_host_of_another_job_is_refused_and_waited_for(
    mine: str | None, its: str | None, said: str
) -> None:
    one = members("n1", job=mine)
    assert refusal(one.join(joining(1, job=its), 0.0)) == said
    assert not one.is_decided()
    assert one.absence("").endswith(f"; refused besides: {said}")


@pytest.mark.parametrize("rank", [-1, 0, 2, 10**30])
def test_a_rank_that_is_none_of_the_others_is_refused(rank: int) -> None:
    one = members("n1")
    assert "rank 0 waits for ranks 1 to 1" in refusal(one.join(joining(rank, "x"), 0.0))
    assert one.missing() == (1,)


def test_another_host_may_not_have_the_rank_of_one_that_has_joined() -> None:
    one = members("n1")
    one.join(joining(1), 0.0)
    said = refusal(one.join(joining(1, "n9"), 2.0))
    assert said == "n9 (rank 1) cannot join: that rank has joined already, from n1"
    assert one.joined[1].joining.name == "n1"


@pytest.mark.parametrize(("gone", "says"), [(False, "no longer answers"), (True, "closed the connection")])
def test_a_host_that_was_started_again_replaces_the_one_that_was_lost(gone: bool, says: str) -> None:
    one = members("n1")
    one.join(joining(1, port=4000), 0.0)
    assert isinstance(one.join(joining(1, port=5000), 5.0), Refused)
    one.joined[1].is_gone = gone
    look(one, until_s=5.0 if gone else 11.0)
    assert one.missing() == (1,)
    assert f"n1 (rank 1) joined and {says}" in one.absence("")
    assert isinstance(one.join(joining(1, port=5000), 11.0), Member)
    assert one.missing() == ()
    assert one.joined[1].joining.port == 5000


def test_a_started_host_whose_connection_ends_fails_at_once_and_once() -> None:
    one = training(1, 2)
    one.joined[1].is_gone = True
    (failed,) = look(one, until_s=0.5)
    assert (failed.rank, failed.cause) == (1, "host n1 (rank 1) closed the connection")
    one.joined[2].has_last = one.joined[2].is_gone = True
    assert look(one, from_s=0.5, until_s=1.0) == []
    assert one.lost() == {1: "host n1 (rank 1) closed the connection"}


def test_an_option_that_differs_from_rank_0_is_refused_and_nobody_waits_any_more() -> None:
    one = members("n1", batch_size=64, gpus=(0, 1))
    its = {"batch_size": 32, "gpus": [0, 1]}
    said = "--batch-size is 32 on n1 (rank 1), 64 on rank 0"
    assert refusal(one.join(joining(1, asked=its), 0.0)) == said
    assert one.is_decided()
    assert one.absence("") == f"1 of 2 hosts did not join: n1 (rank 1); {said}"


def test_a_started_host_that_falls_silent_fails_once() -> None:
    one = members("n1", "n2", "n3")
    for rank in (1, 2, 3):
        one.join(joining(rank), 0.0)
    one.joined[1].reply, one.joined[2].reply, one.joined[3].reply = START, START, Unused(why="enough GPUs")
    assert look(one, until_s=6.0) == []
    one.joined[1].silence.heard(6.0)
    (failed,) = look(one, from_s=6.0, until_s=12.0)
    assert (failed.rank, failed.cause) == (2, "host n2 (rank 2) no longer answers")
    assert (failed.time_s, failed.exit_code) == (1010.0, 3)
    assert [each.rank for each in look(one, from_s=12.0, until_s=60.0)] == [1]


def test_a_host_that_has_its_last_answer_may_be_silent() -> None:
    one = members("n1", "n2")
    for rank in (1, 2):
        one.join(joining(rank), 0.0)
        one.joined[rank].reply = START
    one.joined[1].has_last = True
    assert [failed.rank for failed in look(one, until_s=PATIENCE.silent_s)] == [2]
    assert one.joined[1].failure is None


def test_no_host_fails_by_a_time_in_which_rank_0_was_stopped() -> None:
    one = members("n1")
    one.join(joining(1), 0.0)
    one.joined[1].reply = START
    assert list(one.look(3600.0, 0.0)) == []


def test_a_failure_of_its_own_stays_the_only_one_of_a_host() -> None:
    one = members("n1")
    one.join(joining(1), 0.0)
    one.joined[1].reply = START
    own = RankFailed(
        time_s=5.0, kind="killed", cause="its server was ended by SIGKILL", remedy="", exit_code=137
    )
    (event,) = one.take(1, [own], later_s=0.0)
    assert event == RankFailed(
        time_s=5.0,
        rank=1,
        kind="killed",
        cause="host n1 (rank 1): its server was ended by SIGKILL",
        remedy="",
        exit_code=137,
    )
    assert look(one, until_s=60.0) == []


def test_times_of_a_host_are_turned_into_those_of_rank_0() -> None:
    one = members("n1")
    one.join(joining(1), 0.0)
    sample = Sample(time_s=50.0, gpus=(), host=HostLoad(time_s=49.0, seconds=2.0))
    (taken,) = one.take(1, [sample], later_s=-20.0)
    assert taken == Sample(time_s=30.0, rank=1, gpus=(), host=HostLoad(time_s=29.0, seconds=2.0))


def test_a_report_that_took_long_on_its_way_does_not_set_the_clock_until_all_do() -> None:
    one = members("n1")
    one.join(joining(1), 0.0)
    delays = [-19.998, -19.0, *[-15.0] * CLOCK_REPORTS]
    taken = [one.take(1, [Noticed(time_s=50.0, says="")], later_s=later_s) for later_s in delays]
    times = [each.time_s for some in taken for each in some if isinstance(each, Noticed)]
    assert (times[:3], times[-1]) == ([50 - 19.998] * 3, 35.0)


def test_samples_and_steps_have_the_rank_of_their_host_among_those_that_train() -> None:
    one = members("n1", "n2")
    one.join(joining(2), 0.0)
    one.joined[2].reply = msgspec.structs.replace(START, place=1)
    step = StepDone(pid=7, step=1, seconds=0.5, examples=8)
    events: list[HostEvent] = [
        Sample(time_s=0.0, gpus=()),
        Noticed(time_s=0.0, says=""),
        StepsReported(reports=((3.0, step), (4.0, StepsEnded(pid=7)))),
    ]
    taken = one.take(2, events, later_s=2.0)
    assert [event.rank for event in taken] == [1, 2, 1]
    assert taken[2] == StepsReported(rank=1, reports=((5.0, step), (6.0, StepsEnded(pid=7))))


def training(*ranks: int, **places: int) -> Members:
    """Hosts n1, n2, ... that have joined and train."""
    one = members(*(f"n{rank}" for rank in ranks))
    for rank in ranks:
        one.join(joining(rank), 0.0)
        one.joined[rank].reply = msgspec.structs.replace(START, place=places.get(f"n{rank}"))
    return one


def fail(at: Members, rank: int) -> None:
    at.take(
        rank,
        [RankFailed(time_s=0.0, kind="killed", cause="it was killed", remedy="", exit_code=3)],
        later_s=0.0,
    )


def test_lost_are_the_started_hosts_that_failed_or_fell_silent_by_their_ranks_in_the_training() -> None:
    one = training(1, 2, 3, n2=1, n3=2)
    one.joined[1].reply = Unused(why="")
    assert one.lost() == {}
    fail(one, 3)
    assert one.lost() == {2: "host n3 (rank 3): it was killed"}
    look(one, until_s=12.0)
    assert one.lost() == {1: "host n2 (rank 2) no longer answers", 2: "host n3 (rank 3): it was killed"}


def test_hosts_that_are_left_get_another_start_until_they_serve_by_it_and_lost_ones_the_end() -> None:
    one = training(1, 2, n2=1)
    fail(one, 1)
    assert one.serving()
    one.start_again(b'{"steps":7}')
    lost, left = one.joined[1], one.joined[2]
    (end,) = lost.outbox
    assert isinstance(end, RunEnd)
    assert end.cause == "the training goes on without this host: it was killed"
    assert not one.serving()
    (start,) = left.outbox
    assert isinstance(start, HostStart)
    assert (bytes(start.spec), start.number, start.place) == (b'{"steps":7}', 1, 1)
    assert start.environment == START.environment
    left.serves = 1
    assert one.serving()
    one.start_again(b"{}")
    assert left.start is not None
    assert left.start.number == 2
    assert len(lost.outbox) == 1


def test_who_does_not_serve_in_time_is_given_up() -> None:
    one = training(1, 2)
    one.start_again(b"{}")
    one.joined[1].serves = 1
    one.give_up("did not start its server again within 60 s")
    assert one.lost() == {2: "host n2 (rank 2): it did not start its server again within 60 s"}
    assert one.serving()


def test_a_host_that_was_lost_is_not_taken_in_again() -> None:
    one = training(1, 2)
    look(one, until_s=12.0)
    one.joined[1].silence.heard(12.0)
    one.start_again(b"{}")
    refused = one.join(joining(1), 13.0)
    assert refusal(refused) == (
        "n1 (rank 1) cannot join: the training has lost this host, and goes on without it"
    )
    assert isinstance(refused, Refused)
    assert "--resume" in refused.hint
