"""One factor of a machine from its own runs."""

import pytest

from gputopo.prediction.calibration import MAX_FACTOR, step_factor


def test_the_median_of_several_jobs_is_the_factor_and_one_disturbed_job_does_not_move_it() -> None:
    assert step_factor([1.2, 1.2]) == pytest.approx(1.2)
    assert step_factor([1.2, 1.2, 1.9]) == pytest.approx(1.2)


def test_one_job_changes_nothing_and_no_jobs_change_more_than_a_factor_of_two() -> None:
    assert step_factor([]) == step_factor([1.5]) == 1.0
    assert step_factor([9.0, 8.0]) == MAX_FACTOR
