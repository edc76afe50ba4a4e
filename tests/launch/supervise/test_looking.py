from collections.abc import Callable

from gputopo.launch.supervise.looking import Looks
from gputopo.runs.live import Window, judged
from gputopo.runs.verdict.judge import Judgement
from gputopo.values.run.events import Anomaly, Event, Fewer, Judged, Noticed, Restarted, RunStarted
from tests.runs.verdict.drills import Trainer, always

EVENTS = list(Trainer(slow={1: always(15)}, seed=1).events(200))


def clock() -> Callable[[], float]:
    seconds = iter(range(1_000_000))
    return lambda: float(next(seconds))


def found_by(looks: Looks) -> list[Event]:
    return [found for event in EVENTS for found in looks.add(event)]


def test_what_a_look_finds_comes_with_a_later_event() -> None:
    found = found_by(Looks(clock=clock(), start=lambda work: work()))
    assert isinstance(found[0], Judged)
    assert [type(one) for one in found].count(Anomaly) == 1


def test_events_go_on_while_a_look_has_not_ended() -> None:
    waiting: list[Callable[[], None]] = []
    looks = Looks(clock=clock(), start=waiting.append)
    assert found_by(looks) == []
    (work,) = waiting  # no second look beside it
    work()
    assert [type(one) for one in looks.add(EVENTS[-1])] == [Judged]


def test_a_fault_in_judging_ends_the_looks_with_a_notice() -> None:
    def broken(window: Window) -> Judgement:
        judged(window)
        raise ZeroDivisionError("oh")

    (notice,) = found_by(Looks(judge=broken, clock=clock(), start=lambda work: work()))
    assert isinstance(notice, Noticed)
    assert (
        notice.says == "Slow devices are looked for at the end only: judging failed (ZeroDivisionError: oh)."
    )


def test_what_was_found_of_other_devices_is_forgotten() -> None:
    waiting: list[Callable[[], None]] = []
    looks = Looks(clock=clock(), start=waiting.append)
    found_by(looks)
    started = EVENTS[0]
    assert isinstance(started, RunStarted)
    fewer = Fewer(
        lost=("n1",), spec=started.spec, devices=started.devices[:1], batch_before=8, rate_before=0.1
    )
    looks.add(Restarted(time_s=0.0, number=1, of=1, cause="c", steps=0, fewer=fewer))
    (work,) = waiting
    work()
    assert looks.add(EVENTS[-1]) == ()
