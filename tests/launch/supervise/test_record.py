"""Which failure of a run counts, and which are forgotten because another worker goes on."""

from collections.abc import Callable

from gputopo.launch.supervise import Looks, Record
from gputopo.runs import Judgement, Summary
from gputopo.values.run.events import (
    NCCL_TEST,
    Anomaly,
    Event,
    Judged,
    Noticed,
    PhaseBegun,
    RankFailed,
    Step,
)
from tests.kit.drills.box import Trainer, slower

EVENTS = list(Trainer(slow={1: slower(15)}, seed=1).events(200))


def clock() -> Callable[[], float]:
    seconds = iter(range(1_000_000))
    return lambda: float(next(seconds))


def found_by(looks: Looks, summary: Summary) -> list[Event]:
    found: list[Event] = []
    for event in EVENTS:
        summary.add(event)
        found += looks.add(event)
    return found


def test_what_a_look_finds_comes_with_a_later_event() -> None:
    summary = Summary()
    found = found_by(Looks(summary, clock=clock(), start=lambda work: work()), summary)
    assert isinstance(found[0], Judged)
    assert [type(one) for one in found].count(Anomaly) == 1


def test_events_go_on_while_a_look_has_not_ended() -> None:
    waiting: list[Callable[[], None]] = []
    looks = Looks(summary := Summary(), clock=clock(), start=waiting.append)
    assert found_by(looks, summary) == []
    (work,) = waiting  # no second look beside it
    work()
    assert [type(one) for one in looks.add(EVENTS[-1])] == [Judged]


def test_a_fault_in_judging_ends_the_looks_with_a_notice() -> None:
    class Broken(Summary):
        def latest(self) -> Callable[[], Judgement]:
            def look() -> Judgement:
                raise ZeroDivisionError("oh")

            return look

    summary = Broken()
    (notice,) = found_by(Looks(summary, clock=clock(), start=lambda work: work()), summary)
    assert isinstance(notice, Noticed)
    assert (
        notice.says
        == "Slow devices are only searched at the end, because judging failed (ZeroDivisionError: "
        "oh)."
    )


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


def test_a_signal_just_after_nccl_has_failed_ends_the_run() -> None:
    written: list[Event] = []
    one = Record(None, written.append, may_replan=lambda found, phase: phase == NCCL_TEST)
    one.add(PhaseBegun(time_s=0.0, phase=NCCL_TEST))
    one.add(failed("hung"))
    assert one.replannable == failed("hung")
    one.add(failed("interrupted"))
    one.release()
    assert written[1:] == [failed("interrupted")]


def test_a_worker_after_one_whose_nccl_failed_is_not_in_that_test() -> None:
    one = Record(None, lambda event: None, may_replan=lambda found, phase: phase == NCCL_TEST)
    one.add(PhaseBegun(time_s=0.0, phase=NCCL_TEST))
    one.add(failed("hung"))
    one.restart()
    one.add(failed("hung"))
    assert one.replannable is None
