"""Two numbers of a box from its own runs."""

import pytest

from gputopo.prediction.calibration import Run, adjusted, calibrated
from gputopo.prediction.line import Block
from gputopo.prediction.programs import require_program
from gputopo.prediction.step import Model, Placing, Stepper

PROGRAM = require_program("gputopo")
MANY_BYTES = Model((Block(200_000_000, 0.5), Block(400_000_000, 0.5)), (200_000_000, 400_000_000))
MANY_VARIABLES = Model((Block(50_000_000, 0.5), Block(50_000_000, 0.5)), (200_000,) * 500)


def _run(model: Model, links: float, variables: float) -> Run:
    """A run of four GPUs on a box with these two numbers."""
    facts = (0.1, Placing("parameter_server", "cpu"), 1e-10, 1e-10)
    stepper = Stepper(model, adjusted(PROGRAM, links, variables), 4)
    compute_s, placing, weights, gradients = facts
    return Run(model, 4, 1, *facts, compute_s + sum(stepper.predict(placing, compute_s, weights, gradients)))


def test_one_run_of_many_bytes_and_one_of_many_variables_show_both_numbers() -> None:
    """Slower links and dearer variables are separated."""
    runs = [_run(MANY_BYTES, 0.6, 1.8), _run(MANY_VARIABLES, 0.6, 1.8)]

    found = calibrated(PROGRAM, runs)

    assert found.link_share / PROGRAM.link_share == pytest.approx(0.6, rel=0.1)
    assert found.us_cpu / PROGRAM.us_cpu == pytest.approx(1.8, rel=0.1)


def test_runs_as_predicted_and_no_runs_change_nothing() -> None:
    """The numbers are 1 then."""
    assert calibrated(PROGRAM, []) == PROGRAM
    found = calibrated(PROGRAM, [_run(MANY_BYTES, 1.0, 1.0)])
    assert found.link_share == pytest.approx(PROGRAM.link_share)
    assert found.us_ring == pytest.approx(PROGRAM.us_ring)
