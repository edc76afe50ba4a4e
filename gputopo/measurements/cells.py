"""Cells of a study: all measurements under the same conditions, with mean, spread and what failed."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

import msgspec

from gputopo.values.run.measurement import Measurement

# All conditions of a measurement, in the order in which a difference is named, with the words for it.
CONDITIONS: Mapping[str, str] = {
    "machine": "machine",
    "cpu": "CPU",
    "backend": "kind of device",
    "gpu": "GPU model",
    "n_gpus": "number of GPUs",
    "gpus": "set of GPUs",
    "framework": "program",
    "method": "method",
    "version": "version of TensorFlow",
    "task": "task",
    "unit": "unit of the speed",
    "model": "model",
    "dataset": "data set",
    "data": "data source",
    "distortions": "distortions",
    "batch_per_gpu": "batch per device",
    "precision": "precision",
    "data_format": "layout",
    "xla": "XLA",
    "variable_update": "variable update",
    "ps_device": "parameter server",
    "all_reduce": "reduction",
}
MODE = ("variable_update", "ps_device", "all_reduce")
SET = ("n_gpus", "gpus")
BOX = ("machine", "cpu", "gpu", "gpus")

# Standard error of one run against another one of the same job on the same machine, as a share. The eight
# one-GPU pairs of tensorflow.org, synthetic against real data, have ratios of 0.98 to 1.02.
RUN_TO_RUN = 0.01
# A difference holds from this many standard errors on: 95 %.
DEVIATIONS = 2.0


class Comparison(NamedTuple):
    """A ratio of measurements that differ in `by`.

    `over`: the values of `by` as (above, below) of the ratio; empty: each over the smallest or the first by
    name.
    """

    id: str
    title: str  # of its table
    by: str
    free: tuple[str, ...] = ()  # what else may differ, since it goes with it
    over: tuple[tuple[Any, Any], ...] = ()


COMPARISONS: tuple[Comparison, ...] = (
    Comparison("data", "Synthetic over real data", "data", ("distortions",), (("synthetic", "real"),)),
    Comparison(
        "data-made", "Examples made elsewhere over made on the device", "data",
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
    """Return all conditions of a measurement, without the free ones: equal for those that may be compared."""
    left_out = set(free)
    return tuple(None if name in left_out else getattr(one, name) for name in CONDITIONS)


def differences(one: Measurement, other: Measurement) -> tuple[str, ...]:
    """Return the names of the conditions in which two measurements differ, in order."""
    return tuple(name for name in CONDITIONS if getattr(one, name) != getattr(other, name))


def value_words(name: str, value: Any) -> str:
    """Return the value of a condition in words."""
    if value is None or value == ():
        return "not stated"
    if name == "xla":
        return "XLA" if value else "no XLA"
    if name == "distortions":
        return "distortions" if value else "no distortions"
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"{text}/sec" if name == "unit" else text


def holds(ratio: float, noise: float) -> bool:
    """Return whether a ratio is beyond the noise. `noise`: standard error of its logarithm."""
    return ratio > 0 and abs(math.log(ratio)) > DEVIATIONS * noise


# Repeats that differ by more than this share of their mean contradict one another: ours, ten times the
# noise of a run.
CONTRADICTS = 0.10


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements under the same conditions."""

    number: int
    runs: tuple[Measurement, ...]  # each, complete or not, in the order given
    images_per_sec: float | None  # mean of the complete ones, None where there is none
    noise: float | None = None  # standard error of it as a share of it, 0.01 for 1 %
    duplicates: tuple[str, ...] = ()  # files left out, since their contents are those of another

    @property
    def of(self) -> Measurement:
        """The first run with a figure, else the first: the conditions are those of all."""
        return next((one for one in self.runs if one.is_measured), self.runs[0])

    @property
    def repeats(self) -> tuple[float, ...]:
        """Images/sec of the complete runs; without spoilt ones, if there are others."""
        return tuple(one.images_per_sec or 0.0 for one in _counted(self.runs))

    @property
    def spoilt(self) -> str | None:
        """Why its figure supports no verdict, None where it does."""
        return next((one.spoilt for one in _counted(self.runs)), None)

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
    """Return the cells in the order of their first measurements; the same file counts once.

    Each run with a drill is a cell of its own, after all others.
    """
    groups: dict[tuple[Any, ...], list[Measurement]] = defaultdict(list)
    for one in sorted(measurements, key=lambda one: one.is_drill):
        groups[(*key(one), one.source if one.is_drill else None)].append(one)
    return tuple(_cell(number, group) for number, group in enumerate(groups.values()))


def without_drills(cells: Sequence[Cell]) -> Sequence[Cell]:
    """Return the cells that may be compared: those before the runs with drills."""
    return cells[: sum(not cell.of.is_drill for cell in cells)]


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
    measured = _counted(once)
    mean = fmean(one.images_per_sec or 0.0 for one in measured) if measured else None
    return Cell(
        number=number,
        runs=tuple(once),
        images_per_sec=mean,
        noise=None if mean is None else _noise(measured, mean),
        duplicates=tuple(duplicates),
    )


def _counted(runs: Iterable[Measurement]) -> list[Measurement]:
    """Return the complete runs; without spoilt ones, if there are others."""
    measured = [one for one in runs if one.is_measured]
    return [one for one in measured if one.spoilt is None] or measured


def _noise(measured: Sequence[Measurement], mean: float) -> float:
    """Return the standard error of the mean, as a share: of the repeats, or of one run and between runs."""
    if not mean:
        return RUN_TO_RUN
    if len(measured) == 1:
        return math.hypot((measured[0].uncertainty or 0.0) / mean, RUN_TO_RUN)
    spread = stdev(one.images_per_sec or 0.0 for one in measured) / mean
    return max(spread, RUN_TO_RUN) / math.sqrt(len(measured))


def ratio_noise(one: Cell, other: Cell) -> float:
    """Return the standard error of the logarithm of a ratio of two cells; 0 of a cell over itself."""
    return 0.0 if one is other else math.hypot(one.noise or 0.0, other.noise or 0.0)


def ratio_holds(one: Cell, other: Cell) -> bool:
    """Return whether two cells differ beyond their noise; never where one of them is spoilt."""
    if one.spoilt or other.spoilt or not other.images_per_sec:
        return False
    return holds((one.images_per_sec or 0.0) / other.images_per_sec, ratio_noise(one, other))
