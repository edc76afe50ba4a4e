"""One factor between the predicted steps of a machine and those that its own runs had. Pure."""

from collections.abc import Sequence
from statistics import median

from gputopo.values.run.plan import MIN_JOBS

MAX_FACTOR = 2.0  # Not measured; chosen because a run that is farther from its prediction is disturbed.


def step_factor(ratios: Sequence[float]) -> float:
    """Return the median of measured over predicted seconds of the jobs of one machine; 1 if there are few."""
    if len(ratios) < MIN_JOBS:
        return 1.0
    return round(min(max(median(ratios), 1 / MAX_FACTOR), MAX_FACTOR), 3)
