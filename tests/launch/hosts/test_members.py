from typing import Any

import msgspec
import pytest

from gputopo.launch.hosts import HostAddress, HostStart, Members, Report, RunEnd, read_hosts
from gputopo.values.run.events import HostLoad, Noticed, RankFailed, Sample
from tests.launch.hosts.meetings import UNUSED, joining

AT = "10.0.0.9"
SILENT, LEFT = "no longer answers", "closed the connection"  # how a connection ended
RANK_0 = HostAddress("n0", 2222)
noted: list[str] = []  # by the hosts of `members`
START = HostStart(spec=msgspec.Raw(b"{}"), place=1)
KILLED = RankFailed(time_s=5.0, kind="killed", cause="it was killed", remedy="", exit_code=137)


def members(*others: str | None, job: str | None = None, **asked: Any) -> Members:
    noted.clear()
    names = ["n0", *others]
    return Members(names, RANK_0, job=job, asked=asked, note=noted.append)


def sent(_: bytes) -> None:
    pass


def training(*ranks: int, **places: int) -> Members:
    """Hosts n1, n2, ... that have joined and train."""
    one = members(*(f"n{rank}" for rank in ranks))
    for rank in ranks:
        joined = one.join(joining(rank), sent, AT)
        assert not isinstance(joined, RunEnd)
        joined.answer(msgspec.structs.replace(START, place=places.get(f"n{rank}", rank)))
    return one


def take(at: Members, rank: int, *events: Any, later_s: float = 0.0) -> list[Any]:
    report = Report(sent_s=0.0, events=events)
    return at.take(at.joined[rank], report, later_s=later_s)


def test_eight_hosts_outside_of_the_training_are_named_once_each() -> None:
    one = members("n1")
    for number in (*range(9), 0):
        one.note_stranger(f"10.0.0.{number}", "it is of another job")
    assert len(one.strangers) == len(noted) == 8


def refusal(of: object) -> str:
    assert isinstance(of, RunEnd)
    return str(of.cause)


def absence(of: Members, waited: str = "") -> str:
    return of.absence(waited, "").what


@pytest.mark.parametrize(
    ("mine", "its", "said"),
    [
        ("7", "8", "n1 (rank 1) belongs to job 8, rank 0 to job 7"),
        (None, "8", "n1 (rank 1) belongs to job 8, rank 0 to the run at n0:2222"),
    ],
)
def test_a_host_of_another_job_is_refused_and_waited_for(
    mine: str | None, its: str | None, said: str
) -> None:
    one = members("n1", job=mine)
    for unable in (None, UNUSED):
        assert refusal(one.join(joining(1, job=its, unable=unable), sent, AT)) == said
    assert not one.is_decided()
    assert noted == [f"a host at 10.0.0.9 was refused: {said}"]
    assert absence(one).endswith(f"; {noted[0]}")


@pytest.mark.parametrize("meant", ["n0.site:2222", "10.0.0.1:2222"])
def test_a_host_that_was_started_for_this_rank_0_may_know_it_by_another_name(meant: str) -> None:
    (leader,) = read_hosts("it", meant)
    assert not isinstance(members("n1").join(joining(1, leader=leader), sent, AT), RunEnd)
    (other,) = read_hosts("it", "n7:2222")
    said = refusal(members("n1").join(joining(1, leader=other), sent, AT))
    assert said == "n1 (rank 1) belongs to the run at n7:2222, rank 0 to the run at n0:2222"


@pytest.mark.parametrize("meant", ["n7:2222", "n0:2223"])
def test_a_host_of_another_run_of_the_same_user_is_refused_where_no_job_tells_them_apart(meant: str) -> None:
    (leader,) = read_hosts("it", meant)
    one = members("n1")
    said = refusal(one.join(joining(1, leader=leader), sent, AT))
    assert said == f"n1 (rank 1) belongs to the run at {meant}, rank 0 to the run at n0:2222"
    assert one.missing() == (1,)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_is_none_of_the_others_is_refused(rank: int) -> None:
    one = members("n1")
    assert "rank 0 waits for ranks 1 to 1" in refusal(one.join(joining(rank, "x"), sent, AT))
    assert one.missing() == (1,)


def test_another_host_may_not_have_the_rank_of_one_that_has_joined() -> None:
    one = members("n1")
    one.join(joining(1), sent, AT)
    said = refusal(one.join(joining(1, "n9"), sent, AT))
    assert said == "n9 (rank 1) cannot join: that rank has joined already, from n1"
    one.join(joining(1, "n9", unable=RunEnd(exit_code=3, cause="no disk")), sent, AT)
    assert one.unable is None
    assert one.joined[1].joining.name == "n1"


def test_a_host_that_was_started_again_replaces_the_one_that_was_lost() -> None:
    one = members("n1")
    one.join(joining(1, port=4000), sent, AT)
    assert isinstance(one.join(joining(1, port=5000), sent, AT), RunEnd)
    assert one.lose(one.joined[1], SILENT, 0.0) == []
    assert one.missing() == (1,)
    assert f"n1 (rank 1) joined and {SILENT}" in absence(one)
    assert not isinstance(one.join(joining(1, port=5000), sent, AT), RunEnd)
    assert one.missing() == ()
    assert one.joined[1].joining.port == 5000


def test_a_started_host_that_leaves_or_is_silent_fails_and_one_that_was_told_the_end_does_not() -> None:
    one = training(1, 2, 3)
    (failed,) = one.lose(one.joined[1], LEFT, 0.0)
    assert (failed.rank, failed.cause, failed.exit_code) == (1, "host n1 (rank 1) closed the connection", 3)
    one.joined[2].end(RunEnd(exit_code=0))
    assert one.lose(one.joined[2], LEFT, 0.0) == []
    assert not one.are_gone()
    (failed,) = one.lose(one.joined[3], SILENT, 0.0)
    assert (failed.rank, failed.cause) == (3, "host n3 (rank 3) no longer answers")
    assert one.are_gone()


@pytest.mark.parametrize(
    ("ours", "its", "said", "hint"),
    [
        ({"--batch-size": 64}, {"--batch-size": 32}, "--batch-size is 32", "same options"),
        ({"--num-gpus": 2}, {}, "--num-gpus is not given", "same options"),
        ({"TensorFlow": "2.21.0"}, {"TensorFlow": "2.20.0"}, "TensorFlow is '2.20.0'", "same versions"),
    ],
)
def test_what_is_not_alike_is_refused_with_both_values_and_ends_the_wait_for_all(
    ours: dict[str, Any], its: dict[str, Any], said: str, hint: str
) -> None:
    one = members("n1", "n2", **ours)
    refused = one.join(joining(1, asked=its), sent, AT)
    name = said.partition(" ")[0]
    value = repr(ours[name]) if name in ours else "not given"
    assert refusal(refused) == f"{said} on n1 (rank 1), {value} on rank 0"
    assert isinstance(refused, RunEnd)
    assert hint in refused.hint
    assert one.is_decided()
    assert (one.unable and one.unable.what, noted) == (refused.cause, [])


def test_a_failure_of_its_own_stays_the_only_one_of_a_host() -> None:
    one = training(1)
    (event,) = take(one, 1, KILLED)
    assert event == msgspec.structs.replace(KILLED, rank=1, cause="host n1 (rank 1): it was killed")
    assert one.lose(one.joined[1], LEFT, 0.0) == []


def test_times_of_a_host_are_turned_into_those_of_rank_0() -> None:
    one = training(1)
    sample = Sample(time_s=50.0, gpus=(), host=HostLoad(time_s=49.0, seconds=2.0))
    (taken,) = take(one, 1, sample, later_s=-20.0)
    assert taken == Sample(time_s=30.0, rank=1, gpus=(), host=HostLoad(time_s=29.0, seconds=2.0))


def test_a_report_that_took_long_on_its_way_does_not_set_the_clock_until_all_do() -> None:
    one = training(1)
    delays = [-19.998, -19.0, *[-15.0] * 60]
    taken = [take(one, 1, Noticed(time_s=50.0, says=""), later_s=later_s) for later_s in delays]
    times = [each.time_s for some in taken for each in some if isinstance(each, Noticed)]
    assert (times[:3], times[-1]) == ([50 - 19.998] * 3, 35.0)


def test_samples_have_the_rank_of_their_host_among_those_that_train() -> None:
    one = training(1, 2, n2=1)
    taken = take(one, 2, Sample(time_s=0.0, gpus=()), Noticed(time_s=0.0, says=""), later_s=2.0)
    assert [event.rank for event in taken] == [1, 2]
