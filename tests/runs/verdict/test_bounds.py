import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.runs.verdict.bounds import mean_bounds, min_values
from gputopo.runs.verdict.changes import lost_bounds, slow_limit
from gputopo.values.run.noise import error_of, students_t
from tests import there

finite = st.floats(-1e6, 1e6)


def remembering(rng: random.Random, count: int, memory: float) -> list[float]:
    """Noise that remembers so much from value to value."""
    values = [rng.gauss(0, 1)]
    while len(values) < count:
        values.append(memory * values[-1] + math.sqrt(1 - memory**2) * rng.gauss(0, 1))
    return values


def test_seven_values_can_prove_what_is_wrong_in_one_of_a_hundred_cases() -> None:
    # All of n values above the median: 2^-7 = 0.8%, 2^-6 = 1.6%.
    assert min_values(0.01) == 7


# From the usual table of Student's t.
@pytest.mark.parametrize(
    ("freedom", "chance", "t"),
    [(5, 0.025, 2.571), (5, 1e-3, 5.893), (10, 0.025, 2.228), (10, 1e-3, 4.144), (60, 1e-3, 3.232)],
)
def test_students_t_is_that_of_the_table(freedom: float, chance: float, t: float) -> None:
    assert students_t(freedom, chance) == pytest.approx(t, rel=0.03)


def test_independent_values_count_each_and_drifting_ones_much_less() -> None:
    rng = random.Random(3)
    independent = [rng.gauss(0, 1) for _ in range(400)]
    assert error_of(independent).effective > 250
    drifting = remembering(rng, 4000, 0.9)
    # (1 + 0.9) / (1 - 0.9) = 19 for a first-order process.
    assert 4000 / 28 < error_of(drifting).effective < 4000 / 12


@given(st.lists(finite, min_size=2, max_size=200))
def test_bounds_hold_the_mean_between_them(values: list[float]) -> None:
    found = there(mean_bounds(values, 0.01))
    assert found.low <= found.middle <= found.high


@pytest.mark.parametrize(("count", "memory"), [(15, 0.0), (60, 0.5), (300, 0.9)])
def test_a_bound_is_wrong_about_as_often_as_stated(count: int, memory: float) -> None:
    # 1,000 series with the mean 0; at 1% some ten lower bounds are above it.
    rng = random.Random(11)
    above = sum(there(mean_bounds(remembering(rng, count, memory), 0.01)).low > 0 for _ in range(1000))
    assert above <= 25


def test_a_few_values_of_a_long_drift_prove_little() -> None:
    # 40 values that weigh like one: around their own mean some of them vary as if they were independent.
    drifts = (remembering(random.Random(seed), 40, 0.95) for seed in range(300))
    found = [there(mean_bounds(values, 1e-3)) for values in drifts]
    assert sum(one.low > 0 and one.effective >= min_values(1e-3) for one in found) <= 8


def test_a_long_run_of_single_slow_steps_has_the_mean_of_what_is_lost() -> None:
    rng = random.Random(7)
    noise, slow = ([rng.gauss(0, 0.01) for _ in range(6000)] for _ in range(2))
    slow = [value + 0.4 * (rng.random() < 0.25) for value in slow]
    pattern = slow_limit(slow)
    found = there(lost_bounds(slow, 1e-3, pattern, [noise]))
    assert 0.09 < found.low < 0.1 < found.high < 0.12


def test_a_few_slow_steps_prove_less_if_the_other_device_has_as_many() -> None:
    rng = random.Random(7)
    noise = [rng.gauss(0, 0.01) for _ in range(1000)]
    stalls = set(rng.sample(range(1000), 12))
    slow = [value + 9.0 * (place in stalls) for place, value in enumerate(noise)]
    alone, both = (there(lost_bounds(slow, 1e-3, slow_limit(slow), [other])) for other in (noise, slow))
    assert both.low < alone.low / 2
