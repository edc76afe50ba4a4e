"""One factor between the predicted steps of a machine and those that its own runs had. Pure."""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from gputopo.prediction.programs import ProgramConstants
from gputopo.prediction.step import ModelCosts, Placement, StepPredictor
from gputopo.values.run.plan import MIN_JOBS

MAX_FACTOR = 2.0  # Not measured; chosen because a run that is farther from its prediction is disturbed.


class MeasuredStep(NamedTuple):
    """A run of several GPUs: what its prediction needs, and the seconds of its step as measured.

    `weights`, `gradients`: seconds a byte of the slowest link.
    """

    model: ModelCosts
    towers: int
    cpus: int  # CPU sockets
    compute_s: float
    placing: Placement
    weights: float
    gradients: float
    step_s: float


def step_factor(program: ProgramConstants, jobs: Sequence[MeasuredStep]) -> float:
    """Return the median of measured over predicted seconds of the jobs of one machine; 1 if there are few."""
    if len(jobs) < MIN_JOBS:
        return 1.0
    factor = median(job.step_s / _predicted(program, job) for job in jobs)
    return round(min(max(factor, 1 / MAX_FACTOR), MAX_FACTOR), 3)


def _predicted(program: ProgramConstants, run: MeasuredStep) -> float:
    stepper = StepPredictor(run.model, program, run.towers, run.cpus)
    return run.compute_s + sum(stepper.predict(run.placing, run.compute_s, run.weights, run.gradients))
