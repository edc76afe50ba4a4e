"""The study of measured throughputs as a document: tables, ratios, comparisons, observations."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from gputopo.measurements.cells import CONDITIONS, DEVIATIONS, Cell, value_words
from gputopo.measurements.observations import devices_word, job_words, stated, varying
from gputopo.measurements.ratios import Scaling, ScalingRow
from gputopo.measurements.study import Study
from gputopo.report.document import Bar, Block, Bullets, Document, Section, bars
from gputopo.report.layout import Side
from gputopo.report.study_models import cell_words, model_pages, model_table, table, without_empty
from gputopo.report.units import counted, images_per_sec, percent

MAX_CURVES = 16  # of one picture; the table has all
_MAX_UNREAD = 50
_Words = Callable[[float | None], str]
SCALING = "Scaling"  # title of the section whose figures are drawn, too


def study_document(study: Study) -> Document:
    """Return the document of a study. All numbers are in the study; here they are rounded."""
    parts: list[tuple[str, Sequence[Block]]] = [
        ("Observations", _bullets(one.says for one in study.observations)),
        (SCALING, _scaling(study)),
        ("Ratios", _ratios(study)),
        ("Pairs of GPUs", pair_blocks(study)),
        ("Each GPU and its clock", clock_blocks(study)),
        ("By CPU", _cpus(study)),
        ("Predicted and measured", _predicted(study)),
        ("Against earlier runs", _against(study, "earlier")),
        ("Against published figures", _against(study, "published")),
        ("All runs", _cells(study)),
        ("Models", model_table(dict.fromkeys(cell.of.model for cell in study.figures.cells))),
        ("Not read", _unread(study)),
        ("Sources", _bullets(f"{name}: {text}" for name, text in study.sources.items())),
    ]
    cells = study.figures.cells
    failed = sum(len(cell.failed) for cell in cells)
    idle = sum(len(cell.not_run) for cell in cells)
    runs = sum(len(cell.sources) for cell in cells) - idle
    shared = _shared(cells)
    under = sum(len(cell.sources) > len(cell.not_run) for cell in cells)
    summary = f"{counted(runs, 'run')} under {counted(under, 'set')} of conditions"
    summary += f", {failed} without a figure." if failed else "."
    if idle:
        summary += f" {counted(idle, 'cell')} of a sweep {'was' if idle == 1 else 'were'} not run."
    if shared:
        summary += f" All with: {shared}."
    sections = tuple(Section(title, tuple(blocks)) for title, blocks in parts if blocks)
    return Document(study.title, summary, sections, model_pages(study))


def _bullets(items: Iterable[str]) -> list[Block]:
    found = tuple(items)
    return [Bullets(found)] if found else []


def _shared(cells: Sequence[Cell]) -> str:
    """Return the conditions that all cells have in common, in words."""
    if len(cells) < 2:
        return ""
    first, different = cells[0].of, set(varying(cells))
    names = [
        name
        for name in CONDITIONS
        if name not in different and name not in ("n_gpus", "gpus", "backend", "task")
        and len(stated((cell.of for cell in cells), name)) == 1
    ]  # fmt: skip
    return job_words(first, names)


def _scaling(study: Study) -> list[Block]:
    figures = study.figures
    if not figures.scalings:
        return []
    names = varying([figures.cells[s.largest.cell] for s in figures.scalings])
    rows = []
    for scaling in figures.scalings:
        for row in scaling.rows:
            of = figures.cells[row.cell].of
            job = job_words(figures.cells[scaling.largest.cell].of, names)
            spread = "" if row.noise == 0 else f"{100 * DEVIATIONS * row.noise:.1f}"
            gpus = value_words("gpus", row.gpus) if row.gpus else ""
            rows.append(
                [job, str(row.n_gpus), gpus, images_per_sec(row.images_per_sec), f"{row.speedup:.2f}x",
                 f"{row.efficiency_percent:.2f}", spread, "" if row.same_mode else of.mode]
            )  # fmt: skip
    devices = devices_word(figures.cells)
    heads = ["job", devices, "which", "images/sec", "speedup", "efficiency %", "+/- %", "other mode"]
    blocks: list[Block] = [without_empty(table(heads, rows))]
    if len(figures.scalings) > 1:
        medians = [
            [str(one.n_gpus), f"{one.speedup:.2f}x", f"{one.efficiency_percent:.2f}", str(one.of)]
            for one in figures.scaling_medians
        ]
        blocks += ["Medians over the jobs:", table([devices, "speedup", "efficiency %", "jobs"], medians)]
    drawn = tuple(
        Bar(label, _set_words(row, scaling), row.speedup, row.n_gpus)
        for label, scaling in curves(study)
        for row in scaling.rows[1:]
    )
    return [*blocks, bars("Speedup; light: what is missing to the ideal one", ("job", devices), drawn, "x")]


def _set_words(row: ScalingRow, scaling: Scaling) -> str:
    """Return the number of GPUs, and which they are where there are several sets of that number."""
    alike = sum(one.n_gpus == row.n_gpus for one in scaling.rows)
    return f"{row.n_gpus}: {','.join(map(str, row.gpus))}" if alike > 1 and row.gpus else str(row.n_gpus)


def curves(study: Study) -> list[tuple[str, Scaling]]:
    """Return the scalings that are drawn, each with what sets it apart from the others."""
    cells, shown = study.figures.cells, study.figures.scalings[:MAX_CURVES]
    names = varying(cells[one.largest.cell] for one in shown)
    return [(job_words(cells[one.largest.cell].of, names), one) for one in shown]


def _ratios(study: Study) -> list[Block]:
    rows = []
    for one in study.figures.ratios:
        values = [row.value for row in one.rows]
        by_number = "; ".join(
            f"{some.n_gpus}: {some.value:.2f}" for some in one.medians if some.n_gpus is not None
        )
        rows.append(
            [one.title, one.above, one.below, f"{one.medians[-1].value:.2f}x", f"{min(values):.2f}",
             f"{max(values):.2f}", percent(100 * DEVIATIONS * median(row.noise for row in one.rows)),
             str(len(values)), str(sum(row.holds for row in one.rows)), by_number]
        )  # fmt: skip
    heads = ["comparison", "of", "over", "median", "lowest", "highest", "+/- %", "pairs", "beyond noise",
             f"by {devices_word(study.figures.cells)}"]  # fmt: skip
    notes = ("+/- %: of one ratio, in the median: two standard errors, from those of both figures.",)
    return [table(heads, rows, left=3, notes=notes)] if rows else []


def pair_blocks(study: Study, speed: _Words = images_per_sec) -> list[Block]:
    """Return a table for each job on pairs of GPUs. `speed`: how images/sec are written."""
    cells, blocks = study.figures.cells, list[Block]()
    for one in study.figures.pairs:
        columns = list(
            dict.fromkeys(
                (path, cells[number].of.gpus)
                for row in one.rows
                for path, numbers in ((row.near_path, row.near), (row.far_path, row.far))
                for number in numbers
            )
        )
        rows = []
        for row in one.rows:
            known = {cells[number].of.gpus: cells[number].images_per_sec for number in (*row.near, *row.far)}
            speeds = [speed(known[gpus]) if gpus in known else "" for _, gpus in columns]
            rows.append([row.mode, *speeds, f"{row.gain:.2f}x", "yes" if row.holds else "no"])
        heads = [f"{path} {','.join(map(str, gpus))}" for path, gpus in columns]
        blocks += [
            f"{one.machine}, {one.model}: images/sec by pair, and the nearer over the farther.",
            table(["mode", *heads, "gain", "beyond noise"], rows),
        ]
    return blocks


def clock_blocks(study: Study, speed: _Words = images_per_sec) -> list[Block]:
    """Return a table for each job on single GPUs. `speed`: how images/sec are written."""
    blocks = list[Block]()
    for one in study.figures.clocks:
        rows = [
            [str(row.gpu), row.name or "", speed(row.images_per_sec), f"{row.percent:.2f}",
             "" if row.clock_mhz is None else f"{row.clock_mhz:.1f}",
             "" if row.clock_percent is None else f"{row.clock_percent:.2f}",
             "" if row.explained_percent is None else f"{row.explained_percent:.1f}",
             "" if row.unexplained_percent is None else f"{row.unexplained_percent:.1f}"]
            for row in one.rows
        ]  # fmt: skip
        kind = next((row.clock for row in one.rows if row.clock), "core")
        heads = ["GPU", "name", "images/sec", "%", f"{kind} clock MHz", "%", "explained %", "unexplained %"]
        where = ", ".join(filter(None, (one.machine, one.model)))
        note = "Explained: of what is missing to the reference, by the clock, at most."
        blocks += [
            f"{where}: percent of GPU {one.reference}.",
            without_empty(table(heads, rows, left=2, notes=(note,))),
        ]
    return blocks


def _cpus(study: Study) -> list[Block]:
    blocks = list[Block]()
    for one in study.figures.cpus:
        rows = [
            [
                model,
                *("" if number is None else cell_words(study.figures.cells[number]) for number in numbers),
            ]
            for model, numbers in zip(one.models, one.cells, strict=True)
        ]
        blocks += [one.name, table(["images/sec", *one.cpus], rows)]
    return blocks


def _predicted(study: Study) -> list[Block]:
    figures = study.figures
    names = varying(figures.cells)
    rows = [
        [job_words(figures.cells[row.cell].of, names), str(figures.cells[row.cell].of.n_gpus),
         images_per_sec(row.predicted.images_per_sec),
         f"{images_per_sec(row.predicted.low)} to {images_per_sec(row.predicted.high)}",
         images_per_sec(row.images_per_sec), f"{row.difference_percent:+.1f}", row.predicted.verdict]
        for row in figures.predicted
    ]  # fmt: skip
    heads = ["job", devices_word(figures.cells), "predicted", "range", "measured", "difference %", "verdict"]
    return [table(heads, rows)] if rows else []


def _against(study: Study, kind: str) -> list[Block]:
    figures = study.figures
    names = varying(figures.cells)
    rows = [
        [job_words(figures.cells[row.cell].of, names), str(figures.cells[row.cell].of.n_gpus),
         images_per_sec(figures.cells[row.cell].images_per_sec), images_per_sec(row.reference_images_per_sec),
         f"{row.difference_percent:+.1f}", f"{row.noise_percent:.1f}",
         "regression" if row.is_regression else row.verdict, row.reference, ", ".join(row.differs)]
        for row in figures.against
        if row.kind == kind
    ]  # fmt: skip
    heads = [
        "job",
        devices_word(figures.cells),
        "images/sec",
        "reference",
        "difference %",
        "noise %",
        "verdict",
        "of",
        "also different",
    ]
    return [without_empty(table(heads, rows))] if rows else []


def _cells(study: Study) -> list[Block]:
    cells = study.figures.cells
    names = [name for name in varying(cells) if name not in ("n_gpus", "gpus")]
    rows = [
        [job_words(cell.of, names), str(cell.of.n_gpus),
         value_words("gpus", cell.of.gpus) if cell.of.gpus else "",
         cell_words(cell), "" if cell.noise is None else percent(100 * DEVIATIONS * cell.noise),
         str(len(cell.repeats)) if cell.repeats else "", next(iter((*cell.failed, *cell.not_run)), "")]
        for cell in sorted(cells, key=lambda cell: not cell.of.is_run)
    ]  # fmt: skip
    heads = ["job", devices_word(cells), "which", "images/sec", "+/- %", "runs", "reason"]
    sides: tuple[Side, ...] = ("left", "right", "left", "right", "right", "right", "left")
    return [without_empty(table(heads, rows, sides=sides))] if rows else []


def _unread(study: Study) -> list[Block]:
    if not study.unread:
        return []
    some = [one.why for one in study.unread[:_MAX_UNREAD]]
    more = len(study.unread) - len(some)
    return [Bullets((*some, *([f"and {more} more"] if more > 0 else [])))]
