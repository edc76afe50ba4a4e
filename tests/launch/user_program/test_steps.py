"""Steps of several processes as steps of one run."""

from collections.abc import Iterable, Sequence
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.user_program import Joined
from gputopo.values.run.events import Noticed, Step, WarmupDone
from tests.launch.user_program.reports import Report, ended, received, step

# After so many steps that a process has not reported, while others have, it is gone.
GONE_STEPS = 200


def joined(reports: Iterable[Report], devices: int = 2) -> list[Step | WarmupDone | Noticed]:
    made = Joined(range(devices))
    found: list[Step | WarmupDone | Noticed] = []
    for time_s, report in enumerate(received(reports)):
        found += made.add(report, float(time_s))
    return [*found, *made.finish(99.0)]


def steps_of(events: Sequence[Step | WarmupDone | Noticed]) -> list[tuple[int, int, float]]:
    return [(one.step, one.images, one.seconds) for one in events if isinstance(one, Step)]


def test_the_same_steps_of_several_processes_are_one() -> None:
    ranks = [step(pid, number, 9.0 if number == 1 else 0.5) for number in (1, 2, 3) for pid in (7, 8)]
    assert steps_of(joined(ranks)) == [(0, 10, 9.0), (1, 20, 0.5), (2, 20, 0.5)]


def test_devices_are_compared_by_what_each_was_busy_and_not_by_steps_that_end_together() -> None:
    ranks = [step(pid, number, device=pid, busy_s=0.1 * (pid + 1)) for number in (1, 2) for pid in (0, 1)] + [
        step(pid, 3, device=pid) for pid in (0, 1)
    ]
    *_, second, third = (one for one in joined(ranks) if isinstance(one, Step))
    assert [(mark.tower, mark.compute_s) for mark in second.marks] == [(0, 0.1), (1, 0.2)]
    assert third.marks == ()


def test_devices_with_different_batches_are_not_compared() -> None:
    ranks = [
        step(pid, number, device=pid, busy_s=0.1, examples=8 + pid) for number in (1, 2) for pid in (0, 1)
    ]
    assert not any(one.marks for one in joined(ranks) if isinstance(one, Step))


def test_speeds_of_processes_that_go_at_their_own_pace_add_up() -> None:
    times = 3
    reports: list[Report] = [step(1, 1), step(2, 1)]
    for number in range(2, 200):
        reports += [step(1, times * number + part, 0.5 / times) for part in range(times)]
        reports.append(step(2, number, 0.5))
    counted = steps_of(joined(reports))[50:-20]  # while both are there, once it is known that one is ahead
    assert fmean(images / seconds for _, images, seconds in counted) == pytest.approx(20 * times + 20)


def test_a_process_that_ended_or_was_killed_holds_nobody_up() -> None:
    both = [step(pid, number) for number in (1, 2) for pid in (1, 2)]
    of_one = joined([*both, ended(2), step(1, 3), step(1, 4)])
    assert [images for _, images, _ in steps_of(of_one)] == [10, 20, 10, 10]
    killed = joined([*both, *(step(1, number) for number in range(3, 3 + 2 * GONE_STEPS))])
    assert steps_of(killed)[-1][1] == 10
    assert sum(images for _, images, _ in steps_of(killed)) == 10 + 20 + 10 * 2 * GONE_STEPS


def test_steps_that_one_report_has_together_are_counted_with_their_time_and_said() -> None:
    together = step(1, 12, 1.0, steps=10, examples=100)
    events = joined([step(1, 1), step(1, 2, 0.1), together])
    counted = {images: seconds for number, images, seconds in steps_of(events) if number}
    assert counted == pytest.approx({10: 0.1, 100: 1.0})
    (notice,) = (one for one in events if isinstance(one, Noticed))
    assert notice.says == (
        "9 steps were too fast to be reported one by one; they are included in later ones."
    )


@pytest.mark.parametrize(("first_s", "is_said"), [(2.1, True), (0.1, False)])
def test_first_steps_of_epochs_that_take_long_are_counted_and_said(first_s: float, is_said: bool) -> None:
    steps = [
        step(
            *(1, number, first_s if number % 20 == 1 else 0.1),
            after_begin=number % 20 == 1,
            unit="tokens",
        )
        for number in range(1, 101)
    ]
    events = joined(steps)
    assert sum(seconds for number, _, seconds in steps_of(events) if number) == pytest.approx(
        9.5 + 4 * first_s
    )
    assert [one.unit for one in events if isinstance(one, WarmupDone)] == ["tokens"]
    assert [one.says for one in events if isinstance(one, Noticed)] == [
        "Steps that begin an epoch or follow a pause took 47% of the time: without them it is 100 tokens/sec."
    ] * is_said


def test_a_burst_of_one_process_does_not_make_another_one_gone() -> None:
    made = Joined(())
    found: list[Step | WarmupDone | Noticed] = []
    for number in range(1, 2 * GONE_STEPS):
        for report in received(step(pid, number, 1e-4) for pid in ((1, 2) if number < 3 else (1,))):
            found += made.add(report, 5.0 + number * 1e-4)
    assert [number for number, *_ in steps_of(found)] == [0, 1]


@given(st.lists(st.integers(0, 3), max_size=300))
def test_every_counted_example_is_in_a_step_whatever_the_order(order: list[int]) -> None:
    numbers = dict.fromkeys(range(4), 0)
    reports: list[Report] = [step(pid, 1) for pid in range(4)]
    for pid in order:
        numbers[pid] += 1
        reports.append(step(pid, 1 + numbers[pid]))
    counted = [one for one in steps_of(joined(reports)) if one[0] > 0]
    assert sum(images for _, images, _ in counted) == 10 * len(order)
    assert [number for number, *_ in counted] == list(range(1, len(counted) + 1))
