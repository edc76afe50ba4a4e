"""All figures of a study: cells, scaling, ratios, pairs, clocks, predicted, published, earlier ones."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any, Literal

from gputopo.measurements.cells import cells_of, differences, key, ratio_noise, without_drills
from gputopo.measurements.clocks import clock_tables, cpu_tables
from gputopo.measurements.ratios import medians_of, pair_tables, ratio_tables, scalings_of
from gputopo.reference import expected_gpu
from gputopo.values.grouping import grouped
from gputopo.values.machine import Machine
from gputopo.values.run.measurement import CONDITIONS, Measurement
from gputopo.values.run.noise import students_t
from gputopo.values.study import (
    DEVIATIONS,
    Against,
    Cell,
    Figures,
    PooledChange,
    PredictedRow,
    Word,
)

# Conditions that may differ between a run and a published figure of the same job on the same GPU model.
ELSEWHERE = ("machine", "cpu", "backend", "gpu", "gpus", "framework", "method", "version", "dataset", "xla",
             "variable_update", "ps_device", "all_reduce", "data_format")  # fmt: skip
# Conditions that may differ between a run and an earlier one of this machine. If they do, the difference is
# reported, but not as a regression.
EARLIER = ("version", "framework")
SMALLEST_EFFECT = 0.02  # share; a smaller difference from an earlier run is ignored
# Probability that no difference from earlier runs is reported by chance, over all cells and the pooled change
# (Bonferroni). Two-sided, so that one report in 400 has a false alarm
# (tests/benchmarks/bench_comparisons.py).
CONFIDENCE = 0.995
# Assumed standard deviation of one run, as a share, before any repeat is seen, and its weight in degrees of
# freedom. Runs of lenet, resnet20 and alexnet on an idle machine vary by 1.2 to 2.0%; other machines are
# busier. The weight is not measured; chosen because eight repeats on a machine are better evidence than this
# assumption.
RUN_DEVIATION, RUN_FREEDOM = 0.025, 8
# If the logarithm of the measured variance exceeds the assumed one by this many standard errors, the
# assumption is dropped: it would cause more false alarms. One-sided, 95% of a normal distribution.
_NOISIER = 1.645
_MOST_VALUES = 200  # values of which `spread` compares all pairs; they give the deviation to 6%


def figures_of(
    measurements: Iterable[Measurement],
    *,
    machines: Mapping[str, Machine] = {},
    earlier: Iterable[Measurement] = (),
    references: Iterable[Measurement] = (),
    smallest_effect: float = SMALLEST_EFFECT,
) -> Figures:
    """Return all figures.

    `machines`: by name, for paths and clocks. `earlier`: earlier runs of this machine. `references`:
    published figures. `smallest_effect`: share; smaller differences from earlier runs are ignored.
    """
    every = cells_of(measurements)
    cells = without_drills(every)
    scalings = scalings_of(cells)
    then = without_drills(cells_of(earlier))
    before = against_earlier(cells, then, smallest_effect)
    jobs_then, jobs_now = (
        {key(cell.of, EARLIER) for cell in some if cell.images_per_sec} for some in (then, cells)
    )
    return Figures(
        cells=every,
        scalings=scalings,
        scaling_medians=medians_of(scalings),
        ratios=ratio_tables(cells, scalings),
        pairs=pair_tables(cells, machines),
        clocks=clock_tables(cells, machines),
        cpus=cpu_tables(cells),
        predicted=tuple(
            PredictedRow(
                cell=cell.number,
                predicted=cell.of.predicted,
                images_per_sec=cell.images_per_sec,
                difference_percent=100 * (cell.images_per_sec / cell.of.predicted.images_per_sec - 1),
            )
            for cell in cells
            if cell.of.predicted is not None and cell.images_per_sec is not None
        ),
        against=(*before, *against_published(cells, cells_of(references))),
        pooled_change=pooled_change(cells, before, smallest_effect),
        not_again=len(jobs_then - jobs_now),
    )


def against_published(cells: Sequence[Cell], references: Iterable[Cell]) -> tuple[Against, ...]:
    """Return each cell with the published figure that shares the most conditions, if there is one."""
    known = [figure for figure in references if figure.of.suspect is None]
    pairs = [(cell, other) for cell, other in _nearest(cells, known, _job) if cell.of.gpu]
    return tuple(_against(*pair, "published", DEVIATIONS * ratio_noise(*pair)) for pair in pairs)


def against_earlier(
    cells: Sequence[Cell], earlier: Iterable[Cell], smallest_effect: float = SMALLEST_EFFECT
) -> tuple[Against, ...]:
    """Return each cell with the earlier cell of the same conditions, if there is one.

    Uses a moderated Student's t (G. K. Smyth, Statistical Applications in Genetics and Molecular Biology
    3(1), 2004). The variance of one run comes from all repeats, or without repeats from the changes (by
    `spread`); in both cases it is combined with `RUN_DEVIATION`. A figure that reports more noise keeps its
    own.
    """
    pairs = _nearest(cells, earlier, lambda cell: key(cell.of, EARLIER))
    repeated = [cell.repeats for pair in pairs for cell in pair if len(cell.repeats) > 1]
    freedom = float(sum(map(len, repeated)) - len(repeated))
    squares = sum((value / fmean(some) - 1) ** 2 for some in repeated for value in some)
    if not repeated and len(pairs) > 1:
        deviation, freedom = spread([_change(*pair) for pair in pairs])
        squares = freedom * deviation**2 / 2  # a change is the difference of two runs
    assumed = RUN_FREEDOM
    if freedom > assumed:  # the cells are better evidence than the assumption
        error = math.sqrt(2 / freedom + 2 / assumed)  # of the logarithm of the ratio: Fisher's z
        if squares > freedom * RUN_DEVIATION**2 * math.exp(_NOISIER * error):
            assumed = 0
    deviation, deviations = _moderated(squares, freedom, RUN_DEVIATION**2, assumed, len(pairs))
    return tuple(
        _against(
            now,
            then,
            "earlier",
            deviations
            * max(
                ratio_noise(now, then),
                deviation * math.hypot(len(now.repeats) ** -0.5, len(then.repeats) ** -0.5),
            ),
            math.log1p(smallest_effect),
        )
        for now, then in pairs
    )


def pooled_change(
    cells: Sequence[Cell], rows: Iterable[Against], smallest_effect: float = SMALLEST_EFFECT
) -> PooledChange | None:
    """Return the mean change from earlier runs, by Student's t over the cells; None for fewer than two.

    Cells that support no verdict are skipped. Cells with other software are skipped if some cells have the
    same software.
    """
    known = [row for row in rows if row.kind == "earlier" and not cells[row.cell].spoilt]
    known = [row for row in known if not row.is_spoilt]
    known = [row for row in known if not row.differs] or known
    if len(known) < 2:
        return None
    changes = [math.log1p(row.difference_percent / 100) for row in known]
    mean, least = fmean(changes), math.log1p(smallest_effect)
    runs = fmean(2 / len(cells[row.cell].repeats) for row in known)
    squares = sum((change - mean) ** 2 for change in changes)
    expected = runs * RUN_DEVIATION**2
    deviation, deviations = _moderated(squares, len(known) - 1, expected, RUN_FREEDOM, len(known))
    noise = deviations * deviation / math.sqrt(len(known))
    return PooledChange(
        cells=tuple(row.cell for row in known),
        percent=100 * math.expm1(mean),
        low_percent=100 * math.expm1(mean - noise),
        high_percent=100 * math.expm1(mean + noise),
        verdict=_word(mean, noise, least),
        differs=tuple(dict.fromkeys(name for row in known for name in row.differs)),
    )


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the standard deviation of values, up to half of them outliers, with its degrees of freedom.

    Qn (P. J. Rousseeuw and C. Croux, Alternatives to the median absolute deviation, 1993): a quantile of the
    differences of all pairs. The degrees of freedom were simulated with 2 to 80 normal values.
    """
    values = values[:: 1 + len(values) // _MOST_VALUES]
    count, half = len(values), len(values) // 2 + 1
    apart = sorted(abs(value - other) for value, other in combinations(values, 2))
    few = count / (count + (1.4 if count % 2 else 3.8))  # the correction for few values
    return 2.2219 * few * apart[half * (half - 1) // 2 - 1], max(0.8 * count - 4, 0.0)


def _moderated(
    squares: float, freedom: float, expected: float, assumed: float, cells: int
) -> tuple[float, float]:
    """Return a standard deviation, and how many of them a change of one cell, or of all, must exceed.

    `squares`: sum of squares with `freedom` degrees of freedom. `expected`: the assumed variance, with
    `assumed` more.
    """
    total = freedom + assumed
    comparisons = cells + (cells > 1)  # the pooled change is tested too
    deviations = students_t(total, (1 - CONFIDENCE) / 2 / max(comparisons, 1))
    return math.sqrt((squares + assumed * expected) / total), deviations


def not_comparable(cells: Sequence[Cell], earlier: Iterable[Measurement]) -> str:
    """Return why no cell can be compared: no figures, or different conditions in all cells."""
    before = cells_of(earlier)
    for some, which in ((cells, "the runs"), (before, "the earlier runs")):
        if not any(cell.images_per_sec for cell in without_drills(some)):
            return f"{which} have {'drills' if any(cell.of.is_drill for cell in some) else 'no figures'}"
    apart: Counter[str] = Counter()
    for cell in without_drills(cells):
        nearest = min((differences(cell.of, other.of) for other in without_drills(before)), key=len)
        apart.update(CONDITIONS[name] for name in nearest if name not in EARLIER)
    return f"the runs differ in {', '.join(name for name, _ in apart.most_common(3))}"


def _nearest(
    cells: Iterable[Cell], others: Iterable[Cell], job_of: Callable[[Cell], tuple[Any, ...]]
) -> list[tuple[Cell, Cell]]:
    """Return each cell with the other cell of the same job that shares the most conditions."""
    known = grouped((job_of(other), other) for other in others if other.images_per_sec)
    return [
        (cell, min(same, key=lambda other: len(differences(cell.of, other.of))))
        for cell in cells
        if cell.images_per_sec and (same := known.get(job_of(cell)))
    ]


def _job(cell: Cell) -> tuple[Any, ...]:
    gpu = expected_gpu(cell.of.gpu or "")
    return (gpu.name if gpu else cell.of.gpu, *key(cell.of, ELSEWHERE))


def _change(cell: Cell, reference: Cell) -> float:
    """Return the logarithm of the ratio of two cells."""
    return math.log((cell.images_per_sec or 1.0) / (reference.images_per_sec or 1.0))


def _word(change: float, noise: float, least: float) -> Word:
    """Return what a change shows: a difference of at least `least`, a smaller one, or neither of them."""
    if abs(change) > max(noise, least):
        return "slower" if change < 0 else "faster"
    return "even" if abs(change) + noise < least else "cannot tell"


def _against(
    cell: Cell, reference: Cell, kind: Literal["published", "earlier"], noise: float, least: float = 0.0
) -> Against:
    """Return a comparison. `noise`: changes of the ratio's logarithm up to this are not significant."""
    change = _change(cell, reference)
    verdict = "cannot tell" if cell.spoilt or reference.spoilt else _word(change, noise, least)
    differs = tuple(CONDITIONS[name] for name in differences(cell.of, reference.of))
    return Against(
        cell=cell.number,
        kind=kind,
        reference=reference.sources[0],
        reference_images_per_sec=reference.images_per_sec or 0.0,
        difference_percent=100 * math.expm1(change),
        noise_percent=100 * abs(math.expm1(math.copysign(max(noise, least), change))),
        verdict=verdict,
        differs=differs,
        is_regression=kind == "earlier" and verdict == "slower" and not differs,
        is_spoilt=reference.spoilt is not None,
    )
