"""The cells of a sweep: a table for each of its matrices, and a line for each cell that ends."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from statistics import median

from gputopo.report import units
from gputopo.report.document import Bullets, Document, Section, Table
from gputopo.report.layout import Side, plain
from gputopo.report.runs.state import NOT_RELIABLE
from gputopo.report.study_tables import without_empty
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import index_ranges
from gputopo.values.run.measurement import BUSY
from gputopo.values.run.several_runs import Sweep, SweepCell

MAX_MODELS = 3  # the fastest cell of each is at the top
_NOT_RUN = ("refused", "left_out")
_WORDS = {"left_out": "skipped", "pending": "to run", "running": "to run"}


def sweep_cell_line(cell: SweepCell, cells: Sequence[SweepCell], left_s: float) -> str:
    """Return `cell 3 of 20: scaling, num_gpus 2: 512 images/sec; about 5 min left`."""
    wanted = [one for one in cells if one.state not in ("refused", "left_out")]
    ran = sum(one.ran for one in wanted)
    outcome = (
        f"failed: {plain(cell.reason or '')}"
        if cell.state == "failed"
        else f"{units.images_per_sec(cell.images_per_sec or 0.0)} images/sec"
    )
    beside = " (other load)" if cell.beside_other_work else ""
    left = f"; about {units.seconds(left_s)} left" if ran < len(wanted) else ""
    words = cell_words(cell, _varied([one for one in cells if one.table == cell.table])) or cell_words(cell)
    table = "" if cell.table.isdigit() else f"{plain(cell.table)}, "
    repeat = f", repeat {cell.repeat}" if cell.repeat > 1 else ""
    return f"cell {ran} of {len(wanted)}: {table}{words}{repeat}: {outcome}{beside}{left}"


def cell_words(cell: SweepCell, names: Collection[str] | None = None) -> str:
    """Return the options of a cell, the model first: `alexnet, num_gpus 2, xla`.

    `names`: only these options.
    """
    options = {name: one for name, one in cell.options.items() if names is None or name in names}
    words = [plain(str(options.pop("model")))] if "model" in options else []
    words += [name if one is True else f"{name} {plain(str(one))}" for name, one in options.items()]
    return ", ".join(words)


def _varied(cells: Sequence[SweepCell]) -> list[str]:
    """Return the names of the options that differ between cells, in order."""
    names = dict.fromkeys(name for cell in cells for name in cell.options)
    return [name for name in names if len({str(cell.options.get(name)) for cell in cells}) > 1]


def sweep_document(sweep: Sweep, *, dry: bool = False) -> Document:
    """Return the result of each cell; with `dry`, what would run."""
    tables = groupby(sweep.cells, key=lambda cell: cell.table)
    sections = [_section(table, list(cells), dry=dry) for table, cells in tables]
    remarks = _remarks(sweep)
    if remarks:
        sections.append(Section("Remarks", (Bullets(remarks),)))
    left = sum(cell.state in ("pending", "running") for cell in sweep.cells)
    return Document(
        f"{sweep.title} ({sweep.origin})",
        " ".join((*_fastest(sweep), _counts(sweep, dry=dry), *sweep.says)),
        tuple(one for one in sections if one.blocks),
        headline=""
        if dry or sweep.complete
        else f"Interrupted: {left} of {len(sweep.cells)} cells have not run.",
    )


def _fastest(sweep: Sweep) -> Iterator[str]:
    """Yield how many cells have no reliable speed; then, for few models, the fastest cell of each."""
    done = [cell for cell in sweep.cells if cell.state == "done" and cell.images_per_sec]
    measured = [cell for cell in done if not cell.beside_other_work]
    if beside := len(done) - len(measured):
        of = units.counted(len(done), "cell")
        yield f"{NOT_RELIABLE}: {beside} of {of}: {BUSY}. Repeat."
    models = list(dict.fromkeys(str(cell.options.get("model")) for cell in measured))
    for model in models if len(models) <= MAX_MODELS else ():
        own = [cell for cell in measured if cell.options.get("model") == model]
        best = max(own, key=lambda cell: cell.images_per_sec or 0.0)
        if words := cell_words(best, _varied(own)):
            speed = units.images_per_sec(best.images_per_sec)
            yield f"Fastest with {plain(model)}: {words}, {speed} images/sec."


def _section(name: str, cells: Sequence[SweepCell], *, dry: bool) -> Section:
    """Return a row for each combination that runs, with its repeats together; empty if there are none."""
    shown = [cell for cell in cells if cell.state not in _NOT_RUN]
    repeats = groupby(shown, key=lambda cell: (cell.number - cell.repeat, sorted(cell.options.items())))
    rows = [list(same) for _, same in repeats]
    if not rows:
        return Section(name, ())
    firsts = [row[0] for row in rows]
    varied = _varied(firsts)
    same = cell_words(firsts[0], firsts[0].options.keys() - varied)
    heads = ("cell", *varied, *(("predicted",) if dry else ("images/sec", "spread %", "remarks")))
    sides: tuple[Side, ...] = tuple("left" if one in (*varied, "remarks") else "right" for one in heads)
    texts = []
    for row in rows:
        figures = (_predicted(row),) if dry else (*_speed(row), _note(row))
        values = [row[0].options.get(one) for one in varied]
        shown_as = ["-" if one is None else "yes" if one is True else plain(str(one)) for one in values]
        texts.append((str(row[0].number), *shown_as, *figures))
    table = Table.of(heads, tuple(texts), sides)
    return Section("Cells" if name.isdigit() else name, (*((same,) if same else ()), without_empty(table)))


def _predicted(row: Sequence[SweepCell]) -> str:
    seconds = row[0].predicted_s
    count = f"{len(row)} x " if len(row) > 1 else ""
    return f"{count}{units.UNKNOWN if seconds is None else units.seconds(seconds)}"


def _speed(row: Sequence[SweepCell]) -> tuple[str, str]:
    """Return the median of the repeats and their range in percent; for one repeat, the noise within it."""
    speeds = [cell.images_per_sec for cell in row if cell.images_per_sec is not None]
    middle = median(speeds) if speeds else None
    noise = next((cell.noise for cell in row if cell.noise is not None), None)
    spread = "" if noise is None else f"\N{PLUS-MINUS SIGN}{200 * noise:.1f}"
    if middle and len(speeds) > 1:
        spread = f"{100 * (max(speeds) - min(speeds)) / middle:.1f}"
    return "" if middle is None else units.images_per_sec(middle), spread


def _note(row: Sequence[SweepCell]) -> str:
    """Return notes on a row: states other than done, other load on the host."""
    words = []
    for state, same in groupby(sorted(cell.state for cell in row if cell.state != "done")):
        count = len(list(same))
        word = _WORDS.get(state, state)
        words.append(word if len(row) == 1 else f"{count} of {len(row)} {word}")
    if any(cell.steps == 1 for cell in row):
        words.append("one step")
    if any(cell.beside_other_work for cell in row):
        words.append("other load")
    return ", ".join(words)


def _remarks(sweep: Sweep) -> tuple[str, ...]:
    """Return each reason and note once, with its cells."""
    why = {
        cell.number: [] if cell.reason is None else [f" {_WORDS.get(cell.state, cell.state)}: {cell.reason}"]
        for cell in sweep.cells
    }
    by_text = grouped(
        (text, cell.number)
        for cell in sweep.cells
        for text in (*why[cell.number], *(f": {note}" for note in cell.notes))
    )
    return tuple(
        f"{'Cell' if len(numbers) == 1 else 'Cells'} {index_ranges(numbers)}{text}"
        for text, numbers in by_text.items()
    )


def _counts(sweep: Sweep, *, dry: bool) -> str:
    counts = Counter(_WORDS.get(cell.state, cell.state) for cell in sweep.cells)
    counts["excluded by the matrix"] = sweep.excluded
    counts["duplicates removed"] = sweep.duplicates
    listed = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    if dry:
        unknown = sum(cell.state == "pending" and cell.predicted_s is None for cell in sweep.cells)
        guessed = f", of which {units.counted(unknown, 'cell')} guessed" if unknown else ""
        took = f"about {units.seconds(sweep.left_s)}{guessed}."
    else:
        took = f"{units.seconds(sweep.seconds)}."
        took += f" Ended by {sweep.ended_by}." if sweep.ended_by else ""
    return f"{units.counted(len(sweep.cells), 'cell')}: {listed}; {took}"
