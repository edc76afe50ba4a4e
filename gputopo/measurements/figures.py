"""All figures of a study: cells, scaling, ratios, pairs, clocks, predicted, published, earlier ones."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from gputopo.measurements.cells import CONDITIONS, DEVIATIONS, Cell, cells_of, differences, key, ratio_noise
from gputopo.measurements.clocks import ClockTable, CpuTable, clock_tables, cpu_tables
from gputopo.measurements.ratios import (
    MedianScaling,
    PairTable,
    RatioTable,
    Scaling,
    medians_of,
    pair_tables,
    ratio_tables,
    scalings_of,
)
from gputopo.reference.expectations import expected_gpu
from gputopo.values.machine import Machine
from gputopo.values.run.measurement import Measurement, Predicted


class PredictedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cell beside what its plan predicted. `difference_percent`: measured over predicted, less 1."""

    cell: int
    predicted: Predicted
    images_per_sec: float
    difference_percent: float


Word = Literal["slower", "faster", "even"]
# What may differ between a run and a published figure of the same job on the same GPU model.
ELSEWHERE = ("machine", "cpu", "backend", "gpu", "gpus", "framework", "method", "version", "dataset", "xla",
             "variable_update", "ps_device", "all_reduce", "data_format")  # fmt: skip
# What may differ between a run and an earlier one of this machine: named, and then it is no regression.
EARLIER = ("version", "framework")


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """One cell beside a reference."""

    cell: int
    kind: Literal["published", "earlier"]
    reference: str  # its source
    reference_images_per_sec: float  # its figure
    difference_percent: float  # of the cell over it, negative: slower
    noise_percent: float  # a difference below this is none
    verdict: Word
    differs: tuple[str, ...] = ()  # conditions that differ as well
    is_regression: bool = False  # slower than an earlier run with no other difference


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


def against_published(cells: Sequence[Cell], references: Sequence[Cell]) -> tuple[Against, ...]:
    """Return each cell beside the published figure that is alike in most conditions, where there is one."""
    known: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for one in references:
        if one.images_per_sec is not None and one.of.suspect is None:
            known[_job(one)].append(one)
    found = []
    for cell in cells:
        same = known.get(_job(cell), []) if cell.images_per_sec is not None and cell.of.gpu else []
        if same:
            nearest = min(same, key=lambda other: len(differences(cell.of, other.of)))
            found.append(_against(cell, nearest, "published"))
    return tuple(found)


def against_earlier(cells: Sequence[Cell], earlier: Iterable[Cell]) -> tuple[Against, ...]:
    """Return each cell beside the earlier cell of the same conditions, where there is one."""
    known: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for one in earlier:
        if one.images_per_sec is not None:
            known[key(one.of, EARLIER)].append(one)
    found = []
    for cell in cells:
        same = known.get(key(cell.of, EARLIER), []) if cell.images_per_sec is not None else []
        if same:
            nearest = min(same, key=lambda other: len(differences(cell.of, other.of)))
            found.append(_against(cell, nearest, "earlier"))
    return tuple(found)


def _job(cell: Cell) -> tuple[Any, ...]:
    gpu = expected_gpu(cell.of.gpu or "")
    return (gpu.name if gpu else cell.of.gpu, *key(cell.of, ELSEWHERE))


def _against(cell: Cell, reference: Cell, kind: Literal["published", "earlier"]) -> Against:
    ratio = (cell.images_per_sec or 0.0) / (reference.images_per_sec or 1.0)
    noise = DEVIATIONS * ratio_noise(cell, reference)
    beyond = ratio > 0 and abs(math.log(ratio)) > noise
    verdict: Word = "even" if not beyond else "slower" if ratio < 1 else "faster"
    differs = tuple(CONDITIONS[name] for name in differences(cell.of, reference.of))
    return Against(
        cell=cell.number,
        kind=kind,
        reference=reference.sources[0],
        reference_images_per_sec=reference.images_per_sec or 0.0,
        difference_percent=100 * (ratio - 1),
        noise_percent=100 * math.expm1(noise),
        verdict=verdict,
        differs=differs,
        is_regression=kind == "earlier" and verdict == "slower" and not differs,
    )
