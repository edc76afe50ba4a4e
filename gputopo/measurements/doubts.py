"""Observations that cast doubt: missed predictions, other conditions, failures, regressions, refusals."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gputopo.measurements.cells import CONDITIONS, MODE, SET, Cell, key, value_words
from gputopo.measurements.figures import Figures
from gputopo.measurements.observations import Observation, device_word, gpus_words, job_words, listed, varying

_SHOWN = 5  # of observations of one kind; the rest is counted
# What a speedup may not be computed over, each with why.
_REFUSED = {
    "batch_per_gpu": "the batch of a device differs, so the work of a step does",
    "version": "another version of TensorFlow may be faster by itself",
    "machine": "it is another machine",
    "data_format": "the layout differs",
    "precision": "the precision differs",
    "xla": "one is compiled with XLA",
}


def doubts(figures: Figures) -> Iterator[Observation]:
    """Iterate over the doubts."""
    yield from _outside(figures)
    yield from _conditions(figures)
    yield from _suspect(figures)
    yield from _repeats(figures)
    yield from _failed(figures)
    yield from _refused(figures)
    yield from _against(figures)


def _outside(figures: Figures) -> Iterator[Observation]:
    names = varying(figures.cells)
    outside = [row for row in figures.predicted if row.predicted.verdict in ("slower", "faster")]
    for row in sorted(outside, key=lambda row: -abs(row.difference_percent))[:_SHOWN]:
        of, known = figures.cells[row.cell].of, row.predicted
        yield Observation(
            id="prediction.outside",
            says=f"{job_words(of, names)}, {gpus_words(of)}: {row.images_per_sec:.4g} images/sec, "
            f"{known.verdict} than predicted ({known.low:.4g} to {known.high:.4g}).",
            evidence={"predicted": known.images_per_sec, "measured": row.images_per_sec,
                      "outside": len(outside), "of": len(figures.predicted)},
            cells=(row.cell,),
        )  # fmt: skip


def _conditions(figures: Figures) -> Iterator[Observation]:
    names = varying(figures.cells)
    some = [cell for cell in figures.cells if cell.of.conditions]
    more = len(some) - _SHOWN
    rest = f" Other conditions in {more} more {'row' if more == 1 else 'rows'}: --json has them."
    for place, cell in enumerate(some[:_SHOWN], 1):
        says = f"{job_words(cell.of, names)}, {gpus_words(cell.of)}: {listed(cell.of.conditions)}"
        yield Observation(
            id="conditions.other",
            says=f"{says.removesuffix('.')}.{rest if more > 0 and place == _SHOWN else ''}",
            evidence={"runs": len(some)},
            cells=(cell.number,),
        )


def _suspect(figures: Figures) -> Iterator[Observation]:
    groups: dict[str, list[int]] = defaultdict(list)
    for cell in figures.cells:
        if cell.of.suspect:
            groups[cell.of.suspect].append(cell.number)
    names = varying(figures.cells)
    for why, numbers in groups.items():
        first = figures.cells[numbers[0]]
        where = (
            job_words(first.of, names)
            if len(numbers) == 1
            else _shared(figures, numbers) or "Several figures"
        )
        yield Observation(
            id="figure.suspect",
            says=f"{where}: {why.removeprefix('suspect: ')}"
            + (
                f" ({len(numbers)} figures)."
                if len(numbers) > 1
                else f" ({first.images_per_sec:.4g} images/sec)."
            ),
            evidence={"figures": len(numbers)},
            cells=tuple(numbers),
        )


def _shared(figures: Figures, numbers: list[int]) -> str:
    """Return the conditions in words that these cells share and others do not."""
    names = [
        name
        for name in varying(figures.cells)
        if len({getattr(figures.cells[number].of, name) for number in numbers}) == 1
    ]
    names = ["cpu"] if "cpu" in names else names
    return job_words(figures.cells[numbers[0]].of, names)


def _repeats(figures: Figures) -> Iterator[Observation]:
    names = varying(figures.cells)
    for cell in [cell for cell in figures.cells if cell.contradicts][:_SHOWN]:
        yield Observation(
            id="repeats.contradict",
            says=f"{job_words(cell.of, names)}, {gpus_words(cell.of)}: {len(cell.repeats)} runs under the "
            f"same stated conditions differ, {min(cell.repeats):.4g} to {max(cell.repeats):.4g} images/sec.",
            evidence={"repeats": list(cell.repeats), "sources": list(cell.sources)},
            cells=(cell.number,),
        )
    twice = [name for cell in figures.cells for name in cell.duplicates]
    if twice:
        yield Observation(
            id="repeats.duplicate",
            says=f"{len(twice)} file{'s have' if len(twice) > 1 else ' has'} the contents of another one and "
            f"count{'' if len(twice) > 1 else 's'} once: {listed(twice)}.",
            evidence={"files": twice[:50]},
        )


def _failed(figures: Figures) -> Iterator[Observation]:
    yield from _by_reason(figures, "cells.failed", lambda cell: cell.failed, ("run", "without a figure"))
    yield from _by_reason(figures, "cells.not_run", lambda cell: cell.not_run, ("cell", "not run"))


def _by_reason(
    figures: Figures, id: str, reasons_of: Callable[[Cell], Sequence[str]], words: tuple[str, str]
) -> Iterator[Observation]:
    """Iterate over the most frequent reasons of cells without a figure. `words`: noun, and what it is."""
    noun, what = words
    reasons: Counter[str] = Counter()
    numbers: dict[str, list[int]] = defaultdict(list)
    for cell in figures.cells:
        for reason in reasons_of(cell):
            reasons[reason] += 1
            numbers[reason].append(cell.number)
    for reason, count in reasons.most_common(2 * _SHOWN):
        shared = _shared(figures, numbers[reason])
        where = f" ({shared})" if shared else ""
        yield Observation(
            id=id,
            says=f"{count} {noun}{'s' if count > 1 else ''} {what}{where}: {reason.removesuffix('.')}.",
            evidence={f"{noun}s": count},
            cells=tuple(dict.fromkeys(numbers[reason])),
        )


def _refused(figures: Figures) -> Iterator[Observation]:
    """Yield runs of several GPUs for which the only run of one GPU differs in one more condition."""
    compared = {row.cell for scaling in figures.scalings for row in scaling.rows}
    cells = [cell for cell in figures.cells if cell.images_per_sec is not None]
    rest = [cell for cell in cells if cell.of.n_gpus > 1 and cell.number not in compared]
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for name in _REFUSED:
        free = (name, *SET, *MODE, *(("cpu",) if name == "machine" else ()))
        alone: dict[tuple[Any, ...], Any] = {}
        for cell in cells:
            if cell.of.n_gpus == 1:
                alone.setdefault(key(cell.of, free), cell)
        for cell in rest:
            if (one := alone.get(key(cell.of, free))) is not None:
                words = (
                    f"{value_words(name, getattr(one.of, name))} against "
                    f"{value_words(name, getattr(cell.of, name))}"
                )
                found[name, words].append(cell.number)
    for (name, words), numbers in list(found.items())[: 2 * _SHOWN]:
        of = figures.cells[numbers[0]].of
        joint = ""
        if name == "batch_per_gpu":
            joint = " With the same joint batch that is strong scaling, another question."
        yield Observation(
            id="compare.refused",
            says=f"No speedup for {len(numbers)} run{'s' if len(numbers) > 1 else ''} ({of.model}): the "
            f"run of one {device_word(of)} has another {CONDITIONS[name]} ({words}); "
            f"{_REFUSED[name]}.{joint}",
            evidence={"condition": name, "runs": len(numbers)},
            cells=tuple(numbers),
        )


def _against(figures: Figures) -> Iterator[Observation]:
    names = varying(figures.cells)
    changed = [row for row in figures.against if row.kind == "earlier" and row.verdict != "even"]
    regressions = [row for row in changed if row.is_regression]
    for row in [*regressions, *[row for row in changed if not row.is_regression][:_SHOWN]]:
        of = figures.cells[row.cell].of
        also = f"; also different: {', '.join(row.differs)}" if row.differs else ""
        yield Observation(
            id="earlier.regression" if row.is_regression else "earlier.changed",
            says=f"{job_words(of, names)}, {gpus_words(of)}: {abs(row.difference_percent):.1f} % "
            f"{row.verdict} than in {row.reference} ({row.reference_images_per_sec:.4g} images/sec; noise "
            f"{row.noise_percent:.1f} %{also}).",
            evidence={
                "difference_percent": round(row.difference_percent, 2),
                "noise_percent": row.noise_percent,
            },
            cells=(row.cell,),
        )
    slower = [row for row in figures.against if row.kind == "published" and row.verdict == "slower"]
    for row in sorted(slower, key=lambda row: row.difference_percent)[:_SHOWN]:
        of = figures.cells[row.cell].of
        yield Observation(
            id="published.slower",
            says=f"{job_words(of, names)}, {gpus_words(of)}: {-row.difference_percent:.0f} % below the "
            f"published {row.reference_images_per_sec:.4g} images/sec of the same GPU model "
            f"({row.reference.removeprefix('published: ')}; also different: {', '.join(row.differs)}).",
            evidence={"difference_percent": round(row.difference_percent, 2), "slower": len(slower)},
            cells=(row.cell,),
        )
