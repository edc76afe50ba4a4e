import math
import random

from hypothesis import given
from hypothesis import strategies as st

from gputopo.runs.verdict.bounds import correlation_time, interval, min_values
from gputopo.runs.verdict.changes import mean_bounds
from tests import there

finite = st.floats(-1e6, 1e6)


def lower_bound(values: list[float], chance: float) -> float:
    found = interval(values, chance)
    return -math.inf if found is None else found.low


def test_the_lowest_of_seven_values_is_a_bound_of_99_percent() -> None:
    # All of n values above the median: 2^-7 = 0.8 %, 2^-6 = 1.6 %.
    assert min_values(0.01) == 7
    assert lower_bound([6, 5, 4, 3, 2, 1, 7], 0.01) <= 1
    assert interval([1, 2, 3, 4, 5, 6], 0.01) is None


def test_the_rank_is_that_of_the_binomial_table() -> None:
    # n = 20: P(at most 4 heads) = 0.0059, at most 5: 0.0207; so the bound at 1 % is the fifth value.
    # Shuffled so that neighbours are not alike, else the margin is widened.
    values = [1.0, 20, 3, 18, 5, 16, 7, 14, 9, 12, 11, 10, 13, 8, 15, 6, 17, 4, 19, 2]
    assert correlation_time(values) == 1
    assert lower_bound(values, 0.01) == 5


def remembering(rng: random.Random, count: int, memory: float) -> list[float]:
    """Noise that remembers so much from value to value."""
    values = [rng.gauss(0, 1)]
    while len(values) < count:
        values.append(memory * values[-1] + math.sqrt(1 - memory**2) * rng.gauss(0, 1))
    return values


def test_independent_values_count_each_and_drifting_ones_much_less() -> None:
    rng = random.Random(3)
    independent = [rng.gauss(0, 1) for _ in range(400)]
    assert correlation_time(independent) < 1.6
    drifting = remembering(rng, 4000, 0.9)
    # (1 + 0.9) / (1 - 0.9) = 19 for a first-order process; ranks and a run of finite length give a bit less.
    assert 12 < correlation_time(drifting) < 28


@given(st.lists(finite, min_size=7, max_size=60))
def test_a_bound_is_never_above_the_median(values: list[float]) -> None:
    ordered = sorted(values)
    assert lower_bound(values, 0.01) <= ordered[len(ordered) // 2]


def test_the_bound_holds_as_often_as_stated() -> None:
    # 400 series of 15 values with the median 0 and long tails; at 5 % some 20 bounds may be above it.
    rng = random.Random(11)
    above = sum(lower_bound([rng.gauss(0, 1) ** 3 for _ in range(15)], 0.05) > 0 for _ in range(400))
    assert above <= 32


def test_a_few_values_of_a_long_drift_have_no_bounds() -> None:
    # 40 values that weigh like one: around their own mean some of them vary as if they were independent.
    drifts = (remembering(random.Random(seed), 40, 0.95) for seed in range(300))
    assert sum(interval(values, 1e-3) is not None for values in drifts) <= 8


def test_a_long_run_of_single_slow_steps_has_the_mean_of_what_is_lost() -> None:
    rng = random.Random(7)
    noise, slow = ([rng.gauss(0, 0.01) for _ in range(6000)] for _ in range(2))
    slow = [value + 0.4 * (rng.random() < 0.25) for value in slow]
    found = there(mean_bounds(slow, 1e-3, [noise]))
    assert 0.09 < found.low < 0.1 < found.high < 0.11
    both = mean_bounds(slow, 1e-3, [rng.sample(slow, len(slow))])
    assert both is None or both.low < found.low, "what the other device has as often proves less"
