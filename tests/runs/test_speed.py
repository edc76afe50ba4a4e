"""Throughput and sums of counted steps, and how long counting takes at most."""

import random
from statistics import fmean, median, pstdev

import pytest

from gputopo.values.run.events import WarmupDone
from gputopo.values.run.speed import LONGEST_S, MIN_COUNTED, RunningThroughput, time_left_s
from tests import there
from tests.invented_runs import step


def test_the_five_figures_of_four_steps() -> None:
    running = RunningThroughput()
    running.add(WarmupDone(time_s=100.0, steps=2, seconds=1.0))
    # 16 images in 1, 2, 2 and 4 s; speeds 16, 8, 8, 4. Between the steps 1 s passes in all.
    for number, seconds, time_s in [(1, 1.0, 101.0), (2, 2.0, 103.0), (3, 2.0, 106.0), (4, 4.0, 110.0)]:
        running.add(step(number, [(0, 1), (0, 1)], seconds=seconds, time_s=time_s))
    reported = there(running.throughput())
    assert reported.mean == pytest.approx(16 / 2.25)
    # Speeds' mean 9, squared deviations 49 + 1 + 1 + 25 = 76; sqrt(76 / 4) / sqrt(4).
    assert running.uncertainty_of_independent_steps() == pytest.approx((76 / 4) ** 0.5 / 2)
    # Median 8; deviations 8, 0, 0, 4: their median is 2.
    assert reported.median == 8
    assert reported.jitter == pytest.approx(1.4826 * 2)
    assert reported.total == pytest.approx(64 / 10)
    assert running.now == pytest.approx(4)


def test_running_figures_are_those_of_all_speeds_at_once() -> None:
    rng = random.Random(5)
    seconds = [rng.uniform(0.1, 3.0) for _ in range(200)]
    running = RunningThroughput()
    for number, took in enumerate(seconds, 1):
        running.add(step(number, [(0, 1)], seconds=took))
    speeds = [8 / took for took in seconds]
    assert running.mean == pytest.approx(8 / fmean(seconds))
    assert running.uncertainty_of_independent_steps() == pytest.approx(pstdev(speeds) / 200**0.5)
    middle = median(speeds)
    assert running.jitter() == pytest.approx(1.4826 * median(abs(speed - middle) for speed in speeds))


def test_the_speeds_of_repeated_runs_lie_within_what_each_run_prints() -> None:
    rng, memory = random.Random(9), 0.8
    speeds = []
    for _ in range(100):
        running, noise = RunningThroughput(), 0.0
        for number in range(1, 101):
            noise = memory * noise + (1 - memory**2) ** 0.5 * rng.gauss(0, 0.1)
            running.add(step(number, [(0, 1)], seconds=2 + noise))
        speeds.append(there(running.throughput()))
    within = sum(abs(speed.mean - 4) <= speed.margin for speed in speeds)
    assert 90 <= within <= 100


def test_a_clock_that_was_set_back_does_not_make_the_run_faster_than_its_steps() -> None:
    running = RunningThroughput()
    running.add(WarmupDone(time_s=1000.0, steps=1, seconds=1.0))
    running.add(step(1, [(0, 2)], time_s=1002.0))
    running.add(step(2, [(0, 2)], time_s=500.0))
    assert running.total == pytest.approx(16 / 4)


def test_counting_takes_its_budget_or_a_minute_while_there_are_too_few_steps_to_know_the_error() -> None:
    assert time_left_s(20.0, 0.01, MIN_COUNTED, 12.0) == 8.0
    assert time_left_s(20.0, 0.01, 6, 18.0) == 18.0  # six more steps of 3 s
    assert time_left_s(20.0, 0.01, 3, 45.0) == LONGEST_S - 45.0
    assert time_left_s(5.0, None, 1, 3.0) == 2.0


def test_a_speed_is_known_if_its_error_is_small_after_enough_steps() -> None:
    running = RunningThroughput()
    for number in range(1, MIN_COUNTED + 1):
        assert not running.is_known_to(0.01)
        running.add(step(number, [(0, 1)], seconds=0.2))
    assert running.is_known_to(0.01)
    running.add(step(MIN_COUNTED + 1, [(0, 1)], seconds=0.4))
    assert not running.is_known_to(0.01)
    short = RunningThroughput()
    for number in range(1, MIN_COUNTED + 1):
        short.add(step(number, [(0, 1)], seconds=0.01))
    assert not short.is_known_to(0.01), "noise that lasts for a second does not show in a tenth"
