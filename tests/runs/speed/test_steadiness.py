import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.runs.speed import MAX_STEPS, MIN_STEPS, steady, steady_from

LEVELS = st.floats(0.001, 10.0)
SEEDS = st.integers(0, 10_000)


def noisy(level: float, count: int, seed: int, share: float = 0.02) -> list[float]:
    rng = random.Random(seed)
    return [level * (1 + rng.gauss(0, share)) for _ in range(count)]


@given(level=LEVELS, count=st.integers(MIN_STEPS, 300))
def test_steps_that_never_change_are_steady_from_the_first(level: float, count: int) -> None:
    assert steady_from([level] * count) == 0


@given(level=LEVELS, before=st.integers(3, 80), factor=st.sampled_from([0.5, 1.3, 2.0, 10.0]))
def test_a_step_in_the_level_ends_the_warm_up_where_it_is(level: float, before: int, factor: float) -> None:
    assert steady_from([factor * level] * before + [level] * (before + MIN_STEPS)) == before


@given(level=LEVELS, seed=SEEDS, before=st.integers(5, 40))
def test_noise_does_not_hide_a_step_and_moves_it_by_few(level: float, seed: int, before: int) -> None:
    times = noisy(2 * level, before, seed) + noisy(level, 100, seed + 1)
    found = steady_from(times)
    assert found is not None
    assert before <= found <= before + 25


@given(level=LEVELS, length=st.integers(10, 60), height=st.sampled_from([0.5, 1.0, 3.0]))
def test_after_a_ramp_no_step_is_left_that_is_well_above_the_level(
    level: float, length: int, height: float
) -> None:
    ramp = [level * (1 + height * (1 - number / length)) for number in range(length)]
    found = steady_from(ramp + [level] * 100)
    assert found is not None
    assert found <= length
    assert max([*ramp, level][found:]) <= 1.2 * level


@given(level=LEVELS, length=st.integers(20, 200), growth=st.sampled_from([0.05, 0.1, 1.0]))
def test_a_ramp_that_does_not_end_is_never_steady(level: float, length: int, growth: float) -> None:
    assert steady_from([level * (1 + growth * number) for number in range(length)]) is None


@given(
    level=LEVELS,
    seed=SEEDS,
    every=st.integers(8, 100),
    factor=st.floats(2.0, 50.0),
    shift=st.integers(0, 99),
)
def test_regular_slow_steps_are_no_warm_up(
    level: float, seed: int, every: int, factor: float, shift: int
) -> None:
    times = noisy(level, 300, seed)
    slow = [factor * time if (number + shift) % every == 0 else time for number, time in enumerate(times)]
    found = steady_from(slow)
    assert found is not None
    assert found <= 30


def test_steps_that_alternate_between_two_levels_are_steady() -> None:
    found = steady_from([1.0, 2.0] * 30)
    assert found is not None
    assert found <= 2


@given(seed=SEEDS, share=st.floats(0.0, 0.2))
def test_noise_alone_is_steady_soon(seed: int, share: float) -> None:
    found = steady_from(noisy(0.1, 200, seed, share))
    assert found is not None
    assert found <= 60


@given(times=st.lists(st.floats(0.0, 1e6), max_size=100))
def test_any_trace_gives_a_prefix_that_leaves_enough_or_none(times: list[float]) -> None:
    found = steady_from(times)
    reported = steady(times)
    assert reported.steps == found
    assert reported.says
    if found is not None:
        assert 0 <= found <= len(times) - MIN_STEPS + 2
        assert reported.seconds == pytest.approx(sum(times[:found]))


def test_too_few_steps_are_reported_as_not_looked_at() -> None:
    assert steady([1.0] * (MIN_STEPS - 1)).says.startswith("not determined")


def test_a_run_that_still_changes_is_reported() -> None:
    assert steady([1.0 + number for number in range(50)]).says.startswith("not found")


def test_a_very_long_run_is_looked_at_only_at_its_beginning() -> None:
    assert steady_from([2.0] * 10 + [1.0] * 100_000) == 10
    assert steady_from([2.0] * MAX_STEPS + [1.0] * 100) == 0
