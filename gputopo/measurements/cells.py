"""Cells of a study: the measurements under the same conditions, with mean, spread and failures."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

import msgspec

from gputopo.values.grouping import grouped
from gputopo.values.run.measurement import CONDITIONS, MODE, Measurement
from gputopo.values.study import DEVIATIONS, RUN_TO_RUN, Cell

SET = ("n_gpus", "gpus")
BOX = ("machine", "cpu", "gpu", "gpus")


class Comparison(NamedTuple):
    """A ratio of measurements that differ in `by`.

    `over`: pairs of values of `by`, (above, below) in the ratio. If empty, each value is compared with the
    smallest one, or with the first by name.
    """

    id: str
    title: str  # of the table
    by: str
    free: tuple[str, ...] = ()  # conditions that may differ too, because they depend on `by`
    over: tuple[tuple[Any, Any], ...] = ()


COMPARISONS: tuple[Comparison, ...] = (
    Comparison("data", "Synthetic over real data", "data", ("distortions",), (("synthetic", "real"),)),
    Comparison(
        "data-made", "Examples made elsewhere over examples made on the device", "data",
        over=(("synthetic-cpu", "synthetic"), ("synthetic-python", "synthetic")),
    ),
    Comparison("distortions", "With distortions over without", "distortions", over=((True, False),)),
    Comparison("batch", "Larger batch over smaller, images/sec", "batch_per_gpu"),
    Comparison("gpu", "GPU models", "gpu", BOX),
    Comparison("model", "Models", "model"),
    Comparison("layout", "NCHW over NHWC", "data_format", over=(("NCHW", "NHWC"),)),
    Comparison(
        "precision", "Half precision over fp32", "precision", over=(("fp16", "fp32"), ("bf16", "fp32"))
    ),
    Comparison("xla", "With XLA over without", "xla", over=((True, False),)),
    Comparison("program", "Programs", "framework", ("method", "version", *MODE)),
)  # fmt: skip


def key(run: Measurement, free: Iterable[str] = ()) -> tuple[Any, ...]:
    """Return all conditions of a measurement except the `free` ones. Equal keys: may be compared."""
    left_out = set(free)
    return tuple(None if name in left_out else getattr(run, name) for name in CONDITIONS)


def differences(run: Measurement, other: Measurement) -> tuple[str, ...]:
    """Return the names of the conditions in which two measurements differ, in order."""
    return tuple(name for name in CONDITIONS if getattr(run, name) != getattr(other, name))


def holds(ratio: float, noise: float) -> bool:
    """Return whether a ratio is beyond the noise. `noise`: standard error of its logarithm."""
    return ratio > 0 and abs(math.log(ratio)) > DEVIATIONS * noise


def cells_of(measurements: Iterable[Measurement]) -> tuple[Cell, ...]:
    """Return the cells in the order of their first measurements. Copies of the same file count once.

    Each run with a drill has its own cell, after all others.
    """
    groups = grouped(
        ((*key(run), run.source if run.is_drill else None), run)
        for run in sorted(measurements, key=lambda run: run.is_drill)
    )
    return tuple(_cell(number, group) for number, group in enumerate(groups.values()))


def without_drills(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Return the cells that may be compared: the cells before the runs with drills."""
    return cells[: sum(not cell.of.is_drill for cell in cells)]


def _cell(number: int, group: Sequence[Measurement]) -> Cell:
    # Measurements without a digest are treated as different files.
    files = grouped((run.digest or place, run) for place, run in enumerate(group))
    duplicates = tuple(copy.source for copies in files.values() for copy in copies[1:])
    runs = tuple(copies[0] for copies in files.values())
    cell = Cell(number=number, runs=runs, images_per_sec=None, duplicates=duplicates)
    counted = cell.counted
    if not counted:
        return cell
    mean = fmean(cell.repeats)
    # The standard error of the mean, as a share: from the repeats, or from one run's own noise and the
    # assumed variation between runs.
    if not mean:
        noise = RUN_TO_RUN
    elif len(counted) == 1:
        noise = math.hypot((counted[0].uncertainty or 0.0) / mean, RUN_TO_RUN)
    else:
        noise = max(stdev(cell.repeats) / mean, RUN_TO_RUN) / math.sqrt(len(counted))
    return msgspec.structs.replace(cell, images_per_sec=mean, noise=noise)


def ratio_noise(cell: Cell, other: Cell) -> float:
    """Return the standard error of the logarithm of a ratio of two cells; 0 if they are the same cell."""
    return 0.0 if cell is other else math.hypot(cell.noise or 0.0, other.noise or 0.0)


def ratio_holds(cell: Cell, other: Cell) -> bool:
    """Return whether two cells differ beyond their noise; always False if one of them is spoilt."""
    if cell.spoilt or other.spoilt or not other.images_per_sec:
        return False
    return holds((cell.images_per_sec or 0.0) / other.images_per_sec, ratio_noise(cell, other))
