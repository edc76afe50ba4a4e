"""The first part of a run: warm-up if it is slower, a change of the speed if it is faster."""

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.runs import summarise
from gputopo.values.run.events import Event, GpuSample, HostLoad, RunStarted, Sample, Step
from gputopo.values.run.result import Result
from tests import there
from tests.invented_runs import cpu_devices, gpu_devices, step, stream

LEVELS = st.floats(0.001, 10.0)
SEEDS = st.integers(0, 10_000)


def noisy(level: float, count: int, seed: int, share: float = 0.02) -> list[float]:
    rng = random.Random(seed)
    return [level * (1 + rng.gauss(0, share)) for _ in range(count)]


def found_in(times: Sequence[float]) -> Result:
    """The result of a run whose counted steps took these seconds, after two of warm-up."""
    steps = [step(n, [(0.0, time)]) for n, time in enumerate(times, 1)]
    return summarise(stream(cpu_devices(1), steps))


def warmup_of(result: Result) -> int | None:
    """The counted steps that are warm-up; None: the run was not steady."""
    return None if result.steady_steps is None else result.steady_steps - 2


@given(level=LEVELS, seed=SEEDS, before=st.integers(5, 36))
def test_noise_does_not_hide_a_step_and_moves_it_by_few(level: float, seed: int, before: int) -> None:
    times = noisy(2 * level, before, seed) + noisy(level, 120, seed + 1)
    assert before <= there(warmup_of(found_in(times))) <= before + 3


@given(
    level=LEVELS,
    seed=SEEDS,
    every=st.integers(8, 50),
    factor=st.floats(2.0, 50.0),
    shift=st.integers(0, 49),
)
def test_regular_slow_steps_are_no_warm_up(
    level: float, seed: int, every: int, factor: float, shift: int
) -> None:
    times = noisy(level, 150, seed)
    slow = [factor * time if (number + shift) % every == 0 else time for number, time in enumerate(times)]
    assert warmup_of(found_in(slow)) == 0


@given(times=st.lists(st.floats(0.0, 1e6), max_size=100))
def test_any_trace_has_a_first_part_that_leaves_a_rest(times: list[float]) -> None:
    found = found_in(times)
    assert (warmup_of(found) or 0) <= len(times) / 4
    assert found.speed_change is None or 0 < found.speed_change.after_step < len(times)


def steps_of(*levels: tuple[int, float]) -> list[Step]:
    """Steps of two towers, 16 images each: so many of so many seconds, with 1% of noise."""
    rng = random.Random(1)
    seconds = [level * (1 + rng.gauss(0, 0.01)) for count, level in levels for _ in range(count)]
    return [step(number, [(0.0, took)] * 2) for number, took in enumerate(seconds, 1)]


def load(others: float) -> HostLoad:
    return HostLoad(time_s=0.0, seconds=1.0, cores=2, run_cpu_share=1 - others, other_cpu_share=others)


IDLE = Sample(time_s=1.0, gpus=(GpuSample(gpu=0, throttle_mask=0),), host=load(0.0))


def result_of(steps: Sequence[Step], *, seen: Sample = IDLE, gpus: bool = False, **spec: object) -> Result:
    """The result of a run in which this is sampled before its counted steps, and nothing after the tenth."""
    events: list[Event] = []
    for event in stream(gpu_devices(2) if gpus else cpu_devices(2), steps):
        if isinstance(event, RunStarted):
            event = msgspec.structs.replace(event, spec={**event.spec, **spec})
        if isinstance(event, Step) and event.step in (1, 11):
            events.append(seen if event.step == 1 else IDLE)
        if not isinstance(event, Sample):
            events.append(event)
    return summarise(events)


def test_a_slower_first_part_is_warm_up_and_the_speed_is_without_it() -> None:
    result = result_of(steps_of((8, 0.2), (40, 0.1)))
    assert (result.warmup_steps, result.steady_steps, result.steps) == (2, 10, 48)
    assert there(result.throughput).mean == pytest.approx(160, rel=0.01)
    assert there(result.throughput).total == pytest.approx(160, rel=0.01)
    assert result.speed_change is None


def test_a_faster_first_part_is_a_slow_down_and_counts() -> None:
    result = result_of(steps_of((22, 0.391), (28, 0.439)))
    change = there(result.speed_change)
    assert change.after_step == 22
    assert (change.before, change.after) == pytest.approx((40.9, 36.45), rel=0.01)
    assert result.steady_steps is None
    assert there(result.throughput).mean == pytest.approx(38.3, rel=0.01)


def test_a_slower_part_that_is_more_than_a_quarter_is_no_warm_up() -> None:
    assert warmup_of(result_of(steps_of((10, 0.2), (30, 0.1)))) == 10
    longer = result_of(steps_of((11, 0.2), (29, 0.1)))
    assert longer.steady_steps is None
    change = there(longer.speed_change)
    assert change.after > change.before


def test_a_fixed_number_of_warm_up_steps_stays() -> None:
    result = result_of(steps_of((8, 0.2), (40, 0.1)), min_warmup_s=None)
    assert there(result.throughput).mean == pytest.approx(16 * 48 / (8 * 0.2 + 40 * 0.1), rel=0.01)
    assert there(result.speed_change).after_step == 8


THROTTLED = Sample(time_s=1.0, gpus=(GpuSample(gpu=0, throttle_mask=0x40),))  # hardware thermal slowdown
BESIDE_OTHERS = Sample(time_s=1.0, gpus=(), host=load(0.9))


@pytest.mark.parametrize(("seen", "gpus"), [(THROTTLED, True), (BESIDE_OTHERS, False)])
def test_what_was_slower_for_a_sampled_cause_is_no_warm_up(seen: Sample, gpus: bool) -> None:
    steps = steps_of((8, 0.2), (40, 0.1))
    assert result_of(steps, gpus=gpus).steady_steps == 10
    found = result_of(steps, seen=seen, gpus=gpus)
    assert found.steady_steps is None
    assert there(found.speed_change).after_step == 8


def test_a_cause_that_lasts_for_the_whole_run_does_not_keep_its_first_part_from_being_warm_up() -> None:
    steps = steps_of((8, 0.2), (40, 0.1))
    power = Sample(time_s=1.0, gpus=(GpuSample(gpu=0, throttle_mask=0x4),))
    events = [one for event in stream(gpu_devices(2), steps) for one in (event, power)]
    assert summarise(events).steady_steps == 10


def test_the_warm_up_of_a_long_run_is_found_in_its_first_steps() -> None:
    long = result_of(steps_of((100, 0.2), (700, 0.1)))
    assert long.steady_steps == 102
    assert there(long.throughput).mean == pytest.approx(160, rel=0.01)


def test_too_few_steps_are_not_searched() -> None:
    few = result_of(steps_of((7, 0.1)))
    assert (few.steady_steps, few.speed_change) == (None, None)
    assert few.steady == "not determined: needs 8 steps, has 7"
