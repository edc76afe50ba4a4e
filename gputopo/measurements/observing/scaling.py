"""Observations on scaling: its verdict, where it stops, what is above 100 %, the best place for variables."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from gputopo.measurements.cells import Cell, ratio_noise
from gputopo.measurements.conditions import DEVIATIONS, MODE, holds, key
from gputopo.measurements.figures import Figures
from gputopo.measurements.observing.observation import Observation
from gputopo.measurements.observing.words import device_word, gpus_words, job_words, listed, varying
from gputopo.measurements.scaling import Scaling, ScalingRow

# Efficiency on the most GPUs, in percent, from which scaling is good, and below which it is poor: the tables
# of tensorflow.org (93 % on 8 GPUs) read as good, 7gforce with tf_cnn_benchmarks (75 %) as fair, Keras there
# (39 %) as poor.
GOOD_PERCENT, POOR_PERCENT = 90.0, 60.0
# Noise of a speedup from which its verdict is not clear: a third of the way from poor to good. Ours.
UNCLEAR_SHARE = 0.10
# Share of one GPU's images/sec below which a GPU that was added pays little. Ours.
PAYS_SHARE = 0.25


def observe(figures: Figures) -> Iterator[Observation]:
    """Iterate over the observations on scaling."""
    yield from _verdict(figures)
    yield from _stops(figures)
    yield from _superlinear(figures)
    yield from _best_modes(figures)


def _verdict(figures: Figures) -> Iterator[Observation]:
    groups: dict[str, list[Scaling]] = defaultdict(list)
    for scaling in figures.scalings:
        of = figures.cells[scaling.largest.cell].of
        groups[", ".join(filter(None, (of.machine, of.program)))].append(scaling)
    for where, scalings in groups.items():
        most = max(scaling.largest.n_gpus for scaling in scalings)
        shares = [
            row.efficiency_percent for scaling in scalings for row in scaling.rows if row.n_gpus == most
        ]
        middle = median(shares)
        noise = DEVIATIONS * median(
            row.noise for scaling in scalings for row in scaling.rows if row.n_gpus == most
        )
        word = "good" if middle >= GOOD_PERCENT else "poor" if middle < POOR_PERCENT else "fair"
        if noise > UNCLEAR_SHARE:
            word = f"not clear, figures are uncertain by {100 * noise:.0f} %"
        spread = f" ({min(shares):.0f} to {max(shares):.0f} %)" if len(shares) > 1 else ""
        of = figures.cells[scalings[0].largest.cell].of
        noun = f"{device_word(of)}s"
        yield Observation(
            id="scaling.verdict",
            says=f"{where or 'All runs'}: scaling to {most} {noun} is {word}: median efficiency "
            f"{middle:.1f} % over {len(shares)} job{'s' if len(shares) > 1 else ''}{spread}.",
            evidence={"n_gpus": most, "median_efficiency_percent": round(middle, 2), "jobs": len(shares)},
            cells=tuple(row.cell for s in scalings for row in s.rows if row.n_gpus == most),
        )


def _stops(figures: Figures) -> Iterator[Observation]:
    names = varying(figures.cells)
    for scaling in figures.scalings:
        best = scaling.rows[0]
        for row in _best_of_each_number(scaling)[1:]:
            gained = (row.images_per_sec - best.images_per_sec) / (row.n_gpus - best.n_gpus)
            errors = [(figures.cells[some.cell].noise or 0.0) * some.images_per_sec for some in (row, best)]
            margin = DEVIATIONS * math.hypot(*errors) / (row.n_gpus - best.n_gpus)
            one = scaling.rows[0].images_per_sec
            if gained + margin >= PAYS_SHARE * one:
                best = row if row.images_per_sec > best.images_per_sec else best
                continue
            of = figures.cells[row.cell].of
            change = 100 * (row.images_per_sec / best.images_per_sec - 1)
            yield Observation(
                id="scaling.stops",
                says=f"{job_words(of, names)}: more than {best.n_gpus} "
                f"{device_word(of)}{' pays' if best.n_gpus == 1 else 's pay'} "
                f"{'little' if change > 0 else 'nothing'}: {row.images_per_sec:.4g} images/sec on "
                f"{row.n_gpus} against {best.images_per_sec:.4g} on {best.n_gpus} ({change:+.0f} %).",
                evidence={
                    "best_n_gpus": best.n_gpus,
                    "images_per_sec": best.images_per_sec,
                    "next_n_gpus": row.n_gpus,
                    "next_images_per_sec": row.images_per_sec,
                },
                cells=(best.cell, row.cell),
            )
            break


def _best_of_each_number(scaling: Scaling) -> list[ScalingRow]:
    best: dict[int, ScalingRow] = {}
    for row in scaling.rows:
        known = best.get(row.n_gpus)
        best[row.n_gpus] = row if known is None or row.images_per_sec > known.images_per_sec else known
    return [best[number] for number in sorted(best)]


def _superlinear(figures: Figures) -> Iterator[Observation]:
    names = varying(figures.cells)
    for scaling in figures.scalings:
        over = [row for row in scaling.rows[1:] if _is_over(row)]
        if not over:
            continue
        rows = scaling.rows[1:]
        worst = max(over, key=lambda row: row.efficiency_percent)
        of = figures.cells[worst.cell].of
        yield Observation(
            id="scaling.superlinear",
            says=f"{job_words(of, names)}: {worst.efficiency_percent:.1f} % efficiency on "
            f"{gpus_words(of)} ({worst.images_per_sec:.4g} over {scaling.rows[0].images_per_sec:.4g} "
            "images/sec). "
            f"{_likely_cause(figures.cells, scaling, over, rows)}",
            evidence={
                "efficiency_percent": {str(row.n_gpus): round(row.efficiency_percent, 2) for row in rows},
                "noise_percent": round(100 * DEVIATIONS * worst.noise, 2),
            },
            cells=(scaling.rows[0].cell, *(row.cell for row in over)),
        )


def _is_over(row: ScalingRow) -> bool:
    return row.efficiency_percent > 100 and holds(row.efficiency_percent / 100, row.noise)


def _likely_cause(
    cells: Sequence[Cell], scaling: Scaling, over: Sequence[ScalingRow], rows: Sequence[ScalingRow]
) -> str:
    baseline = cells[scaling.rows[0].baseline]
    noun = device_word(baseline.of)
    if baseline.of.conditions or any(device.anomaly for device in baseline.of.devices):
        words = "; ".join(baseline.of.conditions) or "a device was slow"
        return f"Likely cause: the run of one {noun} was slower than it can be: {words}. Repeat it."
    if not over[0].same_mode and baseline.of.mode:
        return (
            f"Likely cause: the run of one {noun} was in another mode ({baseline.of.mode}). "
            "Run it in the same."
        )
    if len(over) == len(rows):
        return f"Likely cause: the figure of one {noun} is too low, since every number is above. Repeat it."
    numbers = ", ".join(str(row.n_gpus) for row in rows if row not in over)
    return (
        f"Likely cause: this figure is too high, since {numbers} {noun}s are not above 100 %; or the noise "
        f"of the run of one {noun}. Repeat both."
    )


def _best_modes(figures: Figures) -> Iterator[Observation]:
    """Yield the fastest mode of each job and number of GPUs, where it is faster than the next one."""
    jobs: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in figures.cells:
        if (
            cell.images_per_sec is not None
            and cell.of.n_gpus > 1
            and cell.of.variable_update != "independent"
        ):
            jobs[key(cell.of, MODE)].append(cell)
    wins: dict[tuple[int, str], list[tuple[Cell, Cell]]] = defaultdict(list)
    compared: dict[int, int] = defaultdict(int)
    for group in jobs.values():
        if len(group) < 2:
            continue
        best, second, *_ = sorted(group, key=lambda cell: -(cell.images_per_sec or 0.0))
        compared[best.of.n_gpus] += 1
        if holds((best.images_per_sec or 0) / (second.images_per_sec or 1), ratio_noise(best, second)):
            wins[best.of.n_gpus, best.of.mode].append((best, second))
    names = varying(figures.cells)
    for (number, mode), some in sorted(wins.items()):
        gains = [100 * ((one.images_per_sec or 0) / (two.images_per_sec or 1) - 1) for one, two in some]
        noun = gpus_words(some[0][0].of)
        alike = [n for n in names if n not in MODE]
        jobs_words = listed(list(dict.fromkeys(job_words(one.of, alike) for one, _ in some)))
        yield Observation(
            id="mode.best",
            says=f"{noun}: {mode} is the fastest in {len(some)} of {compared[number]} jobs, by "
            f"{median(gains):.0f} % over the next one in the median ({jobs_words}).",
            evidence={"n_gpus": number, "mode": mode, "jobs": len(some), "of": compared[number],
                      "median_gain_percent": round(median(gains), 1)},
            cells=tuple(cell.number for pair in some for cell in pair),
        )  # fmt: skip
