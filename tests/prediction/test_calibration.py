"""One factor of a machine from its own runs."""

import pytest

from gputopo.prediction.calibration import MAX_FACTOR, MeasuredStep, step_factor
from gputopo.prediction.gradients import GradientBlock
from gputopo.prediction.programs import require_program
from gputopo.prediction.step import ON_CPU, ModelCosts, StepPredictor

PROGRAM = require_program("gputopo")
MODEL = ModelCosts(
    (GradientBlock(200_000_000, 0.5), GradientBlock(400_000_000, 0.5)), (200_000_000, 400_000_000)
)


def _run(slower: float) -> MeasuredStep:
    """A run of four GPUs that took so many times as long as predicted."""
    step_s = 0.1 + sum(StepPredictor(MODEL, PROGRAM, 4).predict(ON_CPU, 0.1, 1e-10, 1e-10))
    return MeasuredStep(MODEL, 4, 1, 0.1, ON_CPU, 1e-10, 1e-10, slower * step_s)


def test_the_median_of_several_jobs_is_the_factor_and_one_disturbed_job_does_not_move_it() -> None:
    assert step_factor(PROGRAM, [_run(1.2), _run(1.2)]) == pytest.approx(1.2)
    assert step_factor(PROGRAM, [_run(1.2), _run(1.2), _run(1.9)]) == pytest.approx(1.2)


def test_one_job_changes_nothing_and_no_jobs_change_more_than_a_factor_of_two() -> None:
    assert step_factor(PROGRAM, []) == step_factor(PROGRAM, [_run(1.5)]) == 1.0
    assert step_factor(PROGRAM, [_run(9.0), _run(8.0)]) == MAX_FACTOR
