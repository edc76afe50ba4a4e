"""A study of measurements (`gputopo.study/1`): cells, figures derived from them, observations."""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from gputopo.values.run.measurement import CONDITIONS, Measurement, Predicted

# Standard error of one run relative to another run of the same job on the same machine, as a share. The eight
# one-GPU pairs of tensorflow.org, synthetic and real data, have ratios of 0.98 to 1.02.
RUN_TO_RUN = 0.01
# A difference is significant from this number of standard errors on: 95 %.
DEVIATIONS = 2.0
# Repeats that differ by more than this share of their mean contradict one another. Not measured; chosen
# because it is ten times the noise of a run.
CONTRADICTS = 0.10


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements under the same conditions."""

    number: int
    runs: tuple[Measurement, ...]  # all runs, complete or not, in the order given
    images_per_sec: float | None  # mean of the complete runs, None if no run is complete
    noise: float | None = None  # its standard error as a share of it, 0.01 for 1 %
    duplicates: tuple[str, ...] = ()  # ignored files, since another file has the same contents

    @property
    def of(self) -> Measurement:
        """The first run with a figure, else the first run. All runs have the same conditions."""
        return next((run for run in self.runs if run.is_measured), self.runs[0])

    @property
    def counted(self) -> list[Measurement]:
        """The complete runs; without unreliable ones, if there are others."""
        measured = [run for run in self.runs if run.is_measured]
        return [run for run in measured if run.spoilt is None] or measured

    @property
    def repeats(self) -> tuple[float, ...]:
        """Images/sec of the complete runs; without unreliable ones, if there are others."""
        return tuple(run.images_per_sec or 0.0 for run in self.counted)

    @property
    def spoilt(self) -> str | None:
        """Why its figure is not reliable enough for a verdict, None if it is."""
        return next((run.spoilt for run in self.counted), None)

    @property
    def failed(self) -> tuple[str, ...]:
        """Reasons of the runs without a figure."""
        return tuple(run.reason or run.status for run in self.runs if not run.is_measured)

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of its runs."""
        return tuple(run.source for run in self.runs)

    @property
    def contradicts(self) -> bool:
        """Whether its repeats differ by more than noise explains."""
        if len(self.repeats) < 2 or not self.images_per_sec:
            return False
        return (max(self.repeats) - min(self.repeats)) / self.images_per_sec > CONTRADICTS


class ScalingRow(msgspec.Struct, frozen=True, kw_only=True):
    """The row for one number of GPUs. `cell`, `baseline`: numbers of cells.

    `same_mode`: whether the run on one GPU used the same exchange of variables, which matters little there.
    """

    cell: int
    baseline: int
    n_gpus: int
    gpus: tuple[int, ...]
    images_per_sec: float
    speedup: float  # over one GPU
    efficiency_percent: float  # speedup divided by the number of GPUs
    noise: float  # standard error of the speedup, as a share
    same_mode: bool


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """A job on one machine with several numbers of GPUs. `rows`: by number, one GPU first."""

    rows: tuple[ScalingRow, ...]

    @property
    def largest(self) -> ScalingRow:
        """The row with the most GPUs."""
        return self.rows[-1]


class MedianScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over `of` jobs with this number of GPUs."""

    n_gpus: int
    speedup: float
    efficiency_percent: float
    of: int


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """The ratio of cells `above` and `below`. `noise`: standard error as a share; `holds`: beyond it."""

    above: int
    below: int
    n_gpus: int
    value: float
    noise: float
    holds: bool


class MedianRatio(msgspec.Struct, frozen=True, kw_only=True):
    """The median of `of` ratios. `n_gpus`: for this number of GPUs; None: for all."""

    n_gpus: int | None
    value: float
    of: int


class RatioTable(msgspec.Struct, frozen=True, kw_only=True):
    """All ratios of the comparison `id` between two values. `above`, `below`: the values in words."""

    id: str
    title: str
    above: str
    below: str
    rows: tuple[Ratio, ...]
    medians: tuple[MedianRatio, ...]


class PairRow(msgspec.Struct, frozen=True, kw_only=True):
    """One job in one mode on pairs of two classes. `near`, `far`: numbers of cells; `mode`: in short."""

    mode: str
    near_path: str
    far_path: str
    near: tuple[int, ...]
    far: tuple[int, ...]
    gain: float  # mean images/sec of the near pairs over the far pairs
    noise: float  # standard error as a share
    holds: bool


class PairTable(msgspec.Struct, frozen=True, kw_only=True):
    """All modes of one job on pairs of GPUs of one machine."""

    machine: str
    model: str
    rows: tuple[PairRow, ...]


class ClockRow(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU compared with the reference GPU, in percent.

    `under_percent`: by how much its images/sec are lower. `explained_percent`: how much of this the clock
    explains at most; `unexplained_percent`: the rest. Both are None if there is no clock, or nothing to
    explain.
    """

    gpu: int
    name: str | None
    images_per_sec: float
    percent: float
    clock: str | None = None  # "core" or "memory", None: unknown
    clock_mhz: float | None = None
    clock_percent: float | None = None
    under_percent: float
    explained_percent: float | None = None
    unexplained_percent: float | None = None
    holds: bool = False


class ClockTable(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of one machine in one job. `reference`: the first GPU, as 100 %. `cells`: numbers of cells."""

    machine: str | None
    model: str
    reference: int
    rows: tuple[ClockRow, ...]
    cells: tuple[int, ...]

    @property
    def where(self) -> str:
        """The machine, if it is known, and the model."""
        return ", ".join(filter(None, (self.machine, self.model)))


class CpuTable(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `cells`: a row for each of `models`, a number for each of `cpus`; None: not run.

    If a run failed, its cell is numbered too and has the reason.
    """

    name: str
    cpus: tuple[str, ...]
    models: tuple[str, ...]
    cells: tuple[tuple[int | None, ...], ...]


class PredictedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cell and the prediction of its plan. `difference_percent`: measured over predicted, minus 1."""

    cell: int
    predicted: Predicted
    images_per_sec: float
    difference_percent: float


Word = Literal["slower", "faster", "even", "cannot tell"]


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """One cell compared with a reference."""

    cell: int
    kind: Literal["published", "earlier"]
    reference: str  # its source
    reference_images_per_sec: float  # its figure
    difference_percent: float  # of the cell relative to the reference, negative: slower
    noise_percent: float  # a smaller difference in this direction is not shown
    verdict: Word
    differs: tuple[str, ...] = ()  # other conditions that differ
    is_regression: bool = False  # slower than an earlier run without another difference
    is_spoilt: bool = False  # the reference is not reliable enough for a verdict


class PooledChange(msgspec.Struct, frozen=True, kw_only=True):
    """Mean change of all cells with an earlier run (geometric), with its confidence interval."""

    cells: tuple[int, ...]
    percent: float  # negative: slower
    low_percent: float
    high_percent: float
    verdict: Word
    differs: tuple[str, ...] = ()  # other conditions that differ

    @property
    def is_regression(self) -> bool:
        """Whether the cells together are slower than earlier runs without another difference."""
        return self.verdict == "slower" and not self.differs

    @property
    def says(self) -> str:
        """The change in a sentence."""
        word: str = self.verdict
        if word in ("slower", "faster"):
            word = f"{abs(self.percent):.1f}% {word} than before"
        software = ", with other software" if self.differs else ""
        interval = f"{self.low_percent:+.1f} to {self.high_percent:+.1f}%"
        return f"All {len(self.cells)} cells together: {word}{software} ({interval})."


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Cells and results derived from them. Numbers of cells are indices of `cells`."""

    cells: tuple[Cell, ...]
    scalings: tuple[Scaling, ...] = ()
    scaling_medians: tuple[MedianScaling, ...] = ()
    ratios: tuple[RatioTable, ...] = ()
    pairs: tuple[PairTable, ...] = ()
    clocks: tuple[ClockTable, ...] = ()
    cpus: tuple[CpuTable, ...] = ()
    predicted: tuple[PredictedRow, ...] = ()
    against: tuple[Against, ...] = ()
    pooled_change: PooledChange | None = None  # compared with earlier runs
    not_again: int = 0  # number of earlier cells with a figure whose job has no figure now


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One observation beyond the noise of the figures. `evidence`: its numbers; `cells`: numbers of cells.

    `weight`: observations of the same id with a larger weight are shown first.
    """

    id: str
    says: str
    evidence: dict[str, Any] = {}
    cells: tuple[int, ...] = ()
    weight: float = 0.0


# Every id with its title, in the order of output.
OBSERVATIONS: dict[str, str] = {
    "earlier.regression": "Slower than before, under the same conditions",
    "conditions.other": "Runs under different conditions",
    "repeats.contradict": "Repeats that differ by more than 10%",
    "figure.suspect": "Figures contradicted by their source or a later measurement",
    "scaling.verdict": "Scaling, median over the jobs",
    "scaling.stops": "More GPUs do not help",
    "mode.best": "Fastest placement of the variables",
    "pairs.path": "Path between two GPUs",
    "clocks.unexplained": "GPUs slower than their peers",
    "input.bottleneck": "The input limits",
    "input.enough": "The input is fast enough",
    "cpu.matters": "Same GPUs, other CPUs",
    "scaling.superlinear": "Above 100% efficiency: one of the two figures is wrong",
    "prediction.outside": "Outside the predicted range",
    "published.slower": "Slower than published for the same GPU model",
    "earlier.changed": "Faster than before, or with other software",
    "gpu.ratio": "GPU models",
    "precision.ratio": "Half precision",
    "xla.ratio": "XLA",
    "layout.ratio": "Layout",
    "batch.throughput": "Batch, images/sec",
    "batch.scaling": "Batch, speedup",
    "program.ratio": "Programs",
    "model.ratio": "Models",
    "cells.failed": "Runs without a figure",
    "compare.refused": "Not compared",
    "repeats.duplicate": "Files given more than once",
}


class UnreadFile(msgspec.Struct, frozen=True, kw_only=True):
    """A given file without a measurement. `why`: the reason in one line."""

    source: str
    why: str


class Study(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.study/1"):
    """A report as a value. `sources`: publications that are shown or compared with, by name."""

    title: str
    headline: str = ""  # the main results in a few sentences
    figures: Figures
    observations: tuple[Observation, ...]
    unread: tuple[UnreadFile, ...] = ()
    sources: dict[str, str] = {}

    @property
    def has_regression(self) -> bool:
        """Whether a cell, or all together, are slower than earlier runs under the same conditions."""
        pooled = self.figures.pooled_change
        return any(row.is_regression for row in (*self.figures.against, *((pooled,) if pooled else ())))

    @property
    def has_failed(self) -> bool:
        """Whether a run has no figure."""
        return any(cell.failed for cell in self.figures.cells)


def stated(some: Iterable[Measurement], name: str) -> frozenset[Any]:
    """Return the values of a condition; None if a run does not report it."""
    return frozenset(getattr(measurement, name) for measurement in some)


_NEVER = frozenset({"backend", "dataset", "gpus", "n_gpus"})
_WITH_MACHINE = ("cpu", "gpu", "version", "data_format", "xla")


def varying(cells: Iterable[Cell]) -> tuple[str, ...]:
    """Return the conditions that differ among cells, so that they must be shown.

    Conditions that are the same in all cells of a machine are not shown.
    """
    some = [cell.of for cell in cells]
    names = [name for name in CONDITIONS if name not in _NEVER and len(stated(some, name)) > 1]
    if "machine" in names:
        known = {
            name: {
                (measurement.machine, value)
                for measurement in some
                if (value := getattr(measurement, name)) is not None
            }
            for name in _WITH_MACHINE
        }
        of_machine = {name for name, pairs in known.items() if len(pairs) == len(dict(pairs))}
        names = [name for name in names if name not in of_machine]
    return tuple(name for name in CONDITIONS if name in names or name == "model")
