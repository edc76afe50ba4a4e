"""Observations that cast doubt: missed predictions, other conditions, failures, regressions, refusals."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from gputopo.measurements.cells import SET, key, without_drills
from gputopo.values.grouping import grouped
from gputopo.values.run.measurement import BUSY, CONDITIONS, MODE
from gputopo.values.study import Cell, Figures, Observation
from gputopo.values.words import figure, listed

# Kinds of runs that are no baseline for a speedup, each with the reason.
_REFUSED = {
    "batch_per_gpu": "another batch per device is another amount of work",
    "version": "another version of TensorFlow may have another speed",
    "machine": "it is another machine",
    "data_format": "the layout differs",
    "precision": "the precision differs",
    "xla": "one is compiled with XLA",
}


def doubts(figures: Figures, names: Sequence[str]) -> Iterator[Observation]:
    """Iterate over the doubts. `names`: the conditions that identify a job."""
    yield from _outside(figures, names)
    conditions = [
        # How busy the host was differs from run to run.
        (cell.number, BUSY if condition.startswith(BUSY) else condition)
        for cell in figures.cells
        for condition in dict.fromkeys(condition for run in cell.runs for condition in run.conditions)
    ]
    suspect = [(cell.number, cell.of.suspect) for cell in figures.cells if cell.of.suspect]
    suspect = [(number, text.removeprefix("suspect: ")) for number, text in suspect]
    failed = [(cell.number, text) for cell in figures.cells for text in cell.failed]
    yield from _by_text(figures, "conditions.other", dict.fromkeys(conditions), names, "run")
    yield from _by_text(figures, "figure.suspect", suspect, names, "figure")
    yield from _by_text(figures, "cells.failed", failed, names, "run", " without a figure")
    yield from _repeats(figures, names)
    yield from _refused(figures, names)
    yield from _earlier(figures, names)
    yield from _published(figures)


def _outside(figures: Figures, names: Sequence[str]) -> Iterator[Observation]:
    outside = [row for row in figures.predicted if row.predicted.verdict in ("slower", "faster")]
    for row in outside:
        run, known = figures.cells[row.cell].of, row.predicted
        yield Observation(
            id="prediction.outside",
            says=f"{run.job_words(names)}, {run.gpus_words}: {figure(row.images_per_sec)} {run.unit}/sec, "
            f"{known.verdict} than predicted ({figure(known.low)} to {figure(known.high)}).",
            evidence={"predicted": known.images_per_sec, "measured": row.images_per_sec,
                      "outside": len(outside), "of": len(figures.predicted)},
            cells=(row.cell,),
            weight=abs(row.difference_percent),
        )  # fmt: skip


def _by_text(
    figures: Figures,
    id: str,
    texts: Iterable[tuple[int, str]],
    names: Sequence[str],
    noun: str,
    what: str = "",
) -> Iterator[Observation]:
    """Iterate over the texts that cells have, each text once for all of its cells.

    `texts`: with the number of the cell. `noun`, `what`: what has the text, and what the sentence says about
    it. Messages with the same beginning (`out of memory: ...`) count as one.
    """
    by_begin = grouped((text.partition(": ")[0], (number, text.removesuffix("."))) for number, text in texts)
    for begin, alike in by_begin.items():
        numbers, messages = [number for number, _ in alike], {text for _, text in alike}
        text = messages.pop() if len(messages) == 1 else f"{begin} ({len(messages)} messages)"
        shared = shared_words(figures.cells, numbers, names)
        where = f" ({shared})" if shared else ""
        yield Observation(
            id=id,
            says=f"{len(numbers)} {noun}{'s' if len(numbers) > 1 else ''}{what}{where}: {text}.",
            evidence={f"{noun}s": len(numbers)},
            cells=tuple(dict.fromkeys(numbers)),
            weight=len(numbers),
        )


def _repeats(figures: Figures, names: Sequence[str]) -> Iterator[Observation]:
    for cell in figures.cells:
        if cell.contradicts:
            low, high = min(cell.repeats), max(cell.repeats)
            yield Observation(
                id="repeats.contradict",
                says=f"{cell.of.job_words(names)}, {cell.of.gpus_words}: {len(cell.repeats)} runs, "
                f"{figure(low)} to {figure(high)} {cell.of.unit}/sec.",
                evidence={"repeats": list(cell.repeats), "sources": list(cell.sources)},
                cells=(cell.number,),
                weight=high / low if low else 0.0,
            )
    twice = [name for cell in figures.cells for name in cell.duplicates]
    if twice:
        yield Observation(
            id="repeats.duplicate",
            says=f"{len(twice)} file{'s are copies' if len(twice) > 1 else ' is a copy'}, used once: "
            f"{listed(twice)}.",
            evidence={"files": twice[:50]},
        )


def _refused(figures: Figures, names: Sequence[str]) -> Iterator[Observation]:
    compared = {row.cell for scaling in figures.scalings for row in scaling.rows}
    cells = [cell for cell in without_drills(figures.cells) if cell.images_per_sec is not None]
    rest = [cell for cell in cells if cell.of.n_gpus > 1 and cell.number not in compared]
    for name, why in _REFUSED.items():
        free = (name, *SET, *MODE, *(("cpu",) if name == "machine" else ()))
        alone = {key(cell.of, free): cell for cell in reversed(cells) if cell.of.n_gpus == 1}
        pairs = [(cell, baseline) for cell in rest if (baseline := alone.get(key(cell.of, free))) is not None]
        if not pairs:
            continue
        values = dict.fromkeys(
            f"{cell.of.value_words(name)} against {baseline.of.value_words(name)}" for cell, baseline in pairs
        )
        yield Observation(
            id="compare.refused",
            says=f"No speedup for {len(pairs)} run{'s' if len(pairs) > 1 else ''}: the run of one "
            f"{pairs[0][0].of.device_word} has another {CONDITIONS[name]} ({listed([*values], 2)}); {why}.",
            evidence={"condition": name, "runs": len(pairs)},
            cells=tuple(cell.number for cell, _ in pairs),
            weight=len(pairs),
        )


def _earlier(figures: Figures, names: Sequence[str]) -> Iterator[Observation]:
    pooled = figures.pooled_change
    if pooled is not None and pooled.verdict in ("slower", "faster"):
        yield Observation(
            id="earlier.regression" if pooled.is_regression else "earlier.changed",
            says=pooled.says,
            evidence={
                "difference_percent": round(pooled.percent, 2),
                "low_percent": pooled.low_percent,
                "high_percent": pooled.high_percent,
            },
            cells=pooled.cells,
            weight=100.0,
        )
    for row in figures.against:
        if row.kind == "earlier" and row.verdict in ("slower", "faster"):
            run = figures.cells[row.cell].of
            also = f"; also different: {', '.join(row.differs)}" if row.differs else ""
            also += "; one run: repeat it" if len(figures.cells[row.cell].repeats) == 1 else ""
            yield Observation(
                id="earlier.regression" if row.is_regression else "earlier.changed",
                says=f"{run.job_words(names)}, {run.gpus_words}: {abs(row.difference_percent):.1f}% "
                f"{row.verdict} than {figure(row.reference_images_per_sec)} {run.unit}/sec in "
                f"{row.reference} (noise {row.noise_percent:.1f}%{also}).",
                evidence={
                    "difference_percent": round(row.difference_percent, 2),
                    "noise_percent": row.noise_percent,
                },
                cells=(row.cell,),
                weight=abs(row.difference_percent),
            )


def _published(figures: Figures) -> Iterator[Observation]:
    groups = grouped(
        ((figures.cells[row.cell].of.gpu or "", row.reference.removeprefix("published: ")), row)
        for row in figures.against
        if row.kind == "published"
    )
    for (gpu, source), rows in groups.items():
        slower = sorted(
            (row for row in rows if row.verdict == "slower"), key=lambda row: row.difference_percent
        )
        if not slower:
            continue
        worst, middle = slower[0], median(row.difference_percent for row in slower)
        cell = figures.cells[worst.cell]
        yield Observation(
            id="published.slower",
            says=f"{gpu}, {source}: {len(slower)} of {len(rows)} figures, by {-middle:.0f}% in the "
            f"median; the most {cell.of.model} on {cell.of.gpus_words}, {figure(cell.images_per_sec)} of "
            f"{figure(worst.reference_images_per_sec)} images/sec "
            f"(also different: {', '.join(worst.differs)}).",
            evidence={"difference_percent": round(worst.difference_percent, 2), "slower": len(slower)},
            cells=tuple(row.cell for row in slower),
            weight=len(slower),
        )


def shared_words(cells: Sequence[Cell], numbers: Iterable[int], names: Iterable[str]) -> str:
    """Return which of the conditions `names` some cells share, in words."""
    runs = [cells[number].of for number in numbers]
    return runs[0].job_words([name for name in names if len({getattr(run, name) for run in runs}) == 1])
