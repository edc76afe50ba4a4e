"""All figures of a study: cells, scaling, ratios, pairs, clocks, predicted, published, earlier ones."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import NormalDist, fmean
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


Word = Literal["slower", "faster", "even", "cannot tell"]
# What may differ between a run and a published figure of the same job on the same GPU model.
ELSEWHERE = ("machine", "cpu", "backend", "gpu", "gpus", "framework", "method", "version", "dataset", "xla",
             "variable_update", "ps_device", "all_reduce", "data_format")  # fmt: skip
# What may differ between a run and an earlier one of this machine: named, and then it is no regression.
EARLIER = ("version", "framework")
SMALLEST_EFFECT = 0.02  # share below which a difference from an earlier run is none
ASSUMED = 0.025  # deviation of one run, where nothing was repeated and few are compared; ours
CONFIDENCE = 0.95  # that none of the differences from a reference is by chance
# Comparisons from which on their own spread is a measure of the noise.
_MANY = 8
_TOO_SHORT = 1.2  # since it is the shortest: of 10 to 100 equal cells, 5 % have a difference by chance
_SHORTH_OF_NORMAL = 1.349  # deviations: the shortest interval that holds half of normal values


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """One cell beside a reference."""

    cell: int
    kind: Literal["published", "earlier"]
    reference: str  # its source
    reference_images_per_sec: float  # its figure
    difference_percent: float  # of the cell over it, negative: slower
    noise_percent: float  # a difference below this, in its direction, is none
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
    smallest_effect: float = SMALLEST_EFFECT,
) -> Figures:
    """Return all figures. `machines`: by name, for paths and clocks; `earlier`: runs of this machine before;
    `references`: published figures; `smallest_effect`: share below which a difference from them is none.
    """
    cells = cells_of(measurements)
    scalings = scalings_of(cells)
    before = against_earlier(cells, cells_of(earlier), smallest_effect)
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


def against_published(cells: Sequence[Cell], references: Iterable[Cell]) -> tuple[Against, ...]:
    """Return each cell beside the published figure that is alike in most conditions, where there is one."""
    known = [one for one in references if one.of.suspect is None]
    pairs = [(cell, other) for cell, other in _nearest(cells, known, _job) if cell.of.gpu]
    return tuple(_against(*pair, "published", DEVIATIONS * ratio_noise(*pair)) for pair in pairs)


def against_earlier(
    cells: Sequence[Cell], earlier: Iterable[Cell], smallest_effect: float = SMALLEST_EFFECT
) -> tuple[Against, ...]:
    """Return each cell beside the earlier cell of the same conditions, where there is one.

    A difference counts from the smallest effect on, and beyond the noise: that of the figures, of all
    repeats, or that which the spread of all differences shows, at a confidence that holds for all comparisons
    together.
    """
    pairs = _nearest(cells, earlier, lambda cell: key(cell.of, EARLIER))
    changes = [math.log((now.images_per_sec or 1.0) / (then.images_per_sec or 1.0)) for now, then in pairs]
    spread = _spread(changes)
    deviations = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / max(len(pairs), 1))
    least = math.log1p(smallest_effect)
    run, of_few = _run_to_run([cell for pair in pairs for cell in pair], deviations)
    run = 0.0 if spread else run
    return tuple(
        _against(
            *(now, then),
            "earlier",
            max(
                deviations * max(ratio_noise(now, then), spread),
                of_few * run * math.hypot(len(now.repeats) ** -0.5, len(then.repeats) ** -0.5),
                least,
            ),
        )
        for now, then in pairs
    )


def _run_to_run(cells: Sequence[Cell], deviations: float) -> tuple[float, float]:
    """Return the deviation of one run as a share, by all repeats, and `deviations` as of so few (Student)."""
    repeated = [cell.repeats for cell in cells if len(cell.repeats) > 1]
    free = sum(map(len, repeated)) - len(repeated)
    if not free:
        return ASSUMED, deviations
    squares = sum((value / fmean(some) - 1) ** 2 for some in repeated for value in some)
    return math.sqrt(squares / free), deviations * (1 + (deviations**2 + 1) / (4 * free))


def not_comparable(cells: Iterable[Cell], earlier: Sequence[Cell]) -> str:
    """Return in words the conditions in which cells differ from the earlier ones that are most alike."""
    found: Counter[str] = Counter()
    for cell in cells:
        apart = (differences(cell.of, other.of) for other in earlier)
        found.update(CONDITIONS[name] for name in min(apart, key=len, default=()) if name not in EARLIER)
    return ", ".join(name for name, _ in found.most_common(3)) or "figures"


def _nearest(
    cells: Iterable[Cell], others: Iterable[Cell], job_of: Callable[[Cell], tuple[Any, ...]]
) -> list[tuple[Cell, Cell]]:
    """Return each cell with that of the others, of the same job, which is alike in most conditions."""
    known: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for one in others:
        if one.images_per_sec:
            known[job_of(one)].append(one)
    found = []
    for cell in cells:
        if cell.images_per_sec and (same := known.get(job_of(cell))):
            found.append((cell, min(same, key=lambda other: len(differences(cell.of, other.of)))))
    return found


def _spread(changes: Sequence[float]) -> float:
    """Return the standard deviation by the shortest interval that holds half of the values; 0 of a few.

    Where most of the cells did not change, or all by the same, those that did are not taken for noise.
    """
    half = len(changes) // 2 + 1
    ordered = sorted(changes)
    if len(ordered) < _MANY:
        return 0.0
    shortest = min(high - low for low, high in zip(ordered, ordered[half - 1 :], strict=False))
    return _TOO_SHORT * (1 + 4 / len(ordered)) * shortest / _SHORTH_OF_NORMAL


def _job(cell: Cell) -> tuple[Any, ...]:
    gpu = expected_gpu(cell.of.gpu or "")
    return (gpu.name if gpu else cell.of.gpu, *key(cell.of, ELSEWHERE))


def _against(cell: Cell, reference: Cell, kind: Literal["published", "earlier"], noise: float) -> Against:
    """Return a comparison. `noise`: of the logarithm of the ratio, up to which it is none."""
    ratio = (cell.images_per_sec or 0.0) / (reference.images_per_sec or 1.0)
    verdict: Word = "slower" if ratio < 1 else "faster"
    if cell.spoilt or reference.spoilt:
        verdict = "cannot tell"
    elif abs(math.log(ratio)) <= noise:
        verdict = "even"
    differs = tuple(CONDITIONS[name] for name in differences(cell.of, reference.of))
    return Against(
        cell=cell.number,
        kind=kind,
        reference=reference.sources[0],
        reference_images_per_sec=reference.images_per_sec or 0.0,
        difference_percent=100 * (ratio - 1),
        noise_percent=100 * abs(math.expm1(math.copysign(noise, ratio - 1))),
        verdict=verdict,
        differs=differs,
        is_regression=kind == "earlier" and verdict == "slower" and not differs,
    )
