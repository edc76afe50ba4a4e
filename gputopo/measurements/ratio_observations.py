"""What ratios, paths, clocks and CPUs show beyond their noise, as sentences with their numbers."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from gputopo.measurements.cells import holds
from gputopo.values.grouping import grouped
from gputopo.values.study import Cell, ClockTable, Figures, Observation, PairTable, Ratio, RatioTable
from gputopo.values.words import figure, listed

# Ratio of synthetic to real data from which the input is the limit, if it is beyond the noise. The official
# tables of tensorflow.org are below it (0.98 to 1.08), alexnet of lambda-2018 is above it (2.6 to 5.6).
LIMITED = 1.10
# Ratio between CPUs, slowest to fastest, from which the CPU matters for a model.
CPU_MATTERS = 1.10
# Comparisons whose ratios are one observation each, with its id and the words before the two values.
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
    by_model = grouped((cells[row.above].of.model, row) for row in table.rows)
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
        yield Observation(
            id="clocks.unexplained",
            says=f"{table.where}: GPU {row.gpu} is {row.under_percent:.1f}% slower than GPU "
            f"{table.reference}; {rest}.",
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
