"""The study of measured throughputs as a document: observations, tables, ratios, comparisons."""

from collections.abc import Sequence
from itertools import groupby
from statistics import median

from gputopo.report.document import Block, Bullets, Document, Section
from gputopo.report.study_models import model_pages, model_table
from gputopo.report.study_tables import (
    ROWS,
    bullets,
    cell_words,
    devices_word,
    noise_words,
    row_words,
    speed_unit,
    table,
)
from gputopo.report.units import counted, percent, three_figures
from gputopo.values.run.measurement import CONDITIONS
from gputopo.values.run.over_time import OneRun
from gputopo.values.study import DEVIATIONS, OBSERVATIONS, Cell, Study, stated, varying

_SHOWN = 2  # observations of one id in the short form
_UNREAD = 20  # lines about unreadable files in the short form
_FEW = 4  # rows in the short form of a table that observations summarize
# Observations that repeat a row of the table of ratios.
_IN_RATIOS = frozenset(id for id in OBSERVATIONS if id.endswith(".ratio") or id.startswith("batch."))


def study_document(study: Study, runs: Sequence[OneRun] | None = None, *, of: int = 0) -> Document:
    """Return the document of a study. Numbers are rounded here; the study has all digits.

    `runs`: with pictures, and with these runs of `of` at the end; None: without pictures.
    """
    cells = study.figures.cells
    parts: list[tuple[str, Sequence[Block]]] = [
        ("Observations", _observations(study)),
        ("Programs", _programs(study)),
        ("Scaling", _scaling(study)),
        ("Ratios", _ratios(study)),
        ("Pairs of GPUs", _pairs(study)),
        ("Each GPU and its clock", _clocks(study)),
        ("By CPU", _cpus(study)),
        ("Predicted and measured", _predicted(study)),
        ("Against earlier runs", _against(study, "earlier")),
        ("Against published figures", _against(study, "published")),
        ("All runs", _cells(cells)),
        ("Models", model_table(dict.fromkeys(cell.of.model for cell in cells))),
        ("Not read", bullets((unread_file.why for unread_file in study.unread), _UNREAD)),
        ("Sources", bullets((f"{name}: {text}" for name, text in study.sources.items()), _FEW)),
    ]
    sections = [Section(title, tuple(blocks)) for title, blocks in parts if blocks]
    if runs is not None:
        from gputopo.report.pictures import with_pictures

        sections = with_pictures(sections, study, runs, of=of)
    return Document(study.title, _counts(cells), (*sections, *model_pages(study)), study.headline)


def _counts(cells: Sequence[Cell]) -> str:
    failed, runs = sum(len(cell.failed) for cell in cells), sum(len(cell.runs) for cell in cells)
    words = f"{counted(runs, 'run')} under {counted(len(cells), 'set')} of conditions"
    words += f", {failed} without a figure." if failed else "."
    shared = _shared(cells)
    return words + (f" All with: {shared}." if shared else "")


def _shared(cells: Sequence[Cell]) -> str:
    """Return the conditions that all cells share, in words."""
    left_out = {*varying(cells), "n_gpus", "gpus", "backend", "task", "unit"}
    some = [cell.of for cell in cells]
    names = [name for name in CONDITIONS if name not in left_out and len(stated(some, name)) == 1]
    return some[0].job_words(names) if len(some) > 1 else ""


def _observations(study: Study) -> list[Block]:
    blocks: list[Block] = []
    for id, same in groupby(study.observations, key=lambda observation: observation.id):
        if id not in _IN_RATIOS:
            blocks += [
                f"{OBSERVATIONS[id]}:",
                Bullets(tuple(observation.says for observation in same), shown=_SHOWN),
            ]
    return blocks


def _scaling(study: Study) -> list[Block]:
    """Return a row for each job: one device, then the speedup of the fastest set of each size."""
    figures = study.figures
    if not figures.scalings:
        return []
    names = varying([figures.cells[s.largest.cell] for s in figures.scalings])
    counts = sorted({row.n_gpus for scaling in figures.scalings for row in scaling.rows[1:]})
    rows = []
    for scaling in figures.scalings:
        fastest = {row.n_gpus: row for row in sorted(scaling.rows, key=lambda row: row.images_per_sec)}
        most = fastest[scaling.largest.n_gpus]
        rows.append(
            [figures.cells[most.cell].of.job_words(names), three_figures(scaling.rows[0].images_per_sec),
             *(f"{fastest[number].speedup:.2f}x" if number in fastest else "" for number in counts),
             f"{most.efficiency_percent:.2f}", percent(100 * DEVIATIONS * most.noise) if most.noise else ""]
        )  # fmt: skip
    devices = devices_word(figures.cells)
    heads = [
        "job",
        f"{speed_unit(figures.cells)}\non 1",
        *(f"on {number}" for number in counts),
        "efficiency\n%",
        "±%",
    ]
    notes = [f"on {counts[0]}: speedup over one. Efficiency: on the most {devices}"]
    if not all(row.same_mode for scaling in figures.scalings for row in scaling.rows):
        notes.append("some one-GPU runs used another placement, which makes little difference on one GPU")
    blocks: list[Block] = []
    programs = {figures.cells[scaling.largest.cell].of.program for scaling in figures.scalings}
    jobs = {at_size.of for at_size in figures.scaling_medians}
    if len(figures.scalings) > 1 and len(programs) == 1 and jobs == {len(figures.scalings)}:
        medians = [
            [
                str(at_size.n_gpus),
                f"{at_size.speedup:.2f}x",
                f"{at_size.efficiency_percent:.2f}",
                str(at_size.of),
            ]
            for at_size in figures.scaling_medians
        ]
        heads_of = [devices, "speedup", "efficiency %", "jobs"]
        blocks += ["Medians over the jobs:", table(heads_of, medians, words=())]
    return [*blocks, table(heads, rows, words=("job",), notes=notes, shown=_rows_of(figures.cells))]


def _rows_of(cells: Sequence[Cell]) -> int:
    """Return the number of rows in the short form; a published document has all rows."""
    return len(cells) if all(cell.of.is_published for cell in cells) else ROWS


def _programs(study: Study) -> list[Block]:
    """Return a table for each two programs: the images/sec of both for each job."""
    cells, blocks = study.figures.cells, list[Block]()
    for ratio in study.figures.ratios:
        if ratio.id == "program":
            names = varying(cells[row.above] for row in ratio.rows)
            rows = [
                [cells[row.above].of.job_words(names), str(row.n_gpus),
                 cell_words(cells[row.above]), cell_words(cells[row.below]), f"{row.value:.2f}x"]
                for row in ratio.rows
            ]  # fmt: skip
            heads = ["job", devices_word(cells), ratio.above, ratio.below, "ratio"]
            blocks.append(table(heads, rows, words=("job",), shown=_rows_of(cells)))
    return blocks


def _ratios(study: Study) -> list[Block]:
    rows = []
    for ratio in sorted(study.figures.ratios, key=lambda ratio: -len(ratio.rows)):
        values = [row.value for row in ratio.rows]
        by_number = "; ".join(
            f"{of_size.n_gpus}: {of_size.value:.2f}" for of_size in ratio.medians if of_size.n_gpus
        )
        batch = "batch " if ratio.id.startswith("batch") else ""
        rows.append(
            [f"{batch}{ratio.above} over {ratio.below}", f"{ratio.medians[-1].value:.2f}x",
             f"{min(values):.2f}", f"{max(values):.2f}",
             percent(100 * DEVIATIONS * median(row.noise for row in ratio.rows)),
             str(len(values)), str(sum(row.holds for row in ratio.rows)), ratio.title, by_number]
        )  # fmt: skip
    heads = ["speed of", "median", "lowest", "highest", "±%", "pairs", "beyond noise", "comparison",
             f"by {devices_word(study.figures.cells)}"]  # fmt: skip
    notes = ("±%: two standard errors of one ratio, median over the pairs",)
    return [table(heads, rows, words=(heads[0], *heads[-2:]), notes=notes)] if rows else []


def _pairs(study: Study) -> list[Block]:
    """Return a table for each job on pairs of GPUs."""
    cells, blocks = study.figures.cells, list[Block]()
    for pair in study.figures.pairs:
        columns = list(
            dict.fromkeys(
                (path, cells[number].of.gpus)
                for row in pair.rows
                for path, numbers in ((row.near_path, row.near), (row.far_path, row.far))
                for number in numbers
            )
        )
        rows = []
        for row in pair.rows:
            known = {cells[number].of.gpus: cells[number].images_per_sec for number in (*row.near, *row.far)}
            speeds = [three_figures(known[gpus]) if gpus in known else "" for _, gpus in columns]
            rows.append([row.mode, *speeds, f"{row.gain:.2f}x", "yes" if row.holds else "no"])
        heads = [f"{path} {','.join(map(str, gpus))}" for path, gpus in columns]
        blocks += [
            f"{pair.machine}, {pair.model}: {speed_unit(cells)} by pair, and the nearer over the farther:",
            table(["mode", *heads, "gain", "beyond noise"], rows, words=("mode",)),
        ]
    return blocks


def _clocks(study: Study) -> list[Block]:
    """Return a table for each job on single GPUs."""
    blocks = list[Block]()
    for clocks in study.figures.clocks:
        rows = [
            [str(row.gpu), row.name or "", three_figures(row.images_per_sec), f"{row.percent:.2f}",
             "" if row.clock_mhz is None else f"{row.clock_mhz:.1f}",
             "" if row.clock_percent is None else f"{row.clock_percent:.2f}",
             "" if row.explained_percent is None else f"{row.explained_percent:.1f}",
             "" if row.unexplained_percent is None else f"{row.unexplained_percent:.1f}"]
            for row in clocks.rows
        ]  # fmt: skip
        kind = next((row.clock for row in clocks.rows if row.clock), "core")
        heads = [
            "GPU",
            "name",
            speed_unit(study.figures.cells),
            "%",
            f"{kind} clock MHz",
            "%",
            "explained %",
            "unexplained %",
        ]
        notes = ("explained: at most, by the clock",)
        blocks += [
            f"{clocks.where}: percent of GPU {clocks.reference}:",
            table(heads, rows, words=("GPU", "name"), notes=notes),
        ]
    return blocks


def _cpus(study: Study) -> list[Block]:
    blocks = list[Block]()
    for cpus in study.figures.cpus:
        rows = [
            [
                model,
                *("" if number is None else cell_words(study.figures.cells[number]) for number in numbers),
            ]
            for model, numbers in zip(cpus.models, cpus.cells, strict=True)
        ]
        blocks += [
            f"{cpus.name}, {speed_unit(study.figures.cells)}:",
            table(["model", *cpus.cpus], rows, words=("model",), shown=len(rows)),
        ]
    return blocks


def _predicted(study: Study) -> list[Block]:
    figures = study.figures
    names = varying(figures.cells)
    rows = [
        [figures.cells[row.cell].of.job_words(names), three_figures(row.images_per_sec),
         three_figures(row.predicted.images_per_sec),
         f"{three_figures(row.predicted.low)} to {three_figures(row.predicted.high)}",
         f"{row.difference_percent:+.1f}", row.predicted.verdict, str(figures.cells[row.cell].of.n_gpus)]
        for row in figures.predicted
    ]  # fmt: skip
    heads = [
        "job",
        speed_unit(figures.cells),
        "predicted",
        "range",
        "difference %",
        "verdict",
        devices_word(figures.cells),
    ]
    return [table(heads, rows, words=("job", "range", "verdict"))] if rows else []


def _against(study: Study, kind: str) -> list[Block]:
    figures = study.figures
    names = varying(figures.cells)
    rows = [
        [figures.cells[row.cell].of.job_words(names), three_figures(figures.cells[row.cell].images_per_sec),
         three_figures(row.reference_images_per_sec), f"{row.difference_percent:+.1f}",
         f"{row.noise_percent:.1f}", "regression" if row.is_regression else row.verdict,
         str(figures.cells[row.cell].of.n_gpus), row.reference.removeprefix("published: "),
         ", ".join(row.differs)]
        for row in sorted(figures.against, key=lambda row: row.difference_percent)
        if row.kind == kind
    ]  # fmt: skip
    heads = ["job", speed_unit(figures.cells), "reference", "difference %", "noise %", "verdict",
             devices_word(figures.cells), "of", "also different"]  # fmt: skip
    words = ("job", "verdict", "of", "also different")
    return [table(heads, rows, words=words, shown=_FEW)] if rows else []


def _cells(cells: Sequence[Cell]) -> list[Block]:
    names = [name for name in varying(cells) if name not in ("n_gpus", "gpus")]
    rows = [
        [job, str(cell.of.n_gpus), cell_words(cell),
         noise_words(cell),
         str(len(cell.repeats)) if cell.repeats else "",
         cell.of.value_words("gpus") if cell.of.gpus else "",
         next(iter(cell.failed), cell.spoilt or "")]
        for cell, job in zip(cells, row_words(cells, names), strict=True)
    ]  # fmt: skip
    heads = ["job", devices_word(cells), speed_unit(cells), "±%", "runs", "which", "remark"]
    notes = ("±%: two standard errors; 1% between runs is assumed (measure it with --repeats)",)
    return [table(heads, rows, words=("job", "which", "remark"), notes=notes)] if rows else []
