"""Whether another job fits into the time."""

from collections.abc import Callable
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from gputopo.launch.jobs import TimeBudget


def clock_of(now: list[float]) -> Callable[[], float]:
    return lambda: now[0]


@given(st.lists(st.floats(0.1, 50.0), min_size=1), st.floats(0.0, 300.0))
def test_jobs_like_the_longest_so_far_never_end_late(seconds: list[float], limit: float) -> None:
    now = [7.0]
    budget = TimeBudget(limit, clock_of(now))
    longest = list(accumulate(seconds, max))
    for each, before in zip(seconds, [0.0, *longest], strict=False):
        if not budget.fits():
            break
        assert now[0] - 7.0 + before <= limit + 1e-6

        def job(each: float = each) -> None:
            now[0] += each

        budget.timed(job)
    else:
        assert abs(budget.used - sum(seconds)) < 1e-6


def test_a_job_fits_if_one_like_the_longest_so_far_would_end_in_time() -> None:
    now = [7.0]
    budget = TimeBudget(10.0, clock_of(now))

    def job() -> None:
        now[0] += 5.0

    budget.timed(job)
    assert budget.fits()
    now[0] += 0.1
    assert not budget.fits()


def test_a_known_length_and_a_count_stand_for_the_longest() -> None:
    now = [0.0]
    budget = TimeBudget(10.0, clock_of(now))
    assert budget.fits(each=10.0)
    assert not budget.fits(each=10.1)
    assert not budget.fits(3, each=4.0)
    assert TimeBudget(None, clock_of(now)).fits(1000, each=1e9)
