"""The whole study (`gputopo.study/1`): measurements, figures, observations. The input of every renderer."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from statistics import median

from gputopo.measurements.cells import SET, key, ratio_holds, without_drills
from gputopo.measurements.doubts import doubts
from gputopo.measurements.figures import SMALLEST_EFFECT, figures_of
from gputopo.measurements.observations import (
    change,
    of_scaling,
    scaling_word,
    where_it_stops,
    without_spoilt,
)
from gputopo.measurements.ratio_observations import of_ratios
from gputopo.values.grouping import grouped
from gputopo.values.machine import Machine
from gputopo.values.run.measurement import MODE, Measurement
from gputopo.values.study import (
    OBSERVATIONS,
    Cell,
    Figures,
    Observation,
    Study,
    UnreadFile,
    varying,
)
from gputopo.values.words import figure

_AVOID = 1.05  # speedup of the near pairs over the far pairs, from which the far ones should be avoided
_MODES = {
    "parameter_server cpu": "parameter server on the CPU",
    "parameter_server gpu:spread": "parameter servers spread over the GPUs",
    "replicated nccl": "replicated with NCCL",
}


def headline(figures: Figures, observations: Sequence[Observation]) -> str:
    """Return the headline sentences.

    If there is nothing to recommend or avoid, they report the fastest placement and what is in doubt, else
    the speed.
    """
    clean = without_spoilt(figures)
    sentences = [*_before(figures), *_take(clean), *_avoid(clean), *_repeat(figures)]
    if not sentences:
        modes = [observation.says for observation in observations if observation.id == "mode.best"]
        first = [observation.says for observation in observations[:1]]
        sentences = [*dict.fromkeys((*modes[:1], *first))]
    return " ".join(sentences or [_speed(figures.cells)])


def _speed(cells: Sequence[Cell]) -> str:
    """Return the speed of the only cell, or of the fastest one."""
    measured = [cell for cell in without_drills(cells) or cells if cell.images_per_sec is not None]
    if not measured:
        return "No run was measured."
    if len(units := sorted({cell.of.unit for cell in measured})) > 1:
        return (
            f"{len(measured)} cells not compared, because their speeds have different units: "
            f"{', '.join(units)}."
        )
    best = max(measured, key=lambda cell: cell.images_per_sec or 0.0)
    runs = len(best.repeats)
    words = f"{best.of.model} on {best.of.gpus_words}: {figure(best.images_per_sec)} {best.of.unit}/sec"
    if len(measured) > 1:
        return f"The fastest of {len(measured)}: {words}."
    again = "1 run; repeat it to see how much runs differ" if runs == 1 else f"{runs} runs"
    return f"{words}, from {again}."


def _before(figures: Figures) -> Iterator[str]:
    """Yield what became slower: all cells together, then single cells, then what the noise hides."""
    rows = [row for row in figures.against if row.kind == "earlier" and not figures.cells[row.cell].spoilt]
    if not rows:
        return
    pooled = figures.pooled_change
    if pooled is not None:
        yield pooled.says
    for word, software in product(("slower", "faster"), ("", ", with other software")):
        alike = [row for row in rows if row.verdict == word and bool(row.differs) == bool(software)]
        if alike:
            most = max(abs(row.difference_percent) for row in alike)
            yield f"{len(alike)} of {len(rows)} cells {word} than before, by up to {most:.0f}%{software}."
    if all(row.verdict in ("even", "cannot tell") for row in rows):
        yield f"0 of {len(rows)} cells are significantly slower than before."
    if spoilt := sum(row.is_spoilt for row in rows):
        yield f"{spoilt} cannot tell: NOT RELIABLE before. Repeat the earlier runs."
    if hidden := [row for row in rows if row.verdict == "cannot tell" and not row.is_spoilt]:
        changes = sorted(row.difference_percent for row in hidden)
        seen = " to ".join(dict.fromkeys(map(change, (changes[0], changes[-1]))))
        least = min(row.noise_percent for row in hidden)
        yield (
            f"{len(hidden)} cannot tell ({seen}): changes below {least:.0f}% cannot be seen. "
            "Repeat the cells."
        )
    clean = without_drills(figures.cells)
    new = sum(cell.images_per_sec is not None and not cell.spoilt for cell in clean) - len(rows)
    drills = len(figures.cells) - len(clean)
    for count, noun, words in (
        (new, "cell", "no earlier run"),
        (drills, "cell", "a drill, so not compared"),
        (figures.not_again, "earlier cell", "no figure now"),
    ):
        if count:
            yield f"{count} {noun}{'s have' if count > 1 else ' has'} {words}."


def _take(figures: Figures) -> Iterator[str]:
    """Yield the best number of GPUs and mode of one machine; for several machines, how they scale."""
    largest = ((figures.cells[scaling.largest.cell].of, scaling) for scaling in figures.scalings)
    jobs = grouped(
        (key(run, (*SET, *MODE)), where_it_stops(figures.cells, scaling)[0])
        for run, scaling in largest
        if run.variable_update != "independent"
    )
    ordered = [sorted(rows, key=lambda row: -row.images_per_sec) for rows in jobs.values()]
    best = [rows[0] for rows in ordered]
    machines = {figures.cells[row.cell].of.machine for row in best}
    if not best:
        return
    if len(machines) > 1:
        yield _machines(figures)
        return
    takes: Counter[tuple[int, str]] = Counter()
    for rows in ordered:
        first, *others = (figures.cells[row.cell] for row in rows)
        # No mode if the next one on as many GPUs is equal within the noise.
        alike = [other for other in others if other.of.n_gpus == first.of.n_gpus]
        is_best = first.of.n_gpus > 1 and all(ratio_holds(first, other) for other in alike)
        takes[first.of.n_gpus, first.of.mode if is_best else ""] += 1
    (number, mode), count = max(takes.items(), key=lambda item: (item[1], item[0]))
    taken = [row for row in best if row.n_gpus == number]
    words = f"Take {figures.cells[taken[0].cell].of.gpus_words}"
    words += f", {_MODES.get(mode, mode.replace('_', ' '))}" if mode else ""
    words += f": {median(row.speedup for row in taken):.1f}x" if number > 1 else ": more do not help"
    yield words + (f", the best in {count} of {len(best)} jobs." if len(best) > 1 else ".")


def _machines(figures: Figures) -> str:
    shares = grouped(
        (figures.cells[largest.cell].of.machine or "", largest.efficiency_percent)
        for largest in (scaling.largest for scaling in figures.scalings)
    )
    middle = {name: median(values) for name, values in shares.items()}
    counts = Counter(scaling_word(percent) for percent in middle.values())
    words = ", ".join(f"{word} on {counts[word]}" for word in ("good", "fair", "poor") if counts[word])
    noun = figures.cells[figures.scalings[0].largest.cell].of.device_word
    worst = min(middle, key=lambda name: middle[name])
    name = worst or "an unknown machine"
    last = f"; the worst is {name}, {middle[worst]:.0f}% efficiency" if counts["good"] < len(middle) else ""
    return f"Scaling to all {noun}s, of {len(middle)} machines: {words}{last}."


def _avoid(figures: Figures) -> Iterator[str]:
    cells = figures.cells
    several = len({cell.of.machine for cell in cells}) > 1

    def place(machine: str | None) -> str:
        return f" of {machine}" if several and machine else ""

    far = dict.fromkeys(
        ",".join(map(str, cells[number].of.gpus)) + place(table.machine)
        for table in figures.pairs
        for row in table.rows
        if row.holds and row.gain >= _AVOID
        for number in row.far
    )
    if far:
        yield f"Do not use GPUs {' or '.join(list(far)[:3])} together."
    slow = {
        (table.machine, row.gpu): f"GPU {row.gpu}{place(table.machine)} is {row.under_percent:.0f}% slower "
        f"than GPU {table.reference}."
        for table in figures.clocks
        for row in table.rows
        if row.holds and row.under_percent >= 100 * (_AVOID - 1)
    }
    yield from list(slow.values())[:2]


def _repeat(figures: Figures) -> Iterator[str]:
    """Yield how many cells are spoilt, and why."""
    measured = [cell for cell in without_drills(figures.cells) if cell.images_per_sec is not None]
    spoilt = [cell.spoilt.partition(" (") for cell in measured if cell.spoilt]
    for why, count in Counter(begin for begin, _, _ in spoilt).items():
        cells = f"all {count} cells" if count == len(measured) else f"{count} of {len(measured)} cells"
        says = next(detail.rstrip(")") or why for begin, _, detail in spoilt if begin == why)
        yield f"NOT RELIABLE: {f'{cells}: {why}' if len(measured) > 1 else says}. Repeat."


def study_of(
    measurements: Iterable[Measurement],
    *,
    title: str,
    machines: Mapping[str, Machine] = {},
    earlier: Iterable[Measurement] = (),
    references: Iterable[Measurement] = (),
    smallest_effect: float = SMALLEST_EFFECT,
    unread: Iterable[UnreadFile] = (),
    unfinished: Iterable[str] = (),
    sources: Mapping[str, str] = {},
) -> Study:
    """Return the study of measurements. The other arguments are described in `figures.figures_of`.

    `unfinished`: sentences about sweeps that did not finish.
    """
    figures = figures_of(
        measurements,
        machines=machines,
        earlier=earlier,
        references=references,
        smallest_effect=smallest_effect,
    )
    observations, unread = observations_of(figures), tuple(unread)
    sentences = [*unfinished, headline(figures, observations)]
    if unread:
        sentences.append(f"{len(unread)} file{'s' if len(unread) > 1 else ''} could not be read.")
    return Study(
        title=title,
        headline=" ".join(sentences),
        figures=figures,
        observations=observations,
        unread=unread,
        sources=dict(sources),
    )


def observations_of(figures: Figures) -> tuple[Observation, ...]:
    """Return all observations: by id in the declared order, then by weight."""
    names = varying(figures.cells)
    clean = without_spoilt(figures)
    order = list(OBSERVATIONS)
    observed = chain(of_scaling(clean, names), of_ratios(clean, names), doubts(figures, names))
    return tuple(sorted(observed, key=lambda seen: (order.index(seen.id), -seen.weight)))
