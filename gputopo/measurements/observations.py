"""What figures show beyond their noise, as sentences with their numbers: scaling, ratios, paths, clocks."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import msgspec

from gputopo.measurements.cells import holds, key, ratio_holds
from gputopo.values.run.measurement import MODE
from gputopo.values.study import (
    DEVIATIONS,
    Cell,
    ClockTable,
    Figures,
    Observation,
    PairTable,
    Ratio,
    RatioTable,
    Scaling,
    ScalingRow,
)
from gputopo.values.words import figure, listed

# Efficiency on the most GPUs, in percent, from which scaling is good, and below which it is poor: the tables
# of tensorflow.org (93 % on 8 GPUs) read as good, 7gforce with tf_cnn_benchmarks (75 %) as fair, Keras there
# (39 %) as poor.
GOOD_PERCENT, POOR_PERCENT = 90.0, 60.0
# Noise of a speedup from which its verdict is not clear: a third of the way from poor to good.
UNCLEAR_SHARE = 0.10
# Share of one GPU's images/sec below which a GPU that was added pays little.
PAYS_SHARE = 0.25


def without_spoilt(figures: Figures) -> Figures:
    """Return the figures of which verdicts are made: without those of spoilt cells."""
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
            one for one in figures.scalings if not any(bad & {row.cell, row.baseline} for row in one.rows)
        ),
        ratios=tuple(table for table in ratios if table.rows),
        pairs=tuple(table for table in pairs if table.rows),
        predicted=tuple(row for row in figures.predicted if row.cell not in bad),
    )


def of_scaling(figures: Figures, names: Sequence[str]) -> Iterator[Observation]:
    """Iterate over the observations on scaling. `names`: the conditions that jobs are named by."""
    yield from _verdicts(figures)
    for scaling in figures.scalings:
        yield from _stops(figures.cells, scaling, names)
        yield from _superlinear(figures.cells, scaling, names)
    yield from _best_modes(figures, names)


def _verdicts(figures: Figures) -> Iterator[Observation]:
    groups: dict[str, list[Scaling]] = defaultdict(list)
    for scaling in figures.scalings:
        of = figures.cells[scaling.largest.cell].of
        groups[", ".join(filter(None, (of.machine, of.program)))].append(scaling)
    for where, scalings in groups.items():
        most = max(scaling.largest.n_gpus for scaling in scalings)
        rows = [row for scaling in scalings for row in scaling.rows if row.n_gpus == most]
        shares = [row.efficiency_percent for row in rows]
        middle, noise = median(shares), DEVIATIONS * median(row.noise for row in rows)
        word = "good" if middle >= GOOD_PERCENT else "poor" if middle < POOR_PERCENT else "fair"
        if noise > UNCLEAR_SHARE:
            word = f"not clear, figures are uncertain by {100 * noise:.0f}%"
        jobs = f"{len(shares)} jobs, {min(shares):.0f} to {max(shares):.0f}%" if len(shares) > 1 else "1 job"
        noun = figures.cells[rows[0].cell].of.device_word
        yield Observation(
            id="scaling.verdict",
            says=f"{where or 'All runs'}: {word} to {most} {noun}s, {middle:.1f}% efficiency ({jobs}).",
            evidence={"n_gpus": most, "median_efficiency_percent": round(middle, 2), "jobs": len(shares)},
            cells=tuple(row.cell for row in rows),
            weight=100 - middle,
        )


def where_it_stops(cells: Sequence[Cell], scaling: Scaling) -> tuple[ScalingRow, ScalingRow | None]:
    """Return the largest number of GPUs that all pay, and the next one, which does not; None: all do."""
    by_number: dict[int, ScalingRow] = {}
    for row in sorted(scaling.rows, key=lambda row: row.images_per_sec):
        by_number[row.n_gpus] = row  # the fastest of its number
    best, *rest = (by_number[number] for number in sorted(by_number))
    for row in rest:
        added = row.n_gpus - best.n_gpus
        errors = [(cells[some.cell].noise or 0.0) * some.images_per_sec for some in (row, best)]
        gained = row.images_per_sec - best.images_per_sec + DEVIATIONS * math.hypot(*errors)
        if gained < added * PAYS_SHARE * scaling.rows[0].images_per_sec:
            return best, row
        best = row if row.images_per_sec > best.images_per_sec else best
    return best, None


def _stops(cells: Sequence[Cell], scaling: Scaling, names: Sequence[str]) -> Iterator[Observation]:
    best, row = where_it_stops(cells, scaling)
    if row is None:
        return
    of = cells[row.cell].of
    percent = 100 * (row.images_per_sec / best.images_per_sec - 1)
    yield Observation(
        id="scaling.stops",
        says=f"{of.job_words(names)}: take {cells[best.cell].of.gpus_words}: "
        f"{figure(best.images_per_sec)} {of.unit}/sec, {figure(row.images_per_sec)} on {row.n_gpus} "
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
        and not cells[row.cell].of.suspect  # which is stated already
    ]
    if not over:
        return
    worst = max(over, key=lambda row: row.efficiency_percent)
    of = cells[worst.cell].of
    yield Observation(
        id="scaling.superlinear",
        says=f"{of.job_words(names)}: {worst.efficiency_percent:.1f}% on {of.gpus_words} "
        f"({figure(worst.images_per_sec)} over {figure(scaling.rows[0].images_per_sec)} {of.unit}/sec). "
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
        return f"The run of one {noun} was {baseline.of.mode}: run it in the same mode."
    if len(over) == len(rows):
        return f"The figure of one {noun} is probably too low.{_again(baseline)}"
    numbers = ", ".join(str(row.n_gpus) for row in rows if row not in over)
    return f"Probably too high, since {numbers} {noun}s are not above 100%.{_again(baseline)}"


def _again(cell: Cell) -> str:
    """Return the advice to measure again, unless others published the figure."""
    return "" if cell.of.is_published else " Repeat it."


def _best_modes(figures: Figures, names: Sequence[str]) -> Iterator[Observation]:
    jobs: dict[tuple[Any, ...], list[Cell]] = defaultdict(list)
    for cell in figures.cells:
        is_exchange = cell.of.n_gpus > 1 and cell.of.variable_update != "independent"
        if cell.images_per_sec is not None and is_exchange and not cell.spoilt:
            jobs[key(cell.of, MODE)].append(cell)
    wins: dict[tuple[int, str], list[tuple[Cell, Cell]]] = defaultdict(list)
    compared: dict[int, int] = defaultdict(int)
    for group in jobs.values():
        if len(group) < 2:
            continue
        best, second, *_ = sorted(group, key=lambda cell: -(cell.images_per_sec or 0.0))
        compared[best.of.n_gpus] += 1
        if ratio_holds(best, second):
            wins[best.of.n_gpus, best.of.mode].append((best, second))
    alike = [name for name in names if name not in MODE]
    for (number, mode), some in wins.items():
        gain = median(100 * ((one.images_per_sec or 0) / (two.images_per_sec or 1) - 1) for one, two in some)
        jobs_words = listed(list(dict.fromkeys(one.of.job_words(alike) for one, _ in some)), 1)
        yield Observation(
            id="mode.best",
            says=f"{mode} is the fastest in {len(some)} of {compared[number]} jobs on "
            f"{some[0][0].of.gpus_words}, by {gain:.0f}% over the next in the median ({jobs_words}).",
            evidence={"n_gpus": number, "mode": mode, "jobs": len(some), "of": compared[number],
                      "median_gain_percent": round(gain, 1)},
            cells=tuple(cell.number for pair in some for cell in pair),
            weight=len(some) + number / 1000,
        )  # fmt: skip


# Synthetic over real from which the input limits, if beyond the noise: the official tables of tensorflow.org
# are below (0.98 to 1.08), alexnet of lambda-2018 is above (2.6 to 5.6).
LIMITED = 1.10
# A difference between CPUs, slowest to fastest, from which the CPU matters for a model.
CPU_MATTERS = 1.10
# Comparisons whose ratios are an observation each, with its id and what stands before the two values.
_SIMPLE = {
    "gpu": ("gpu.ratio", ""),
    "model": ("model.ratio", ""),
    "layout": ("layout.ratio", ""),
    "precision": ("precision.ratio", ""),
    "xla": ("xla.ratio", ""),
    "program": ("program.ratio", ""),
    "batch": ("batch.throughput", "Batch "),
    "batch-scaling": ("batch.scaling", "Batch "),
}


def of_ratios(figures: Figures, names: Sequence[str]) -> Iterator[Observation]:
    """Iterate over the observations on ratios, paths, clocks and CPUs."""
    cells = figures.cells
    for table in figures.ratios:
        if table.id in _SIMPLE:
            yield _simple(table)
        elif table.id == "data":
            yield from _input(cells, table, names)
    limited = [cell for cell in cells if cell.of.limited_by_input]
    for cell in limited:
        yield Observation(
            id="input.bottleneck",
            says=f"{cell.of.job_words(names)}: {cell.of.limited_by_input}",
            evidence={"runs": len(limited)},
            cells=(cell.number,),
        )
    yield from map(_paths, figures.pairs)
    for clocks in figures.clocks:
        yield from _clocks(clocks)
    yield from _cpus(figures)


def _simple(table: RatioTable) -> Observation:
    id, noun = _SIMPLE[table.id]
    several = [row for row in table.rows if table.id != "batch-scaling" or row.n_gpus > 1] or table.rows
    values = sorted(row.value for row in several)
    beyond = sum(row.holds for row in several)
    if len(values) > 1:
        detail = (
            f"median of {len(values)} pairs, {values[0]:.2f} to {values[-1]:.2f}; {beyond} beyond the noise"
        )
    else:
        detail = f"one pair, {'beyond' if beyond else 'within'} the noise of {200 * several[0].noise:.1f}%"
    middle = median(values)
    says = f"{noun}{table.above} over {table.below}: {middle:.2f}x ({detail})."
    if table.id == "program":
        word = "faster than" if middle > 1 else "slower than"
        if not holds(middle, median(row.noise for row in several)):
            word = "as fast as"
        says = f"{table.above} is {word} {table.below}: {middle:.2f}x ({detail})."
    return Observation(
        id=id,
        says=says,
        evidence={"median": round(middle, 3), "lowest": round(values[0], 3),
                  "highest": round(values[-1], 3), "pairs": len(values), "beyond_noise": beyond},
        cells=tuple(number for row in several for number in (row.above, row.below)),
        weight=len(values),
    )  # fmt: skip


def _input(cells: Sequence[Cell], table: RatioTable, names: Sequence[str]) -> Iterator[Observation]:
    by_model: dict[str, list[Ratio]] = defaultdict(list)
    for row in table.rows:
        by_model[cells[row.above].of.model].append(row)
    rest: list[Ratio] = []
    for model, rows in by_model.items():
        slow = [row for row in rows if row.value >= LIMITED and row.holds]
        if not slow:
            rest += rows
            continue
        worst = max(slow, key=lambda row: row.value)
        real, synthetic = cells[worst.below], cells[worst.above]
        yield Observation(
            id="input.bottleneck",
            says=f"{model}: synthetic data is up to {worst.value:.2f}x as fast as real data "
            f"({figure(synthetic.images_per_sec)} against {figure(real.images_per_sec)} {real.of.unit}/sec, "
            f"{real.of.job_words(names)}); above {LIMITED:.2f}x in {len(slow)} of {len(rows)} pairs.",
            evidence={"highest": round(worst.value, 3), "pairs": len(rows), "above": len(slow)},
            cells=tuple(number for row in slow for number in (row.above, row.below)),
            weight=worst.value,
        )
    if rest:
        values = [row.value for row in rest]
        models = " with the other models" if len(rest) < len(table.rows) else ""
        yield Observation(
            id="input.enough",
            says=f"Real data is as fast as synthetic data{models}: {median(values):.2f}x in the median, "
            f"{min(values):.2f} to {max(values):.2f} over {len(values)} pairs.",
            evidence={"median": round(median(values), 3), "pairs": len(values)},
            cells=tuple(number for row in rest for number in (row.above, row.below)),
        )


def _paths(table: PairTable) -> Observation:
    gains = {row.mode: f"{row.mode} {row.gain:.2f}x" for row in table.rows}
    more = "; ".join(gains[row.mode] for row in table.rows if row.holds)
    same = "; ".join(gains[row.mode] for row in table.rows if not row.holds)
    near, far = table.rows[0].near_path, table.rows[0].far_path
    words = [f"faster with {more}"] if more else []
    words += [f"no faster with {same}"] if same else []
    return Observation(
        id="pairs.path",
        says=f"{table.machine}, {table.model}: {near} over {far}: {', '.join(words)}.",
        evidence={row.mode: round(row.gain, 3) for row in table.rows},
        cells=tuple(number for row in table.rows for number in (*row.near, *row.far)),
        weight=max(row.gain for row in table.rows),
    )


def _clocks(table: ClockTable) -> Iterator[Observation]:
    for row in table.rows:
        if not row.holds:
            continue
        rest = "its clock is not known"
        if row.unexplained_percent is not None:
            rest = (
                f"its {row.clock} clock, at {row.clock_percent:.1f}%, explains at most "
                f"{row.explained_percent:.1f}%; {row.unexplained_percent:.1f}% unexplained"
            )
        where = ", ".join(filter(None, (table.machine, table.model)))
        yield Observation(
            id="clocks.unexplained",
            says=f"{where}: GPU {row.gpu} is {row.under_percent:.1f}% slower than GPU {table.reference}; "
            f"{rest}.",
            evidence={"gpu": row.gpu, "under_percent": round(row.under_percent, 2),
                      "clock_percent": row.clock_percent, "unexplained_percent": row.unexplained_percent},
            cells=table.cells,
            weight=row.unexplained_percent or row.under_percent,
        )  # fmt: skip


def _cpus(figures: Figures) -> Iterator[Observation]:
    spreads: dict[str, list[float]] = defaultdict(list)
    numbers: list[int] = []
    for table in figures.cpus:
        for model, row in zip(table.models, table.cells, strict=True):
            known = [figures.cells[number] for number in row if number is not None]
            known = [cell for cell in known if cell.images_per_sec and not (cell.of.suspect or cell.spoilt)]
            if len(known) > 1:
                speeds = [cell.images_per_sec or 0.0 for cell in known]
                spreads[model].append(max(speeds) / min(speeds))
                numbers += [cell.number for cell in known]
    if not spreads:
        return
    middle = {model: median(values) for model, values in spreads.items()}
    matters = [f"{model} {value:.2f}x" for model, value in middle.items() if value >= CPU_MATTERS]
    little = [f"{model} {value:.2f}x" for model, value in middle.items() if value < CPU_MATTERS]
    words = [f"the CPU matters for {listed(matters, 9)}"] if matters else []
    words += [f"{'' if matters else 'the CPU matters '}little for {listed(little, 9)}"] if little else []
    yield Observation(
        id="cpu.matters",
        says=f"Fastest over slowest CPU, median over jobs: {', '.join(words)}.",
        evidence={model: round(value, 3) for model, value in middle.items()},
        cells=tuple(numbers),
    )


def change(percent: float) -> str:
    """Return a change in percent with its sign: `+19%`, `0%`."""
    return f"{percent:+.0f}%" if abs(percent) >= 0.5 else "0%"
