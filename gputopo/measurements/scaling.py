"""Speedup and efficiency of each number of GPUs over one, by job, and their medians over jobs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import msgspec

from gputopo.measurements.cells import Cell, ratio_noise
from gputopo.measurements.conditions import MODE, SET, key


class ScalingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One number of GPUs. `cell`, `baseline`: numbers of cells. `speedup`: over one GPU.

    `efficiency_percent`: speedup for each GPU. `noise`: standard error of the speedup, as a share.
    `same_mode`: whether the run of one GPU had the same exchange of variables, which matters little there.
    """

    cell: int
    baseline: int
    n_gpus: int
    gpus: tuple[int, ...]
    images_per_sec: float
    speedup: float
    efficiency_percent: float
    noise: float
    same_mode: bool


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """A job on one machine with several numbers of GPUs; `rows` by number, that of one GPU first."""

    rows: tuple[ScalingRow, ...]

    @property
    def largest(self) -> ScalingRow:
        """The row of the most GPUs."""
        return self.rows[-1]


class MedianScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over `of` jobs with this number of GPUs."""

    n_gpus: int
    speedup: float
    efficiency_percent: float
    of: int


def scalings_of(cells: Sequence[Cell]) -> tuple[Scaling, ...]:
    """Return the scaling of each job that ran on one GPU and on more, in the order of the cells.

    A job's batch per GPU is the same for all numbers (weak scaling). Where several numbers of GPUs ran on
    several sets, each set has its row. One-GPU figures without a mode, or with another one, are used where
    there is none of the mode itself.
    """
    alone: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    jobs: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.images_per_sec is None:
            continue
        if cell.of.n_gpus == 1:
            alone[key(cell.of, (*SET, *MODE))].append(cell)
        else:
            jobs[key(cell.of, SET)].append(cell)
    found = []
    for group in jobs.values():
        baselines = alone.get(key(group[0].of, (*SET, *MODE)), [])
        if not baselines:
            continue
        several = sorted(group, key=lambda cell: (cell.of.n_gpus, cell.of.gpus))
        rows = [_row(cell, _baseline(cell, baselines)) for cell in several]
        first = _baseline(several[0], baselines)
        found.append(Scaling(rows=(_row(first, first), *rows)))
    return tuple(found)


def medians_of(scalings: Iterable[Scaling]) -> tuple[MedianScaling, ...]:
    """Return the medians over all jobs, by number of GPUs, without the figure of one GPU."""
    by_number: dict[int, list[ScalingRow]] = defaultdict(list)
    for scaling in scalings:
        for row in scaling.rows[1:]:
            by_number[row.n_gpus].append(row)
    return tuple(
        MedianScaling(
            n_gpus=number,
            speedup=median(row.speedup for row in rows),
            efficiency_percent=median(row.efficiency_percent for row in rows),
            of=len(rows),
        )
        for number, rows in sorted(by_number.items())
    )


def _baseline(cell: Cell, alone: Sequence[Cell]) -> Cell:
    """Return the one-GPU figure of the same mode, then of a GPU of the set, then the fastest."""

    def rank(one: Cell) -> tuple[bool, bool, float]:
        same = all(getattr(one.of, name) == getattr(cell.of, name) for name in MODE)
        return same, bool(set(one.of.gpus) & set(cell.of.gpus)), one.images_per_sec or 0.0

    return max(alone, key=rank)


def _row(cell: Cell, baseline: Cell) -> ScalingRow:
    speed, one = cell.images_per_sec or 0.0, baseline.images_per_sec or 0.0
    speedup = speed / one
    return ScalingRow(
        cell=cell.number,
        baseline=baseline.number,
        n_gpus=cell.of.n_gpus,
        gpus=cell.of.gpus,
        images_per_sec=speed,
        speedup=speedup,
        efficiency_percent=100 * speedup / cell.of.n_gpus,
        noise=0.0 if cell is baseline else ratio_noise(cell, baseline),
        same_mode=cell is baseline or all(getattr(cell.of, n) == getattr(baseline.of, n) for n in MODE),
    )
