"""All that is derived from measurements without a judgement: what observations are made of."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from gputopo.measurements.against import Against, against_earlier, against_published
from gputopo.measurements.by_cpu import CpuTable, cpu_tables
from gputopo.measurements.cells import Cell, cells_of
from gputopo.measurements.clocks import ClockTable, clock_tables
from gputopo.measurements.pairs import PairTable, pair_tables
from gputopo.measurements.ratios import RatioTable, ratio_tables
from gputopo.measurements.scaling import MedianScaling, Scaling, medians_of, scalings_of
from gputopo.values.machine import Machine
from gputopo.values.run.measurement import Measurement, Predicted


class PredictedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cell beside what its plan predicted. `difference_percent`: measured over predicted, less 1."""

    cell: int
    predicted: Predicted
    images_per_sec: float
    difference_percent: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Cells and what follows from them. Numbers of cells are places in `cells`."""

    cells: tuple[Cell, ...]
    scalings: tuple[Scaling, ...] = ()
    scaling_medians: tuple[MedianScaling, ...] = ()
    ratios: tuple[RatioTable, ...] = ()
    pairs: tuple[PairTable, ...] = ()
    clocks: tuple[ClockTable, ...] = ()
    cpus: tuple[CpuTable, ...] = ()
    predicted: tuple[PredictedRow, ...] = ()
    against: tuple[Against, ...] = ()


def figures_of(
    measurements: Iterable[Measurement],
    *,
    machines: Mapping[str, Machine] = {},
    earlier: Iterable[Measurement] = (),
    references: Iterable[Measurement] = (),
) -> Figures:
    """Return all figures. `machines`: by name, for paths and clocks; `earlier`: runs of this machine before;
    `references`: published figures.
    """
    cells = cells_of(measurements)
    scalings = scalings_of(cells)
    before = against_earlier(cells, cells_of(earlier))
    return Figures(
        cells=cells,
        scalings=scalings,
        scaling_medians=medians_of(scalings),
        ratios=ratio_tables(cells, scalings),
        pairs=pair_tables(cells, machines),
        clocks=clock_tables(cells, machines),
        cpus=cpu_tables(cells),
        predicted=_predicted(cells),
        against=(*before, *against_published(cells, cells_of(references))),
    )


def _predicted(cells: Sequence[Cell]) -> tuple[PredictedRow, ...]:
    return tuple(
        PredictedRow(
            cell=cell.number,
            predicted=cell.of.predicted,
            images_per_sec=cell.images_per_sec,
            difference_percent=100 * (cell.images_per_sec / cell.of.predicted.images_per_sec - 1),
        )
        for cell in cells
        if cell.of.predicted is not None and cell.images_per_sec is not None
    )
