from collections.abc import Iterator

import pytest

from gputopo.runs import Judgement, RecentSteps, Reports, Summary
from gputopo.values.run.bounded import RECENT_STEPS
from gputopo.values.run.events import Anomaly, AnomalyOver, Event, Judged
from gputopo.values.run.verdict import Cause, Causes, Verdict
from tests.invented_runs import BEGAN_S, gpu_devices
from tests.kit.drills.box import Trainer, slower


def reported(trainer: Trainer, steps: int) -> Iterator[tuple[int, Event]]:
    """What all looks report, each with its step, and at 0 what the end adds."""
    reports, summary = Reports(), Summary()
    recent = RecentSteps(summary)
    for number, event in enumerate(trainer.events(steps)):
        summary.add(event)
        recent.add(event)
        if recent.is_due(now := 0.1 * number):
            judge, step = recent.take(now)
            yield from ((step, one) for one in reports.look(judge(), step, now))
    yield from ((0, one) for one in reports.end(summary.judgement(), BEGAN_S))


def test_a_slow_device_is_reported_once_within_100_steps_and_the_end_adds_nothing() -> None:
    found = list(reported(Trainer(slow={1: slower(8)}, seed=1), 200))
    ((step, anomaly),) = ((step, event) for step, event in found if isinstance(event, Anomaly))
    assert step <= 100
    assert (anomaly.tower, anomaly.gpu, anomaly.part) == (1, 1, "compute")
    words = [
        [one.word for one in event.devices if one.tower == 1]
        for _, event in found
        if isinstance(event, Judged)
    ]
    assert words[0] == ["cannot tell"]  # one look proves nothing
    assert set(map(tuple, words[3:])) == {("slow",)}


def test_what_becomes_slow_and_even_again_late_in_a_long_run_is_reported_once_each() -> None:
    slow_then = {1: lambda step: 1 / 0.9 if 300 <= step < 400 else 1.0}
    trainer = Trainer(devices=gpu_devices(2), slow=slow_then, seed=2)
    changes = [(step, one) for step, one in reported(trainer, 540) if isinstance(one, Anomaly | AnomalyOver)]
    (slow_at, slow), (over_at, over) = changes
    assert isinstance(slow, Anomaly)
    assert "slower than its peers since about step" in slow.says
    assert 300 < slow_at <= 400
    assert isinstance(over, AnomalyOver)
    assert over.says.startswith("GPU 1 is no longer slower than its peers since about step ")
    assert 400 < over_at <= 540


def test_an_even_run_reports_nothing_but_that() -> None:
    found = [event for _, event in reported(Trainer(seed=3), 200)]
    assert all(isinstance(event, Judged) for event in found)
    last = found[-1]
    assert isinstance(last, Judged)
    assert {one.word for one in last.devices} == {"even"}
    assert all(one.percent is not None and one.percent < 2 for one in last.devices)


def slow(cause: str | None = None, word: str = "slow") -> Judgement:
    found = (
        Causes(says="", found=(Cause(id=cause, says="", how="", percent=9, percent_low=0, percent_high=9),))
        if cause
        else None
    )
    verdict = Verdict(
        word=word,
        says="It is.",
        tower=1,
        gpu=1,
        part="compute",
        percent_under=10.0,
        percent_under_low=9.0,
        causes=found,
    )
    return Judgement(devices=(verdict,))


@pytest.mark.parametrize(
    ("looks", "causes"),
    [
        ("p", []),
        ("pc", ["c"]),  # it is slow in both looks
        ("ppcp", ["p"]),  # another cause is reported from the second look on
        ("ppcc", ["p", "c"]),
    ],
)
def test_a_device_is_reported_from_the_second_look_on_and_again_with_another_cause(
    looks: str, causes: list[str]
) -> None:
    reports = Reports()
    found = [
        event
        for number, look in enumerate(looks)
        for event in reports.look(slow(word="cannot tell") if look == "?" else slow(look), number, 0.0)
        if isinstance(event, Anomaly)
    ]
    assert [event.causes.found[0].id for event in found if event.causes] == causes


def test_the_end_reports_what_no_look_did_and_takes_back_what_is_not_so_over_all_steps() -> None:
    reports = Reports()
    (event,) = reports.end(slow(), 0.0)
    assert isinstance(event, Anomaly)
    for number in range(2):
        reports.look(slow(), number, 0.0)
    assert reports.end(slow(), 0.0) == ()
    (over,) = reports.end(slow(word="even"), 0.0)
    assert isinstance(over, AnomalyOver)
    assert over.says == "Over all steps: It is."


def test_a_look_judges_the_recent_steps_and_the_host_while_they_were_made() -> None:
    slow_first = {1: lambda step: 1.3 if step <= 600 else 1.0}
    trainer = Trainer(slow=slow_first, other_cpu=lambda step: 0.95 if step <= 600 else 0.0, seed=4)
    summary = Summary()
    for event in trainer.events(600 + RECENT_STEPS):
        summary.add(event)
    recent = summary.latest()()
    assert [one.word for one in recent.devices] == ["even"] * 4
    assert recent.devices[1].steps == RECENT_STEPS
    assert recent.host is not None
    assert recent.host.samples == RECENT_STEPS // 5
    assert recent.host.other_cpu_share == 0
    assert summary.judgement().devices[1].steps > RECENT_STEPS


def test_a_dear_look_is_not_made_as_often() -> None:
    recent = RecentSteps(summary := Summary())
    events = iter(Trainer(seed=5).events(500))
    for _ in range(100):
        summary.add(event := next(events))
        recent.add(event)
    assert recent.is_due(0.0)
    recent.take(0.0)
    assert not recent.is_due(20.0)  # no new steps
    for event in events:
        recent.add(event)
    assert recent.is_due(2.0)
    recent.took(1.0, seconds=0.15)  # 0.5% of 30 s
    assert not recent.is_due(30.0)
    assert recent.is_due(31.0)
