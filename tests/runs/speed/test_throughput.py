import random
from statistics import fmean, median, pstdev

import pytest

from gputopo.runs.speed import RunningThroughput
from gputopo.values.run.events import WarmupDone
from tests.invented_runs import BEGAN_S, InventedRun, cpu_devices, step, stream


def test_the_five_figures_of_four_steps() -> None:
    running = RunningThroughput()
    running.add(WarmupDone(time_s=100.0, steps=2, seconds=1.0))
    # 16 images in 1, 2, 2 and 4 s; speeds 16, 8, 8, 4. Between the steps 1 s passes in all.
    for number, seconds, time_s in [(1, 1.0, 101.0), (2, 2.0, 103.0), (3, 2.0, 106.0), (4, 4.0, 110.0)]:
        running.add(step(number, [(0, 1), (0, 1)], seconds=seconds, time_s=time_s))
    reported = running.throughput()
    assert reported is not None
    assert reported.mean == pytest.approx(16 / 2.25)
    # Speeds' mean 9, squared deviations 49 + 1 + 1 + 25 = 76; sqrt(76 / 4) / sqrt(4).
    assert reported.uncertainty == pytest.approx((76 / 4) ** 0.5 / 2)
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
    assert running.uncertainty == pytest.approx(pstdev(speeds) / 200**0.5)
    middle = median(speeds)
    assert running.jitter() == pytest.approx(1.4826 * median(abs(speed - middle) for speed in speeds))


def test_before_the_first_counted_step_there_is_no_figure() -> None:
    running = RunningThroughput()
    running.add(step(0, [(0, 1)]))
    assert (running.steps, running.mean, running.total, running.throughput()) == (0, None, None, None)


def test_the_warm_up_counts_neither_as_images_nor_as_time() -> None:
    running = RunningThroughput()
    for event in stream(cpu_devices(2), [step(1, [(0.1, 0.4)] * 2), step(2, [(0.1, 0.4)] * 2)]):
        running.add(event)
    assert (running.steps, running.images) == (2, 32)
    assert running.total == pytest.approx(32)
    # Nine seconds until the first step is done, one of warm-up.
    assert running.window == pytest.approx((BEGAN_S + 10, BEGAN_S + 11))


def test_without_a_warm_up_the_time_begins_with_the_first_step() -> None:
    running = RunningThroughput()
    running.add(step(1, [(0, 2)], time_s=50.0))
    assert running.total == pytest.approx(8 / 2)


def test_a_clock_that_was_set_back_does_not_make_the_run_faster_than_its_steps() -> None:
    running = RunningThroughput()
    running.add(WarmupDone(time_s=1000.0, steps=1, seconds=1.0))
    running.add(step(1, [(0, 2)], time_s=1002.0))
    running.add(step(2, [(0, 2)], time_s=500.0))
    assert running.total == pytest.approx(16 / 4)


def test_steps_without_a_duration_give_no_speed_and_no_error() -> None:
    running = RunningThroughput()
    running.add(step(1, [(0, 0)], seconds=0.0))
    assert running.throughput() is None
    for event in InventedRun(1).steps(3, first=2):
        running.add(event)
    assert running.throughput() is not None
