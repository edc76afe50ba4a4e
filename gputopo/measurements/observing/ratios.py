"""Observations on ratios: input, batch, models, layout, precision, XLA, paths, clocks, CPUs."""

from collections.abc import Iterator, Sequence
from statistics import median

from gputopo.measurements.cells import Cell
from gputopo.measurements.clocks import ClockTable
from gputopo.measurements.conditions import DEVIATIONS
from gputopo.measurements.figures import Figures
from gputopo.measurements.observing.observation import Observation
from gputopo.measurements.observing.words import job_words, listed, varying
from gputopo.measurements.pairs import PairTable
from gputopo.measurements.ratios import Ratio, RatioTable

# Synthetic over real from which the input limits, if beyond the noise. Ours: the official tables of
# tensorflow.org are below (0.98 to 1.08), alexnet of lambda-2018 is above (2.6 to 5.6).
LIMITED = 1.10
# A difference between CPUs, slowest to fastest, from which the CPU matters for a model. Ours.
CPU_MATTERS = 1.10
_SIMPLE = {
    "gpu": ("gpu.ratio", "{above} is {ratio}x as fast as {below}"),
    "model": ("model.ratio", "{above} trains {ratio}x as fast as {below}"),
    "layout": ("layout.ratio", "{above} is {ratio}x as fast as {below}"),
    "precision": ("precision.ratio", "{above} is {ratio}x as fast as {below}"),
    "xla": ("xla.ratio", "With XLA {ratio}x the images/sec of without"),
    "program": ("program.ratio", "{above} is {ratio}x as fast as {below}"),
    "batch": ("batch.throughput", "Batch {above} instead of {below}: {ratio}x the images/sec"),
    "batch-scaling": ("batch.scaling", "Batch {above} instead of {below}: {ratio}x the speedup"),
}


def observe(figures: Figures) -> Iterator[Observation]:
    """Iterate over the observations on ratios."""
    for table in figures.ratios:
        if table.id in _SIMPLE:
            yield _simple(table)
        elif table.id == "data":
            yield from _input(figures, table)
        elif table.id == "distortions":
            yield from _more_work(figures, table, "distortions", "those without")
    yield from _own_input(figures)
    yield from map(_paths, figures.pairs)
    for clocks in figures.clocks:
        yield from _clocks(clocks)
    yield from _cpus(figures)


def _simple(table: RatioTable) -> Observation:
    id, form = _SIMPLE[table.id]
    several = [row for row in table.rows if table.id != "batch-scaling" or row.n_gpus > 1] or table.rows
    values = sorted(row.value for row in several)
    beyond = sum(row.holds for row in several)
    spread = f", {values[0]:.2f} to {values[-1]:.2f}" if len(values) > 1 else ""
    words = form.format(above=table.above, below=table.below, ratio=f"{median(values):.2f}")
    number = (
        f"median of {len(values)}{spread}"
        if len(values) > 1
        else f"one pair, +/- {100 * DEVIATIONS * several[0].noise:.1f} %"
    )
    return Observation(
        id=id,
        says=f"{words} ({number}); {_beyond(beyond, len(values))}.",
        evidence={"median": round(median(values), 3), "lowest": round(values[0], 3),
                  "highest": round(values[-1], 3), "pairs": len(values), "beyond_noise": beyond},
        cells=tuple(number for row in several for number in (row.above, row.below)),
    )  # fmt: skip


def _beyond(count: int, of: int) -> str:
    if of == 1:
        return "beyond the noise" if count else "within the noise"
    return f"beyond the noise in {count or 'none'}" + (" of them" if count else "")


def _input(figures: Figures, table: RatioTable) -> Iterator[Observation]:
    cells, names = figures.cells, varying(figures.cells)
    slow = [row for row in table.rows if row.value >= LIMITED and row.holds]
    models = list(dict.fromkeys(cells[row.above].of.model for row in slow))
    for model in models:
        some = [row for row in slow if cells[row.above].of.model == model]
        worst = max(some, key=lambda row: row.value)
        real, synthetic = cells[worst.below], cells[worst.above]
        of_model = [row for row in table.rows if cells[row.above].of.model == model]
        yield Observation(
            id="input.bottleneck",
            says=f"{model}: the input limits with real data: synthetic data is {worst.value:.2f}x as fast "
            f"({synthetic.images_per_sec:.4g} against {real.images_per_sec:.4g} images/sec, "
            f"{job_words(real.of, names)}); above {LIMITED:.2f}x in {len(some)} of {len(of_model)} pairs.",
            evidence={"highest": round(worst.value, 3), "pairs": len(of_model), "above": len(some)},
            cells=tuple(number for row in some for number in (row.above, row.below)),
        )
    rest = [row for row in table.rows if cells[row.above].of.model not in models]
    if rest:
        values = [row.value for row in rest]
        yield Observation(
            id="input.enough",
            says=f"Real data is as fast as synthetic data in the median ({median(values):.2f}x, "
            f"{min(values):.2f} to {max(values):.2f} over {len(values)} pairs"
            f"{'' if not models else ', other models'}).",
            evidence={"median": round(median(values), 3), "pairs": len(values)},
            cells=tuple(number for row in rest for number in (row.above, row.below)),
        )
    slower = [row for row in table.rows if row.value < 1 and row.holds]
    yield from _reversed(figures, slower, "with synthetic data", "real data", ratio_above=False)


def _more_work(figures: Figures, table: RatioTable, more: str, less: str) -> Iterator[Observation]:
    faster = [row for row in table.rows if row.value > 1 and row.holds]
    yield from _reversed(figures, faster, less, more, ratio_above=True)


def _reversed(
    figures: Figures, rows: Sequence[Ratio], less: str, more: str, *, ratio_above: bool
) -> Iterator[Observation]:
    """Yield that runs with more work were faster, which cannot be: one of the figures is wrong."""
    if not rows:
        return
    cells, names = figures.cells, varying(figures.cells)
    worst = max(rows, key=lambda row: row.value if ratio_above else 1 / row.value)
    gain = worst.value if ratio_above else 1 / worst.value
    fast, slow = (worst.above, worst.below) if ratio_above else (worst.below, worst.above)
    left_out = ("distortions", "data")
    yield Observation(
        id="work.more_is_faster",
        says=f"Runs with {more} are faster than {less} in "
        f"{len(rows)} pair{'s' if len(rows) > 1 else ''}, by up to {100 * (gain - 1):.0f} % "
        f"({job_words(cells[fast].of, [n for n in names if n not in left_out])}: "
        f"{cells[fast].images_per_sec:.4g} against {cells[slow].images_per_sec:.4g} images/sec): more work "
        "cannot be faster, so the runs differ in something else. Repeat them.",
        evidence={"pairs": len(rows), "highest": round(gain, 3)},
        cells=tuple(number for row in rows for number in (row.above, row.below)),
    )


def _own_input(figures: Figures) -> Iterator[Observation]:
    limited = [cell for cell in figures.cells if cell.of.limited_by_input]
    names = varying(figures.cells)
    for cell in limited[:3]:
        yield Observation(
            id="input.bottleneck",
            says=f"{job_words(cell.of, names)}: {cell.of.limited_by_input}",
            evidence={"runs": len(limited)},
            cells=(cell.number,),
        )


def _paths(table: PairTable) -> Observation:
    matters = [f"{row.mode} {row.gain:.2f}x" for row in table.rows if row.holds]
    does_not = [f"{row.mode} {row.gain:.2f}x" for row in table.rows if not row.holds]
    near, far = table.rows[0].near_path, table.rows[0].far_path
    words = [f"matters for {'; '.join(matters)}"] if matters else []
    words += [f"does not matter for {'; '.join(does_not)}"] if does_not else []
    return Observation(
        id="pairs.path",
        says=f"{table.machine}, {table.model}: {near} instead of {far} between two GPUs "
        f"{', and '.join(words)}.",
        evidence={row.mode: round(row.gain, 3) for row in table.rows},
        cells=tuple(number for row in table.rows for number in (*row.near, *row.far)),
    )


def _clocks(table: ClockTable) -> Iterator[Observation]:
    for row in table.rows:
        if not row.holds:
            continue
        if row.unexplained_percent is None:
            rest = "its clock is not known"
        else:
            rest = (
                f"its {row.clock} clock, at {row.clock_percent:.1f} %, explains "
                f"{row.explained_percent:.1f} % at most, {row.unexplained_percent:.1f} % are unexplained"
            )
        where = ", ".join(filter(None, (table.machine, table.model)))
        yield Observation(
            id="clocks.unexplained",
            says=f"{where}: GPU {row.gpu} is {row.under_percent:.1f} % below GPU {table.reference}: {rest}.",
            evidence={"gpu": row.gpu, "under_percent": round(row.under_percent, 2),
                      "clock_percent": row.clock_percent, "unexplained_percent": row.unexplained_percent},
            cells=table.cells,
        )  # fmt: skip


def _cpus(figures: Figures) -> Iterator[Observation]:
    by_model: dict[str, list[tuple[float, list[Cell]]]] = {}
    for table in figures.cpus:
        for model, row in zip(table.models, table.cells, strict=True):
            known = [figures.cells[number] for number in row if number is not None]
            known = [cell for cell in known if cell.images_per_sec and cell.of.suspect is None]
            if len(known) > 1:
                speeds = [cell.images_per_sec or 0.0 for cell in known]
                by_model.setdefault(model, []).append((max(speeds) / min(speeds), known))
    if not by_model:
        return
    middle = {model: median(spread for spread, _ in some) for model, some in by_model.items()}
    matters = [f"{model} {value:.2f}x" for model, value in middle.items() if value >= CPU_MATTERS]
    little = [f"{model} {value:.2f}x" for model, value in middle.items() if value < CPU_MATTERS]
    words = [f"matters for {listed(matters, 9)}"] if matters else []
    words += [f"matters little for {listed(little, 9)}"] if little else []
    yield Observation(
        id="cpu.matters",
        says=f"The CPU beside the same GPUs {', and '.join(words)} (fastest over slowest, median over jobs, "
        "without suspect figures).",
        evidence={model: round(value, 3) for model, value in middle.items()},
        cells=tuple(cell.number for some in by_model.values() for _, known in some for cell in known),
    )
