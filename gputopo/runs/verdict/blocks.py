"""Columns of numbers, one row a step, in bounded memory: when they are full, three rows become one."""

import math
from collections.abc import Sequence
from statistics import fmean, median

# Rows that are stored at most. Enough to judge, and so few that judging takes well under a second. Ours.
CAPACITY = 600
FOLD = 3  # rows that become one: a median of three ignores an outlier
# A logarithm or a share beyond this counts as this in a mean: a stall of seconds is no pace.
MEAN_LIMIT = 0.7


class Blocks:
    """Rows of a table. `size`: steps in each row but those of the latest, open one, which is not read.

    `medians`, `means`: by column, a value per row; NaN where a column has no value in a row. A mean is of
    values cut to +-`mean_limit`, so that it sees what a median of few slow steps does not.
    `first_steps`: number of the first step of each row.
    """

    def __init__(self, columns: int, mean_limit: float = MEAN_LIMIT) -> None:
        self.size = 1
        self._limit = mean_limit
        self.medians: list[list[float]] = [[] for _ in range(columns)]
        self.means: list[list[float]] = [[] for _ in range(columns)]
        self.first_steps: list[int] = []
        self._open: list[Sequence[float]] = []
        self._open_first = 0

    def add(self, step: int, row: Sequence[float]) -> None:
        """Add the row of a step. NaN: no value."""
        if not self._open:
            self._open_first = step
        self._open.append(row)
        if len(self._open) < self.size:
            return
        self.first_steps.append(self._open_first)
        for column, values in enumerate(zip(*self._open, strict=True)):
            self.medians[column].append(_median(values))
            self.means[column].append(_mean([_cut(value, self._limit) for value in values]))
        self._open = []
        if len(self.first_steps) >= CAPACITY:
            self._fold()

    def _fold(self) -> None:
        starts = range(0, len(self.first_steps), FOLD)
        self.first_steps = [self.first_steps[start] for start in starts]
        self.medians = [[_median(column[s : s + FOLD]) for s in starts] for column in self.medians]
        self.means = [[_mean(column[s : s + FOLD]) for s in starts] for column in self.means]
        self.size *= FOLD


def _cut(value: float, limit: float) -> float:
    return value if math.isnan(value) else min(max(value, -limit), limit)


def _median(values: Sequence[float]) -> float:
    if len(values) == 1:  # up to CAPACITY steps each row is one
        return values[0]
    known = [value for value in values if not math.isnan(value)]
    return median(known) if known else math.nan


def _mean(values: Sequence[float]) -> float:
    if len(values) == 1:
        return values[0]
    known = [value for value in values if not math.isnan(value)]
    return fmean(known) if known else math.nan
