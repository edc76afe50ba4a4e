"""What figures show beyond their noise, as sentences with their numbers; the words for cells."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

import msgspec

from gputopo.measurements.cells import (
    CONDITIONS,
    DEVIATIONS,
    MODE,
    Cell,
    holds,
    key,
    ratio_noise,
    value_words,
)
from gputopo.measurements.clocks import ClockTable
from gputopo.measurements.figures import Figures
from gputopo.measurements.ratios import PairTable, Ratio, RatioTable, Scaling, ScalingRow
from gputopo.values.run.measurement import Measurement

# Conditions whose values are understood without their names.
_PLAIN = frozenset(
    {"model", "machine", "cpu", "gpu", "framework", "method", "data", "precision", "data_format"}
)
_PLAIN_TOO = frozenset({"variable_update", "ps_device", "all_reduce", "distortions", "xla", "task"})
_NEVER = frozenset({"backend", "dataset", "gpus", "n_gpus"})


def varying(cells: Iterable[Cell]) -> tuple[str, ...]:
    """Return the conditions that differ among cells, so that they must be named.

    Of what was not run most conditions are unknown, which makes no difference.
    """
    some = [cell.of for cell in cells]
    return tuple(
        name for name in CONDITIONS if (name not in _NEVER and len(stated(some, name)) > 1) or name == "model"
    )


def stated(some: Iterable[Measurement], name: str) -> frozenset[Any]:
    """Return the values of a condition; None is one of a run that does not state it."""
    values = ((getattr(one, name), one.is_run) for one in some)
    return frozenset(value for value, is_run in values if is_run or value not in (None, ()))


def job_words(one: Measurement, names: Sequence[str]) -> str:
    """Return the named conditions of a measurement: `resnet50, batch 64, replicated nccl`."""
    words = []
    for name in names:
        value = getattr(one, name)
        if value is None or value is False or (name == "task" and value == "train"):
            continue
        text = value_words(name, value)
        if name == "batch_per_gpu":
            words.append(f"batch {text}")
        elif name in ("ps_device", "all_reduce") and words:
            words[-1] += f" {text}" if one.variable_update else ""
        elif name in _PLAIN | _PLAIN_TOO:
            words.append(text)
        else:
            words.append(f"{CONDITIONS[name]} {text}")
    return ", ".join(words)


def gpus_words(one: Measurement) -> str:
    """Return the number of devices with their kind: `4 GPUs`, `1 CPU device`."""
    return f"{one.n_gpus} {device_word(one)}{'' if one.n_gpus == 1 else 's'}"


def device_word(one: Measurement) -> str:
    """Return what the devices of a measurement are: `GPU` or `CPU device`."""
    return "CPU device" if one.backend == "cpu" else "GPU"


def devices_word(cells: Iterable[Cell]) -> str:
    """Return what the devices of cells are: `GPUs`, `CPU devices`; `devices` where there are both."""
    words = {device_word(cell.of) for cell in cells}
    return f"{words.pop()}s" if len(words) == 1 else "devices"


def listed(words: Sequence[str], limit: int = 3) -> str:
    """Return the first words of a list and how many more there are."""
    shown = "; ".join(words[:limit])
    more = len(words) - limit
    return f"{shown}; and {more} more" if more > 0 else shown


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the figures show beyond their noise. `evidence`: the numbers; `cells`: their numbers."""

    id: str
    says: str
    evidence: dict[str, Any] = {}
    cells: tuple[int, ...] = ()


# Every id with its meaning, in the order in which observations are shown.
OBSERVATIONS: dict[str, str] = {
    "scaling.verdict": "How well more GPUs pay, over all jobs",
    "scaling.stops": "More GPUs than a certain number do not pay",
    "scaling.superlinear": "More than 100 % efficiency beyond the noise, and its likely cause",
    "batch.throughput": "What a larger batch does to images/sec",
    "batch.scaling": "What a larger batch does to speedup",
    "input.bottleneck": "Real data is slower than synthetic data: the input limits",
    "input.enough": "Real data is as fast as synthetic data",
    "work.more_is_faster": "A run with more work was faster: a figure is wrong, or conditions differ",
    "mode.best": "The fastest place for the variables, by number of GPUs",
    "gpu.ratio": "How much faster one GPU model is than another",
    "model.ratio": "How much faster one model trains than another",
    "layout.ratio": "What the layout NCHW gains over NHWC",
    "precision.ratio": "What half precision gains over fp32",
    "xla.ratio": "What XLA gains",
    "program.ratio": "How fast one program is beside another",
    "pairs.path": "Whether the path between two GPUs matters, by mode",
    "clocks.unexplained": "A GPU is slower than its clock explains",
    "cpu.matters": "The CPU decides the speed of some models and not of others",
    "prediction.outside": "Measured outside of the predicted range",
    "conditions.other": "A run was under other conditions than its neighbours",
    "figure.suspect": "A figure that its source or a later measurement contradicts",
    "repeats.contradict": "Repeats under the same conditions disagree",
    "repeats.duplicate": "The same file was given more than once and counts once",
    "cells.failed": "Runs without a figure, with their reasons",
    "cells.not_run": "Cells of a sweep that were refused, left out, or are still to run, with their reasons",
    "compare.refused": "Runs that must not be compared, and why",
    "earlier.regression": "Slower than an earlier run of this machine",
    "earlier.changed": "Other than an earlier run of this machine, and what else changed",
    "published.slower": "Slower than the published figure of this GPU model",
}


# Efficiency on the most GPUs, in percent, from which scaling is good, and below which it is poor: the tables
# of tensorflow.org (93 % on 8 GPUs) read as good, 7gforce with tf_cnn_benchmarks (75 %) as fair, Keras there
# (39 %) as poor.
GOOD_PERCENT, POOR_PERCENT = 90.0, 60.0
# Noise of a speedup from which its verdict is not clear: a third of the way from poor to good. Ours.
UNCLEAR_SHARE = 0.10
# Share of one GPU's images/sec below which a GPU that was added pays little. Ours.
PAYS_SHARE = 0.25


def of_scaling(figures: Figures) -> Iterator[Observation]:
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


def of_ratios(figures: Figures) -> Iterator[Observation]:
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
