"""The error of a mean: of independent values, and of values that remember the one before."""

import math
import random
from statistics import fmean

import pytest

from gputopo.values.run.noise import error_of, students_t


def remembering(rng: random.Random, count: int, memory: float) -> list[float]:
    """Noise that remembers so much from value to value."""
    values = [rng.gauss(0, 1)]
    while len(values) < count:
        values.append(memory * values[-1] + math.sqrt(1 - memory**2) * rng.gauss(0, 1))
    return values


def low_of(values: list[float], chance: float) -> float:
    """A lower bound of the mean, which is wrong with this chance."""
    error = error_of(values)
    return fmean(values) - error.size * students_t(error.freedom, chance)


# From the usual table of Student's t.
@pytest.mark.parametrize(
    ("freedom", "chance", "t"),
    [(5, 0.025, 2.571), (10, 1e-3, 4.144), (60, 1e-3, 3.232)],
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


@pytest.mark.parametrize(("count", "memory"), [(15, 0.0), (60, 0.5)])
def test_a_bound_is_wrong_about_as_often_as_stated(count: int, memory: float) -> None:
    # 400 series with the mean 0; at 1% some four lower bounds are above it.
    rng = random.Random(11)
    above = sum(low_of(remembering(rng, count, memory), 0.01) > 0 for _ in range(400))
    assert above <= 13


def test_a_few_values_of_a_long_drift_prove_little() -> None:
    # 40 values that weigh like one: around their own mean some of them vary as if they were independent.
    drifts = [remembering(random.Random(seed), 40, 0.95) for seed in range(300)]
    assert sum(low_of(values, 1e-3) > 0 and error_of(values).effective >= 10 for values in drifts) <= 8
