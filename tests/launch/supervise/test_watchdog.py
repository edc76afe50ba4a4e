import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.supervise import HangLimits, Watchdog, hang_limits, is_stuck, process_words
from gputopo.values.run.events import (
    BUILDING,
    NCCL_TEST,
    CheckpointSaved,
    Event,
    ModelBuilt,
    PhaseBegun,
    PlacementChecked,
    Step,
    WarmupDone,
)

LOOK_S, LATE_S = 5.0, 1.0  # the longest wait, and how much longer it may take
PATIENCE = HangLimits(factor=10, min_s=5, phase_s=100, start_s=1000, nccl_s=200)


def step(seconds: float = 1.0, number: int = 1) -> Step:
    return Step(time_s=0, step=number, seconds=seconds, images=8, loss=1.0, marks=())


def after(*events: Event, now_s: float = 0.0) -> Watchdog:
    watchdog = Watchdog(PATIENCE, now_s)
    for event in events:
        watchdog.record_event(event, now_s)
    return watchdog


BUILT = ModelBuilt(time_s=0, parameters=1, parameter_bytes=4, import_s=1, build_s=1)
CHECKED = PlacementChecked(time_s=0, variables={}, ops={}, first_step_s=1)
SAVED = CheckpointSaved(time_s=0, path="c", steps=1, bytes=1, seconds=1)
PHASE = PhaseBegun(time_s=0, phase="checkpoint")


@pytest.mark.parametrize(
    ("events", "during"),
    [
        ([], "starting TensorFlow and building the model"),
        ([BUILT], "the first step, including compilation"),
        ([BUILT, CHECKED, WarmupDone(time_s=0, steps=0, seconds=0)], "the first step, including compilation"),
        ([BUILT, PHASE], "the phase 'checkpoint'"),
    ],
)
def test_until_the_first_step_a_worker_has_long_and_not_for_ever(events: list[Event], during: str) -> None:
    watchdog = after(*events, now_s=50)
    assert watchdog.verdict(1049) is None
    assert watchdog.verdict(1051) == f"the worker hangs: no progress for 1001 s in {during}"


def test_after_a_step_silence_of_many_steps_is_a_hang_with_its_numbers() -> None:
    watchdog = after(step(2.0), now_s=100)
    assert watchdog.deadline_s() == 120
    assert watchdog.verdict(119.9) is None
    assert watchdog.verdict(121) == (
        "the worker hangs: no progress for 21 s in a step; a step usually takes 2 s"
    )


def test_a_phase_has_its_own_time_and_steps_are_awaited_after_it() -> None:
    watchdog = after(step(), PHASE)
    assert watchdog.deadline_s() == 100
    assert watchdog.verdict(101) is not None
    watchdog.record_event(SAVED, 50.0)
    assert watchdog.deadline_s() == 60


def test_the_test_of_nccl_has_its_own_time_and_the_building_after_it_has_that_of_the_start() -> None:
    watchdog = after(PhaseBegun(time_s=0, phase=NCCL_TEST))
    assert watchdog.deadline_s() == 200
    watchdog.record_event(PhaseBegun(time_s=0, phase=BUILDING), 50.0)
    assert watchdog.deadline_s() == 1050


def test_every_word_of_the_worker_moves_the_deadline_on_by_a_minimum_time_at_least() -> None:
    watchdog = after(step(0.001), now_s=100)
    assert watchdog.deadline_s() == 105
    watchdog.record_event(step(0.001, 2), 103)
    assert watchdog.deadline_s() == 108


def waited(watchdog: Watchdog, *, from_s: float, until_s: float) -> Watchdog:
    watchdog.wait_s(from_s)
    watchdog.end_wait(until_s)
    return watchdog


def test_a_launcher_looks_at_the_clock_every_few_seconds_and_at_the_deadline() -> None:
    assert after(step(2.0), now_s=100).wait_s(100) == LOOK_S < 20
    assert after(step(2.0), now_s=100).wait_s(118) == 2
    assert after(step(2.0), now_s=100).wait_s(130) == 0


def test_time_in_which_the_launcher_itself_stood_still_is_no_silence_of_the_worker() -> None:
    watchdog = waited(after(step(2.0), now_s=100), from_s=110, until_s=110 + LOOK_S + 3600)
    assert watchdog.deadline_s() == 120 + 3600
    assert watchdog.verdict(119 + 3600) is None
    assert watchdog.verdict(121 + 3600) == (
        "the worker hangs: no progress for 21 s in a step; a step usually takes 2 s"
    )


@given(begins=st.floats(0, 30), late=st.floats(-LOOK_S, 0.99 * LATE_S))
def test_a_wait_as_long_as_asked_for_or_a_little_longer_counts_in_full(begins: float, late: float) -> None:
    watchdog = after(step(2.0), now_s=0)
    wait = watchdog.wait_s(begins)
    watchdog.end_wait(begins + max(0.0, wait + late))
    assert watchdog.deadline_s() == 20


def test_a_sign_of_life_is_due_after_some_seconds_of_silence_and_then_ever_less_often() -> None:
    watchdog = after(BUILT, now_s=0)
    due = [now for now in range(100) if watchdog.sign(now) is not None]
    assert due == [10, 20, 40, 80]
    watchdog.record_event(CHECKED, 100)
    assert watchdog.sign(109) is None
    assert watchdog.sign(110) == (10, "the first step, including compilation")
    watchdog.record_event(step(20.0), 200)
    assert [now for now in range(200, 270) if watchdog.sign(now) is not None] == [260], "three steps"


@pytest.mark.parametrize(
    ("state", "cpus", "words"),
    [
        ("T", 0.0, "is stopped (SIGSTOP)"),
        ("D", 0.0, "waits for a disk or the driver"),
        ("S", 0.0, "waits, using no CPU time"),
        ("R", 1.94, "computes (1.9 CPUs busy)"),
    ],
)
def test_what_a_silent_process_does_is_seen_from_its_state_and_cpu_time(
    state: str, cpus: float, words: str
) -> None:
    assert process_words(state, cpus).startswith(words)


def test_what_can_run_is_not_silent_where_silence_is_no_news() -> None:
    watchdog = Watchdog(HangLimits(start_s=math.inf), 0.0)
    watchdog.record_life(1000.0)
    assert watchdog.sign(1005.0) is None
    assert watchdog.sign(1011.0) == (11.0, "starting TensorFlow and building the model")
    assert [is_stuck(state) for state in "RSTtDZ"] == [False, False, True, True, True, False]


def test_a_stall_timeout_counts_for_steps_whatever_they_usually_take_and_before_the_first_one() -> None:
    watchdog = Watchdog(hang_limits(7.0), 0.0)
    assert watchdog.deadline_s() == 7
    watchdog.record_event(PhaseBegun(time_s=0.0, phase=NCCL_TEST), 5)
    assert watchdog.deadline_s() == 12
    watchdog.record_event(step(30.0), 3000)
    assert watchdog.deadline_s() == 3007
    watchdog = Watchdog(hang_limits(7200.0), 0.0)
    watchdog.record_event(PhaseBegun(time_s=0.0, phase=NCCL_TEST), 0)
    assert watchdog.deadline_s() == HangLimits().nccl_s, "TensorFlow ends a collective that hangs after 60 s"
