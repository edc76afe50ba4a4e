"""Derived figures as published documents print them, and the same from their own raw figures."""

import csv
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import msgspec

from gputopo.values.study import Cell, Figures


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """A speedup, efficiency, ratio or median as a document prints it, with the conditions that it states.

    `metric`: speedup, efficiency_percent, the id of a comparison, these after `median_`, percent_of_gpu_0,
    clock_percent_of_gpu_0, pair_gain.
    """

    source: str
    metric: str
    machine: str | None = None
    model: str | None = None
    dataset: str | None = None
    data: str | None = None
    batch_per_gpu: int | None = None
    data_format: str | None = None
    framework: str | None = None
    method: str | None = None
    variable_update: str | None = None
    ps_device: str | None = None
    nccl: bool | None = None
    gpus: tuple[int, ...] = ()
    n_gpus: int | None = None
    printed: str


class Recomputed(msgspec.Struct, frozen=True, kw_only=True):
    """One derived figure. `computed`: from raw figures, None where the document has none of it."""

    row: Derived
    computed: float | None

    @property
    def agrees(self) -> bool:
        """Whether it is the printed figure, to the last digit printed."""
        if self.computed is None:
            return True
        digits = len(self.row.printed.partition(".")[2])
        return abs(self.computed - float(self.row.printed)) <= 0.5 * math.pow(10, -digits) + 1e-9


def derived() -> tuple[Derived, ...]:
    """All derived figures of the documents, in the order of the table."""
    with Path(__file__).with_name("derived.csv").open(encoding="utf-8") as file:
        rows = [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]
    listed = [{**row, "gpus": list(map(int, row.get("gpus", "").split()))} for row in rows]
    return msgspec.convert(listed, tuple[Derived, ...], strict=False)


def recomputed(source: str, figures: Figures) -> tuple[Recomputed, ...]:
    """Return every derived figure of a document with the one from its raw figures."""
    rows = [row for row in derived() if row.source == source]
    speedups = {_job(row): float(row.printed) for row in rows if row.metric == "speedup"}
    found = []
    for row in rows:
        value = _from_raw(row, figures)
        if value is None and row.metric == "efficiency_percent" and _job(row) in speedups:
            value = _efficiency_in(row, speedups[_job(row)])
        found.append(Recomputed(row=row, computed=value))
    return tuple(found)


def _job(row: Derived) -> tuple[object, ...]:
    return tuple(
        getattr(row, name) for name in Derived.__struct_fields__ if name not in ("metric", "printed")
    )


def _efficiency_in(row: Derived, speedup: float) -> float | None:
    """Return the printed efficiency where the printed speedup, which is rounded, allows it, else its own."""
    if not row.n_gpus:
        return None
    printed, own = float(row.printed), 100 * speedup / row.n_gpus
    return printed if abs(printed - own) <= 100 * 0.00501 / row.n_gpus else own


def _from_raw(row: Derived, figures: Figures) -> float | None:
    metric = "median" if row.metric.startswith("median_") else row.metric
    return _BY_METRIC[metric](row, figures)


def _is_of(row: Derived, cell: Cell) -> bool:
    """Whether a cell has all conditions that a derived figure states."""
    of = cell.of
    stated = {
        "machine": row.machine, "model": row.model, "dataset": row.dataset, "data": row.data,
        "batch_per_gpu": row.batch_per_gpu, "data_format": row.data_format, "framework": row.framework,
        "variable_update": row.variable_update, "n_gpus": row.n_gpus, "method": row.method,
    }  # fmt: skip
    if of.n_gpus == 1:
        del stated["variable_update"]
    if of.batch_per_gpu is None:  # the document's 32 are of all GPUs together
        del stated["batch_per_gpu"]
    alike = all(value is None or getattr(of, name) == value for name, value in stated.items())
    server = of.n_gpus == 1 or row.ps_device is None or (of.ps_device or "").startswith(row.ps_device)
    server = server or of.variable_update != "parameter_server"
    nccl = of.n_gpus == 1 or row.nccl is None or row.nccl == (of.all_reduce == "nccl")
    return alike and server and nccl and (not row.gpus or of.gpus == row.gpus)


def _scaling(row: Derived, figures: Figures) -> float | None:
    for scaling in figures.scalings:
        for one in scaling.rows:
            if _is_of(row, figures.cells[one.cell]):
                return one.speedup if row.metric == "speedup" else one.efficiency_percent
    return None


def _ratio(row: Derived, figures: Figures) -> float | None:
    """Return the ratio of the table of this comparison whose upper cell it is of."""
    for table in figures.ratios:
        if table.id == row.metric:
            for one in table.rows:
                if _is_of(row, figures.cells[one.above]):
                    return one.value
    return None


def _median(row: Derived, figures: Figures) -> float | None:
    what = row.metric.removeprefix("median_")
    if what in ("speedup", "efficiency_percent"):
        values = [
            getattr(one, what)
            for scaling in figures.scalings
            for one in scaling.rows
            if one.n_gpus == row.n_gpus
        ]
        return median(values) if values else None
    table = next((one for one in figures.ratios if one.id == what), None)
    return next((one.value for one in table.medians if one.n_gpus == row.n_gpus), None) if table else None


def _of_gpu_0(row: Derived, figures: Figures) -> float | None:
    for table in figures.clocks:
        for one in table.rows:
            if row.gpus == (one.gpu,):
                return one.percent if row.metric == "percent_of_gpu_0" else one.clock_percent
    return None


def _pair(row: Derived, figures: Figures) -> float | None:
    for table in figures.pairs:
        for one in table.rows:
            if _is_of(row, figures.cells[one.near[0]]):
                return one.gain
    return None


_BY_METRIC: Mapping[str, Callable[[Derived, Figures], float | None]] = {
    "speedup": _scaling,
    "efficiency_percent": _scaling,
    **dict.fromkeys(("data", "batch-scaling", "gpu", "model"), _ratio),
    "median": _median,
    "percent_of_gpu_0": _of_gpu_0,
    "clock_percent_of_gpu_0": _of_gpu_0,
    "pair_gain": _pair,
}
