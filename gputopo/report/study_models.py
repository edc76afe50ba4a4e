"""The models of a study: a table of their sizes, and a page for each with its images/sec."""

import re
from collections.abc import Iterable, Mapping, Sequence

from gputopo.report.document import Block, Section, Table
from gputopo.report.study_tables import ROWS, cell_words, devices_word, noise_words, speed_unit, table
from gputopo.values.grouping import grouped
from gputopo.values.study import Cell, Study, varying
from gputopo.workload import require_workload, workload_names

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
    rows = []
    for model in map(require_workload, (name for name in models if name in known)):
        height, width, _ = model.input_shape
        sizes = (
            _short(model.parameters / 1e6, 2),
            _short(model.parameter_bytes / 2**20, 1),
            _short(model.feature_bytes / 2**20, 1),
            _short(model.multiply_accumulates / 1e9, 2),
        )
        rows.append((model.name, f"{height} x {width}", *sizes))
    heads = ("model", "input", "parameters, millions", "parameter MiB", "feature MiB", "GMAC")
    return [table(heads, rows, words=heads[:2], notes=(_NOTE,), shown=2 * ROWS)] if rows else []


def _short(value: float, digits: int) -> str:
    """Return a number with this many decimals, or with two figures if it is below 1."""
    return f"{value:.{digits}f}" if value >= 1 or value == 0 else f"{value:.2g}"


def model_pages(study: Study) -> list[Section]:
    """Return a page for each model, with its description and its images/sec."""
    speedups = {row.cell: row.speedup for scaling in study.figures.scalings for row in scaling.rows}
    by_model = grouped((cell.of.model, cell) for cell in study.figures.cells)
    pages: dict[str, Section] = {}  # by their names without case: some disks ignore it
    for model, cells in by_model.items():
        name = safe = _UNSAFE.sub("-", model)[:_MAX_NAME].strip("-.") or "unnamed"
        number = 1
        while name.lower() in pages:
            number += 1
            name = f"{safe}-{number}"
        blocks = (_sizes(model), _figures(cells, speedups))
        pages[name.lower()] = Section(f"Model {model}", blocks, is_folded=True, page=name)
    return [*pages.values()]


def _sizes(name: str) -> Block:
    if name not in workload_names():
        return "gputopo does not have this model: its size and arithmetic are not known."
    model = require_workload(name)
    height, width, channels = model.input_shape
    rows = (
        ("input", f"{height} x {width} x {channels}"),
        ("classes", str(model.classes)),
        ("parameters", f"{model.parameters / 1e6:.2f} million ({model.parameters:,})"),
        ("memory of the parameters", _memory(model.parameter_bytes)),
        ("feature memory of one example", _memory(model.feature_bytes)),
        ("multiply-accumulates of one forward pass of one example",
         f"{_short(model.multiply_accumulates / 1e9, 2)} thousand million (GMAC)"),
        ("default batch per GPU", str(model.gpu_batch)),
        ("source", model.source),
    )  # fmt: skip
    heads = ("", "value")
    return Table.of(heads, [row for row in rows if row[1]], words=heads)


def _memory(count: int) -> str:
    return f"{_short(count / 2**20, 1)} MiB, {_short(count / 1e6, 1)} MB (float32)"


def _figures(cells: Sequence[Cell], speedups: Mapping[int, float]) -> Table:
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
    return table(heads, rows, words=words)
