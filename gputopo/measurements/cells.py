"""Cells of a study: all measurements under the same conditions, with mean, spread and what failed."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

import msgspec

from gputopo.measurements.conditions import RUN_TO_RUN, key
from gputopo.values.run.measurement import Measurement

# Repeats that differ by more than this share of their mean contradict one another: ours, ten times the
# noise of a run.
CONTRADICTS = 0.10


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements under the same conditions. `runs`: each, complete or not, in the order given.

    `images_per_sec`: mean of the complete ones, None where there is none; `noise`: standard error of it as a
    share of it, 0.01 for 1 %. `duplicates`: files left out, since their contents are those of another.
    """

    number: int
    runs: tuple[Measurement, ...]
    images_per_sec: float | None
    noise: float | None = None
    duplicates: tuple[str, ...] = ()

    @property
    def of(self) -> Measurement:
        """The first run with a figure, else the first: the conditions are those of all."""
        return next((one for one in self.runs if one.is_measured), self.runs[0])

    @property
    def repeats(self) -> tuple[float, ...]:
        """Images/sec of the complete runs."""
        return tuple(one.images_per_sec or 0.0 for one in self.runs if one.is_measured)

    @property
    def failed(self) -> tuple[str, ...]:
        """Reasons of the runs without a figure."""
        return tuple(one.reason or one.status for one in self.runs if not one.is_measured and one.is_run)

    @property
    def not_run(self) -> tuple[str, ...]:
        """Reasons of what a sweep refused, left out, or has not run yet."""
        return tuple(one.reason or one.status for one in self.runs if not one.is_run)

    @property
    def sources(self) -> tuple[str, ...]:
        """Where its runs are from."""
        return tuple(one.source for one in self.runs)

    @property
    def contradicts(self) -> bool:
        """Whether its repeats differ by more than noise can explain."""
        if len(self.repeats) < 2 or not self.images_per_sec:
            return False
        return (max(self.repeats) - min(self.repeats)) / self.images_per_sec > CONTRADICTS


def cells_of(measurements: Iterable[Measurement]) -> tuple[Cell, ...]:
    """Return the cells in the order of their first measurements; the same file counts once."""
    groups: dict[tuple[Any, ...], list[Measurement]] = defaultdict(list)
    for one in measurements:
        groups[key(one)].append(one)
    return tuple(_cell(number, group) for number, group in enumerate(groups.values()))


def _cell(number: int, group: Sequence[Measurement]) -> Cell:
    seen: set[str] = set()
    once: list[Measurement] = []
    duplicates: list[str] = []
    for one in group:
        if one.digest is not None and one.digest in seen:
            duplicates.append(one.source)
            continue
        seen |= {one.digest} if one.digest else set()
        once.append(one)
    measured = [one for one in once if one.is_measured]
    speeds = tuple(one.images_per_sec or 0.0 for one in measured)
    return Cell(
        number=number,
        runs=tuple(once),
        images_per_sec=fmean(speeds) if speeds else None,
        noise=_noise(measured) if speeds else None,
        duplicates=tuple(duplicates),
    )


def _noise(measured: Sequence[Measurement]) -> float:
    """Return the standard error of the mean, as a share: of the repeats, or of one run and between runs."""
    speeds = [one.images_per_sec or 0.0 for one in measured]
    mean = fmean(speeds)
    if len(speeds) == 1:
        return math.hypot((measured[0].uncertainty or 0.0) / mean, RUN_TO_RUN) if mean else RUN_TO_RUN
    return max(stdev(speeds) / mean, RUN_TO_RUN) / math.sqrt(len(speeds)) if mean else RUN_TO_RUN


def ratio_noise(one: Cell, other: Cell) -> float:
    """Return the standard error of the logarithm of a ratio of two cells."""
    return math.hypot(one.noise or 0.0, other.noise or 0.0)
