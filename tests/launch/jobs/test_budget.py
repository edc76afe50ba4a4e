"""Whether another job fits into the time."""

from collections.abc import Callable

from gputopo.launch.jobs import TimeBudget


def clock_of(now: list[float]) -> Callable[[], float]:
    return lambda: now[0]


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
