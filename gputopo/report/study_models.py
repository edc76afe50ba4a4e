"""The models of a study: a table of their sizes, and a page for each with its images/sec."""

import re
from collections.abc import Iterable, Sequence

from gputopo.report.document import Block, Page, Table
from gputopo.report.study_tables import ROWS, cell_words, devices_word, noise_words, speed_unit, table
from gputopo.values.study import Cell, Study, varying
from gputopo.workload import Workload, require_workload, workload_names

MAX_PAGES = 100  # gputopo has about forty models; a table from elsewhere may have any number
_MAX_NAME = 60  # letters of a file name
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_NOTE = (
    "MiB: 2^20 bytes of float32; feature: outputs that one example keeps for the backward pass; GMAC: "
    "thousand million multiply-accumulates of its forward pass (gputopo explain MODEL)"
)
# Conditions that have their own columns on the page of a model.
_COLUMNS = frozenset({"model", "machine", "cpu", "gpu", "n_gpus", "gpus", "batch_per_gpu"})
_COLUMNS_OF_MODE = frozenset({"variable_update", "ps_device", "all_reduce"})


def model_table(models: Iterable[str]) -> list[Block]:
    """Return the table of the models that gputopo knows; empty if it knows none of them."""
    known = set(workload_names())
    rows = tuple(_row(require_workload(name)) for name in models if name in known)
    heads = ("model", "input", "parameters, millions", "parameter MiB", "feature MiB", "GMAC")
    return [table(heads, rows, words=heads[:2], notes=(_NOTE,), shown=2 * ROWS)] if rows else []


def _row(one: Workload) -> tuple[str, ...]:
    height, width, _ = one.input_shape
    return (
        one.name,
        f"{height} x {width}",
        _short(one.parameters / 1e6, 2),
        _short(one.parameter_bytes / 2**20),
        _short(one.feature_bytes / 2**20),
        _short(one.multiply_accumulates / 1e9, 2),
    )


def _short(value: float, digits: int = 1) -> str:
    """Return a number with this many decimals, or with two figures if it is below 1."""
    return f"{value:.{digits}f}" if value >= 1 or value == 0 else f"{value:.2g}"


def model_pages(study: Study) -> tuple[Page, ...]:
    """Return a page for each model, with its description and its images/sec. Page names are unique."""
    cells = study.figures.cells
    models = tuple(dict.fromkeys(cell.of.model for cell in cells))[:MAX_PAGES]
    speedups = {row.cell: row.speedup for one in study.figures.scalings for row in one.rows}
    pages = []
    for name, model in zip(file_names(models), models, strict=True):
        own = [cell for cell in cells if cell.of.model == model]
        blocks = (*_facts(model), *_figures(own, speedups))
        pages.append(Page(name, f"Model {model}", blocks))
    return tuple(pages)


def file_names(titles: Iterable[str]) -> list[str]:
    """Return a file name without suffix for each title: safe characters, unique if case is ignored."""
    taken: set[str] = set()
    found = []
    for title in titles:
        name = _UNSAFE.sub("-", title)[:_MAX_NAME].strip("-.") or "unnamed"
        number = 1
        while (full := name if number == 1 else f"{name}-{number}").lower() in taken:
            number += 1
        taken.add(full.lower())
        found.append(full)
    return found


def _facts(model: str) -> list[Block]:
    if model not in workload_names():
        return ["gputopo does not have this model: its size and arithmetic are not known."]
    one = require_workload(model)
    height, width, channels = one.input_shape
    rows = (
        ("input", f"{height} x {width} x {channels}"),
        ("classes", str(one.classes)),
        ("parameters", f"{one.parameters / 1e6:.2f} million ({one.parameters:,})"),
        ("memory of the parameters", _memory(one.parameter_bytes)),
        ("feature memory of one example", _memory(one.feature_bytes)),
        ("multiply-accumulates of one forward pass of one example",
         f"{_short(one.multiply_accumulates / 1e9, 2)} thousand million (GMAC)"),
        ("default batch per GPU", str(one.gpu_batch)),
        ("source", one.source),
    )  # fmt: skip
    return [Table.of(("", "value"), tuple(row for row in rows if row[1]))]


def _memory(count: int) -> str:
    return f"{_short(count / 2**20)} MiB, {_short(count / 1e6)} MB (float32)"


def _figures(cells: Sequence[Cell], speedups: dict[int, float]) -> list[Block]:
    others = [name for name in varying(cells) if name not in _COLUMNS | _COLUMNS_OF_MODE]
    rows = [
        [
            cell.of.machine or "",
            cell_words(cell),
            noise_words(cell),
            f"{speedups[cell.number]:.2f}x" if cell.number in speedups else "",
            str(cell.of.n_gpus),
            cell.of.value_words("gpus") if cell.of.gpus else "",
            "" if cell.of.batch_per_gpu is None else str(cell.of.batch_per_gpu),
            cell.of.mode,
            cell.of.job_words(others),
            cell.of.cpu or "",
            cell.of.gpu or "",
            next(iter(cell.failed), ""),
        ]
        for cell in sorted(cells, key=lambda cell: (cell.of.machine or "", cell.of.n_gpus, cell.number))
    ]
    words = ("machine", "CPU", "GPU", "which", "mode", "with", "remark")
    heads = ["machine", speed_unit(cells), "±%", "speedup", devices_word(cells), "which", "batch per device",
             "mode", "with", "CPU", "GPU", "remark"]  # fmt: skip
    return [table(heads, rows, words=words)]
