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


def key(one: Measurement, free: Iterable[str] = ()) -> tuple[Any, ...]:
    """Return all conditions of a measurement except the `free` ones. Equal keys: may be compared."""
    left_out = set(free)
    return tuple(None if name in left_out else getattr(one, name) for name in CONDITIONS)


def differences(one: Measurement, other: Measurement) -> tuple[str, ...]:
    """Return the names of the conditions in which two measurements differ, in order."""
    return tuple(name for name in CONDITIONS if getattr(one, name) != getattr(other, name))


def holds(ratio: float, noise: float) -> bool:
    """Return whether a ratio is beyond the noise. `noise`: standard error of its logarithm."""
    return ratio > 0 and abs(math.log(ratio)) > DEVIATIONS * noise


def cells_of(measurements: Iterable[Measurement]) -> tuple[Cell, ...]:
    """Return the cells in the order of their first measurements. Copies of the same file count once.

    Each run with a drill has its own cell, after all others.
    """
    groups = grouped(
        ((*key(one), one.source if one.is_drill else None), one)
        for one in sorted(measurements, key=lambda one: one.is_drill)
    )
    return tuple(_cell(number, group) for number, group in enumerate(groups.values()))


def without_drills(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Return the cells that may be compared: the cells before the runs with drills."""
    return cells[: sum(not cell.of.is_drill for cell in cells)]


def _cell(number: int, group: Sequence[Measurement]) -> Cell:
    # Measurements without a digest are treated as different files.
    files = grouped((one.digest or place, one) for place, one in enumerate(group))
    duplicates = tuple(copy.source for copies in files.values() for copy in copies[1:])
    runs = tuple(copies[0] for copies in files.values())
    cell = Cell(number=number, runs=runs, images_per_sec=None, duplicates=duplicates)
    if not cell.counted:
        return cell
    mean = fmean(cell.repeats)
    return msgspec.structs.replace(cell, images_per_sec=mean, noise=_noise(cell.counted, mean))


def _noise(measured: Sequence[Measurement], mean: float) -> float:
    """Return the standard error of the mean, as a share.

    It comes from the repeats, or from one run's own noise and the assumed variation between runs.
    """
    if not mean:
        return RUN_TO_RUN
    if len(measured) == 1:
        return math.hypot((measured[0].uncertainty or 0.0) / mean, RUN_TO_RUN)
    spread = stdev(one.images_per_sec or 0.0 for one in measured) / mean
    return max(spread, RUN_TO_RUN) / math.sqrt(len(measured))


def ratio_noise(one: Cell, other: Cell) -> float:
    """Return the standard error of the logarithm of a ratio of two cells; 0 if they are the same cell."""
    return 0.0 if one is other else math.hypot(one.noise or 0.0, other.noise or 0.0)


def ratio_holds(one: Cell, other: Cell) -> bool:
    """Return whether two cells differ beyond their noise; always False if one of them is spoilt."""
    if one.spoilt or other.spoilt or not other.images_per_sec:
        return False
    return holds((one.images_per_sec or 0.0) / other.images_per_sec, ratio_noise(one, other))
