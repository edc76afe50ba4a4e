"""The cells of a sweep: a table for each of its matrices, and a line for each cell that ends."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from statistics import median

from gputopo.report import units
from gputopo.report.document import Block, Bullets, Document, Table, of_sections
from gputopo.report.layout import plain
from gputopo.report.runs.state import NOT_RELIABLE
from gputopo.report.study_tables import without_empty
from gputopo.report.units import UNKNOWN, counted, three_figures
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import index_ranges
from gputopo.values.run.measurement import BUSY
from gputopo.values.run.several_runs import Sweep, SweepCell

MAX_MODELS = 3  # the fastest cell of each is at the top
_NOT_RUN = ("refused", "left_out")
_WORDS = {"left_out": "skipped", "pending": "to run", "running": "to run"}


def sweep_cell_line(cell: SweepCell, cells: Sequence[SweepCell], left_s: float) -> str:
    """Return `cell 3 of 20: scaling, num_gpus 2: 512 images/sec; about 5 min left`."""
    wanted = [other for other in cells if other.state not in _NOT_RUN]
    ran = sum(other.ran for other in wanted)
    if cell.state == "failed":
        outcome = f"failed: {plain(cell.reason or '')}"
    else:
        outcome = f"{three_figures(cell.images_per_sec or 0.0)} images/sec"
    other_load = " (other load)" if cell.beside_other_work else ""
    left = f"; about {units.seconds(left_s)} left" if ran < len(wanted) else ""
    varied = _varied([other for other in cells if other.table == cell.table])
    words = _options_words(cell, varied) or _options_words(cell, cell.options)
    table = "" if cell.table.isdigit() else f"{plain(cell.table)}, "
    repeat = f", repeat {cell.repeat}" if cell.repeat > 1 else ""
    return f"cell {ran} of {len(wanted)}: {table}{words}{repeat}: {outcome}{other_load}{left}"


def _options_words(cell: SweepCell, names: Collection[str]) -> str:
    """Return these options of a cell, the model first: `alexnet, num_gpus 2, xla`."""
    options = {name: value for name, value in cell.options.items() if name in names}
    words = [plain(str(options.pop("model")))] if "model" in options else []
    words += [name if value is True else f"{name} {plain(str(value))}" for name, value in options.items()]
    return ", ".join(words)


def _varied(cells: Sequence[SweepCell]) -> list[str]:
    """Return the names of the options that differ between cells, in order."""
    names = dict.fromkeys(name for cell in cells for name in cell.options)
    return [name for name in names if len({str(cell.options.get(name)) for cell in cells}) > 1]


def sweep_document(sweep: Sweep, *, dry: bool = False) -> Document:
    """Return the result of each cell; with `dry`, what would run."""
    tables = groupby(sweep.cells, key=lambda cell: cell.table)
    sections = [_section(table, list(cells), dry=dry) for table, cells in tables]
    if remarks := _remarks(sweep):
        sections.append(("Remarks", [Bullets(remarks)]))
    headline = ""
    if not dry and not sweep.complete:
        left = sum(cell.state in ("pending", "running") for cell in sweep.cells)
        headline = f"Interrupted: {left} of {len(sweep.cells)} cells have not run."
    summary = " ".join((*_fastest(sweep), _counts(sweep, dry=dry), *sweep.says))
    return of_sections(sections, f"{sweep.title} ({sweep.origin})", summary, headline)


def _fastest(sweep: Sweep) -> Iterator[str]:
    """Yield how many cells have no reliable speed; then, for few models, the fastest cell of each."""
    done = [cell for cell in sweep.cells if cell.state == "done" and cell.images_per_sec]
    measured = [cell for cell in done if not cell.beside_other_work]
    if unreliable := len(done) - len(measured):
        yield f"{NOT_RELIABLE}: {unreliable} of {counted(len(done), 'cell')}: {BUSY}. Repeat."
    models = grouped((str(cell.options.get("model")), cell) for cell in measured)
    for model, cells in models.items() if len(models) <= MAX_MODELS else ():
        best = max(cells, key=lambda cell: cell.images_per_sec or 0.0)
        if words := _options_words(best, _varied(cells)):
            yield f"Fastest with {plain(model)}: {words}, {three_figures(best.images_per_sec)} images/sec."


def _section(name: str, cells: Sequence[SweepCell], *, dry: bool) -> tuple[str, list[Block]]:
    """Return a row for each combination that runs, with its repeats together; empty if there are none."""
    shown = [cell for cell in cells if cell.state not in _NOT_RUN]
    repeats = groupby(shown, key=lambda cell: (cell.number - cell.repeat, sorted(cell.options.items())))
    rows = [list(same) for _, same in repeats]
    if not rows:
        return name, []
    firsts = [row[0] for row in rows]
    varied = _varied(firsts)
    texts = []
    for row in rows:
        values = [row[0].options.get(option) for option in varied]
        words = ["-" if value is None else "yes" if value is True else plain(str(value)) for value in values]
        texts.append((str(row[0].number), *words, *(_predicted(row) if dry else _measured(row))))
    heads = ("cell", *varied, *(("predicted",) if dry else ("images/sec", "spread %", "remarks")))
    table = without_empty(Table.of(heads, texts, words=(*varied, "remarks")))
    same = _options_words(firsts[0], firsts[0].options.keys() - varied)
    return "Cells" if name.isdigit() else name, [*([same] if same else []), table]


def _predicted(row: Sequence[SweepCell]) -> tuple[str]:
    seconds = row[0].predicted_s
    count = f"{len(row)} x " if len(row) > 1 else ""
    return (f"{count}{UNKNOWN if seconds is None else units.seconds(seconds)}",)


def _measured(row: Sequence[SweepCell]) -> tuple[str, str, str]:
    """Return the median of the repeats, their range in percent, and notes.

    For one repeat, the range is the noise within it.
    """
    speeds = [cell.images_per_sec for cell in row if cell.images_per_sec is not None]
    middle = median(speeds) if speeds else None
    noise = next((cell.noise for cell in row if cell.noise is not None), None)
    spread = "" if noise is None else f"\N{PLUS-MINUS SIGN}{200 * noise:.1f}"
    if middle and len(speeds) > 1:
        spread = f"{100 * (max(speeds) - min(speeds)) / middle:.1f}"
    states = Counter(_WORDS.get(cell.state, cell.state) for cell in row if cell.state != "done")
    notes = [
        word if len(row) == 1 else f"{count} of {len(row)} {word}" for word, count in sorted(states.items())
    ]
    notes += ["one step"] if any(cell.steps == 1 for cell in row) else []
    notes += ["other load"] if any(cell.beside_other_work for cell in row) else []
    return "" if middle is None else three_figures(middle), spread, ", ".join(notes)


def _remarks(sweep: Sweep) -> tuple[str, ...]:
    """Return each reason and note once, with its cells."""
    cells: dict[str, list[int]] = {}
    for cell in sweep.cells:
        reason = [] if cell.reason is None else [f" {_WORDS.get(cell.state, cell.state)}: {cell.reason}"]
        for text in (*reason, *(f": {note}" for note in cell.notes)):
            cells.setdefault(text, []).append(cell.number)
    return tuple(
        f"{'Cell' if len(numbers) == 1 else 'Cells'} {index_ranges(numbers)}{text}"
        for text, numbers in cells.items()
    )


def _counts(sweep: Sweep, *, dry: bool) -> str:
    counts = Counter(_WORDS.get(cell.state, cell.state) for cell in sweep.cells)
    counts["excluded by the matrix"] = sweep.excluded
    counts["duplicates removed"] = sweep.duplicates
    listed = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    if dry:
        unknown = sum(cell.state == "pending" and cell.predicted_s is None for cell in sweep.cells)
        guessed = f", of which {counted(unknown, 'cell')} guessed" if unknown else ""
        took = f"about {units.seconds(sweep.left_s)}{guessed}."
    else:
        took = f"{units.seconds(sweep.seconds)}."
        took += f" Ended by {sweep.ended_by}." if sweep.ended_by else ""
    return f"{counted(len(sweep.cells), 'cell')}: {listed}; {took}"
