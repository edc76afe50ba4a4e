"""What scaling shows beyond its noise, as sentences with their numbers."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

import msgspec

from gputopo.measurements.cells import holds, key, ratio_holds
from gputopo.values.grouping import grouped
from gputopo.values.run.measurement import MODE
from gputopo.values.study import (
    DEVIATIONS,
    Cell,
    Figures,
    Observation,
    Scaling,
    ScalingRow,
)
from gputopo.values.words import figure, listed

# Efficiency on the most GPUs, in percent: at least the first is good, below the second is poor. The tables of
# tensorflow.org (93 % on 8 GPUs) are then good, 7gforce with tf_cnn_benchmarks (75 %) is fair, and Keras
# there (39 %) is poor.
GOOD_PERCENT, POOR_PERCENT = 90.0, 60.0
# If the noise of a speedup is larger, its verdict is unclear: a third of the way from poor to good.
UNCLEAR_SHARE = 0.10
# Share of one GPU's images/sec. A GPU that adds less is reported as not worth adding.
PAYS_SHARE = 0.25


def without_spoilt(figures: Figures) -> Figures:
    """Return the figures without the spoilt cells; verdicts use these."""
    bad = {cell.number for cell in figures.cells if cell.spoilt}
    if not bad:
        return figures
    ratios = (
        msgspec.structs.replace(
            table, rows=tuple(row for row in table.rows if not bad & {row.above, row.below})
        )
        for table in figures.ratios
    )
    pairs = (
        msgspec.structs.replace(
            table, rows=tuple(row for row in table.rows if not bad & {*row.near, *row.far})
        )
        for table in figures.pairs
    )
    return msgspec.structs.replace(
        figures,
        scalings=tuple(
            each for each in figures.scalings if not any(bad & {row.cell, row.baseline} for row in each.rows)
        ),
        ratios=tuple(table for table in ratios if table.rows),
        pairs=tuple(table for table in pairs if table.rows),
        predicted=tuple(row for row in figures.predicted if row.cell not in bad),
    )


def of_scaling(figures: Figures, names: Sequence[str]) -> Iterator[Observation]:
    """Iterate over the observations on scaling. `names`: the conditions that identify a job."""
    yield from _verdicts(figures)
    for scaling in figures.scalings:
        yield from _stops(figures.cells, scaling, names)
        yield from _superlinear(figures.cells, scaling, names)
    yield from _best_modes(figures, names)


def scaling_word(efficiency_percent: float) -> str:
    """Return whether scaling is good, fair or poor."""
    if efficiency_percent >= GOOD_PERCENT:
        return "good"
    return "poor" if efficiency_percent < POOR_PERCENT else "fair"


def _verdicts(figures: Figures) -> Iterator[Observation]:
    largest = ((figures.cells[scaling.largest.cell].of, scaling) for scaling in figures.scalings)
    groups = grouped((", ".join(filter(None, (run.machine, run.program))), each) for run, each in largest)
    for where, scalings in groups.items():
        most = max(scaling.largest.n_gpus for scaling in scalings)
        rows = [row for scaling in scalings for row in scaling.rows if row.n_gpus == most]
        shares = [row.efficiency_percent for row in rows]
        middle, noise = median(shares), DEVIATIONS * median(row.noise for row in rows)
        word = scaling_word(middle)
        if noise > UNCLEAR_SHARE:
            word = f"unclear (figures are uncertain by {100 * noise:.0f}%)"
        jobs = f"{len(shares)} jobs, {min(shares):.0f} to {max(shares):.0f}%" if len(shares) > 1 else "1 job"
        noun = figures.cells[rows[0].cell].of.device_word
        yield Observation(
            id="scaling.verdict",
            says=f"{where or 'All runs'}: {word} scaling to {most} {noun}s, "
            f"{middle:.1f}% efficiency ({jobs}).",
            evidence={"n_gpus": most, "median_efficiency_percent": round(middle, 2), "jobs": len(shares)},
            cells=tuple(row.cell for row in rows),
            weight=100 - middle,
        )


def where_it_stops(cells: Sequence[Cell], scaling: Scaling) -> tuple[ScalingRow, ScalingRow | None]:
    """Return the largest number of GPUs up to which each addition helps, and the next one, which does not.

    The second is None if all of them help.
    """
    # The fastest row for each number of GPUs.
    by_number = {row.n_gpus: row for row in sorted(scaling.rows, key=lambda row: row.images_per_sec)}
    best, *rest = (by_number[number] for number in sorted(by_number))
    for row in rest:
        added = row.n_gpus - best.n_gpus
        errors = [(cells[each.cell].noise or 0.0) * each.images_per_sec for each in (row, best)]
        gained = row.images_per_sec - best.images_per_sec + DEVIATIONS * math.hypot(*errors)
        if gained < added * PAYS_SHARE * scaling.rows[0].images_per_sec:
            return best, row
        best = row if row.images_per_sec > best.images_per_sec else best
    return best, None


def _stops(cells: Sequence[Cell], scaling: Scaling, names: Sequence[str]) -> Iterator[Observation]:
    best, row = where_it_stops(cells, scaling)
    if row is None:
        return
    run = cells[row.cell].of
    percent = 100 * (row.images_per_sec / best.images_per_sec - 1)
    yield Observation(
        id="scaling.stops",
        says=f"{run.job_words(names)}: use {cells[best.cell].of.gpus_words}: "
        f"{figure(best.images_per_sec)} {run.unit}/sec, {figure(row.images_per_sec)} on {row.n_gpus} "
        f"({change(percent)}).",
        evidence={
            "best_n_gpus": best.n_gpus,
            "images_per_sec": best.images_per_sec,
            "next_n_gpus": row.n_gpus,
            "next_images_per_sec": row.images_per_sec,
        },
        cells=(best.cell, row.cell),
        weight=-percent,
    )


def _superlinear(cells: Sequence[Cell], scaling: Scaling, names: Sequence[str]) -> Iterator[Observation]:
    rows = scaling.rows[1:]
    over = [
        row
        for row in rows
        if row.efficiency_percent > 100
        and holds(row.speedup / row.n_gpus, row.noise)
        and not cells[row.cell].of.suspect  # which another observation already reports
    ]
    if not over:
        return
    worst = max(over, key=lambda row: row.efficiency_percent)
    run = cells[worst.cell].of
    yield Observation(
        id="scaling.superlinear",
        says=f"{run.job_words(names)}: {worst.efficiency_percent:.1f}% on {run.gpus_words} "
        f"({figure(worst.images_per_sec)} over {figure(scaling.rows[0].images_per_sec)} {run.unit}/sec). "
        f"{_likely_cause(cells[scaling.rows[0].baseline], over, rows)}",
        evidence={
            "efficiency_percent": {str(row.n_gpus): round(row.efficiency_percent, 2) for row in rows},
            "noise_percent": round(100 * DEVIATIONS * worst.noise, 2),
        },
        cells=(scaling.rows[0].cell, *(row.cell for row in over)),
        weight=worst.efficiency_percent,
    )


def _likely_cause(baseline: Cell, over: Sequence[ScalingRow], rows: Sequence[ScalingRow]) -> str:
    noun = baseline.of.device_word
    if baseline.of.conditions or any(device.anomaly for device in baseline.of.devices):
        words = "; ".join(baseline.of.conditions) or "a device was slow"
        return f"The run of one {noun} was slowed: {words}.{_again(baseline)}"
    if not over[0].same_mode and baseline.of.mode:
        return f"The run of one {noun} was {baseline.of.mode}: run it with the same placement."
    if len(over) == len(rows):
        return f"The baseline of one {noun} is probably too low.{_again(baseline)}"
    numbers = ", ".join(str(row.n_gpus) for row in rows if row not in over)
    return f"Probably too high, because {numbers} {noun}s are not above 100%.{_again(baseline)}"


def _again(cell: Cell) -> str:
    """Return the advice to measure again; empty if the figure was published by others."""
    return "" if cell.of.is_published else " Repeat it."


def _best_modes(figures: Figures, names: Sequence[str]) -> Iterator[Observation]:
    jobs = grouped(
        (key(cell.of, MODE), cell)
        for cell in figures.cells
        if cell.images_per_sec is not None
        and not cell.spoilt
        and cell.of.n_gpus > 1
        and cell.of.variable_update != "independent"
    )
    ordered = [sorted(group, key=lambda cell: -(cell.images_per_sec or 0.0)) for group in jobs.values()]
    firsts = [(group[0], group[1]) for group in ordered if len(group) > 1]
    compared = Counter(best.of.n_gpus for best, _ in firsts)
    wins = grouped(
        ((best.of.n_gpus, best.of.mode), (best, second))
        for best, second in firsts
        if ratio_holds(best, second)
    )
    alike = [name for name in names if name not in MODE]
    for (number, mode), pairs in wins.items():
        gains = ((best.images_per_sec or 0) / (second.images_per_sec or 1) for best, second in pairs)
        gain = 100 * (median(gains) - 1)
        jobs_words = listed(list(dict.fromkeys(best.of.job_words(alike) for best, _ in pairs)), 1)
        yield Observation(
            id="mode.best",
            says=f"{mode} is the fastest in {len(pairs)} of {compared[number]} jobs on "
            f"{pairs[0][0].of.gpus_words}, by {gain:.0f}% over the next in the median ({jobs_words}).",
            evidence={"n_gpus": number, "mode": mode, "jobs": len(pairs), "of": compared[number],
                      "median_gain_percent": round(gain, 1)},
            cells=tuple(cell.number for pair in pairs for cell in pair),
            weight=len(pairs) + number / 1000,
        )  # fmt: skip


def change(percent: float) -> str:
    """Return a change in percent with its sign: `+19%`, `0%`."""
    return f"{percent:+.0f}%" if abs(percent) >= 0.5 else "0%"
