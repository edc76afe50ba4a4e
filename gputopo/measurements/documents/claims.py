"""Derived figures as published documents print them, beside the same from their own raw figures.

`published_derived.csv` has every speedup, efficiency, ratio and median of the documents. What cannot be made
from raw figures (a document has speedups alone) is checked against the document's other figures.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import msgspec

from gputopo.measurements.cells import Cell
from gputopo.measurements.figures import Figures
from gputopo.reference.published import Derived, published_derived


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """A statement of a document that its own figures contradict. `says`: in a sentence."""

    source: str
    says: str
    printed: str
    computed: float | None


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


def recomputed(source: str, figures: Figures) -> tuple[Recomputed, ...]:
    """Return every derived figure of a document with the one from its raw figures."""
    rows = [row for row in published_derived() if row.source == source]
    speedups = {_job(row): float(row.printed) for row in rows if row.metric == "speedup"}
    found = []
    for row in rows:
        value = _from_raw(row, figures)
        if value is None and row.metric == "efficiency_percent" and _job(row) in speedups:
            value = _efficiency_in(row, speedups[_job(row)])
        found.append(Recomputed(row=row, computed=value))
    return tuple(found)


def disagreements(source: str, figures: Figures) -> tuple[Disagreement, ...]:
    """Return what a document prints and its own figures contradict: figures, then sentences."""
    found = [
        Disagreement(
            source=source,
            says=f"{_where(one.row)}: {_NAMES.get(one.row.metric, one.row.metric)} is printed as "
            f"{one.row.printed}; from its own figures it is {one.computed:.4g}.",
            printed=one.row.printed,
            computed=one.computed,
        )
        for one in recomputed(source, figures)
        if not one.agrees
    ]
    return (*found, *(one for check in _SENTENCES.get(source, ()) for one in check(figures)))


_NAMES = {
    "row_label": "the number of GPUs of a row",
    "efficiency_percent": "efficiency in percent",
    "percent_of_gpu_0": "percent of GPU 0",
}


def _where(row: Derived) -> str:
    batch = f"batch {row.batch_per_gpu}" if row.batch_per_gpu else None
    gpus = f"{row.n_gpus} GPU{'' if row.n_gpus == 1 else 's'}" if row.n_gpus else None
    parts = (
        row.machine,
        " ".join(filter(None, (row.framework, row.method))),
        row.model,
        row.data,
        batch,
        gpus,
    )
    return ", ".join(filter(None, parts))


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


def _of_tf(row: Derived, figures: Figures) -> float | None:
    """Return percent of tf_cnn_benchmarks in the layout that the metric names."""
    layout = "NCHW" if row.metric.endswith("nchw") else "NHWC"
    same = [cell for cell in figures.cells if cell.images_per_sec and _is_of(row, cell)]
    tf = msgspec.structs.replace(row, framework="tf_cnn_benchmarks", method=None, data_format=layout)
    reference = [cell for cell in figures.cells if cell.images_per_sec and _is_of(tf, cell)]
    if not same or not reference:
        return None
    return 100 * (same[0].images_per_sec or 0.0) / (reference[0].images_per_sec or 1.0)


def _row_label(row: Derived, figures: Figures) -> float | None:
    """Return the number of GPUs that the speedups of the same row have: 1, 2, 4, 8."""
    return row.n_gpus


_BY_METRIC: Mapping[str, Callable[[Derived, Figures], float | None]] = {
    "speedup": _scaling,
    "efficiency_percent": _scaling,
    **dict.fromkeys(("data", "batch-scaling", "gpu", "model"), _ratio),
    "median": _median,
    "percent_of_gpu_0": _of_gpu_0,
    "clock_percent_of_gpu_0": _of_gpu_0,
    "pair_gain": _pair,
    "percent_of_tf_nchw": _of_tf,
    "percent_of_tf_nhwc": _of_tf,
    "row_label": _row_label,
}


def _superlinear(figures: Figures) -> Sequence[Disagreement]:
    """The figure of 104.93 % efficiency, which its neighbours contradict."""
    rows = [row for scaling in figures.scalings for row in scaling.rows]
    worst = max(rows, key=lambda row: row.efficiency_percent)
    of = figures.cells[worst.cell].of
    return [
        Disagreement(
            source="tensorflow.org",
            says=f"{of.machine}, {of.model}, {of.data}, batch {of.batch_per_gpu}, {worst.n_gpus} GPUs: "
            f"{worst.images_per_sec:.4g} images/sec are {worst.efficiency_percent:.2f} % efficiency, against "
            "92 to 102 % in the rest of its row: suspect.",
            printed=f"{worst.images_per_sec:.4g}",
            computed=worst.efficiency_percent,
        )
    ]


def _batch(figures: Figures) -> Sequence[Disagreement]:
    table = next(one for one in figures.ratios if one.id == "batch")
    values = [row.value for row in table.rows]
    return [
        Disagreement(
            source="tensorflow.org",
            says='"speedup from using batch size 64 vs. 32" is the ratio of the speedups, 1.00 on one GPU by '
            f"construction; in images/sec batch 64 is {min(values):.2f} to {max(values):.2f} times batch 32 "
            f"(median {median(values):.2f}), so that the batch has no effect does not follow.",
            printed="1.00",
            computed=median(values),
        )
    ]


def _layout(figures: Figures) -> Sequence[Disagreement]:
    table = next(one for one in figures.ratios if one.id == "layout")
    lowest = min(table.rows, key=lambda row: row.value)
    of = figures.cells[lowest.above].of
    return [
        Disagreement(
            source="rossumai",
            says="NCHW over NHWC is stated as +22 % to +73 %; its own table has "
            f"{100 * (lowest.value - 1):+.1f} % ({of.model}, {of.machine}).",
            printed="+22 %",
            computed=100 * (lowest.value - 1),
        )
    ]


def _best_server(figures: Figures) -> Sequence[Disagreement]:
    by_server = {
        (cell.of.ps_device or "").partition(":")[0]: cell.images_per_sec
        for cell in figures.cells
        if (cell.of.machine, cell.of.model, cell.of.framework)
        == ("7gforce", "inception3", "tf_cnn_benchmarks")
        and cell.of.n_gpus == 2
    }
    return [
        Disagreement(
            source="rossumai",
            says='"best results are with PS=CPU": on 2 GPUs of 7gforce PS=GPU is faster '
            f"({by_server['gpu']} against {by_server['cpu']} images/sec), as a later line has it.",
            printed="PS=CPU",
            computed=by_server["gpu"],
        )
    ]


def _perfect(figures: Figures) -> Sequence[Disagreement]:
    return [
        Disagreement(
            source="rossumai",
            says='3.510x on 6 GPUs (CIFAR-10, batch 128) is called "almost perfect scaling"; it is '
            f"{100 * 3.510 / 6:.1f} % efficiency.",
            printed="3.510",
            computed=100 * 3.510 / 6,
        )
    ]


def _clock_groups(figures: Figures) -> Sequence[Disagreement]:
    slow = {row.gpu: row for row in figures.clocks[0].rows if (row.clock_percent or 100) < 99}
    fast = max(slow.values(), key=lambda row: row.percent)
    worst = min(slow.values(), key=lambda row: row.percent)
    return [
        Disagreement(
            source="rossumai",
            says="the slow group of GPUs is stated as 85-98 %; GPU "
            f"{fast.gpu} of it is at {fast.percent:.2f} %.",
            printed="85-98 %",
            computed=fast.percent,
        ),
        Disagreement(
            source="rossumai",
            says="a clock of 95 % is named as the cause of the slow group; it explains 5 % at most, and GPU "
            f"{worst.gpu} is {worst.under_percent:.1f} % slower ({worst.unexplained_percent:.1f} % "
            "unexplained). What TensorFlow 1 prints as memoryClockRate is the core's boost clock.",
            printed="1.6830",
            computed=worst.unexplained_percent,
        ),
    ]


def _missing_as_zero(figures: Figures) -> Sequence[Disagreement]:
    missing = sum(1 for cell in figures.cells if cell.images_per_sec is None)
    return [
        Disagreement(
            source="lambda-2018",
            says=f"{missing} cells of the 1950X are printed as 0: there is no figure.",
            printed="0",
            computed=None,
        )
    ]


_SENTENCES: Mapping[str, Sequence[Callable[[Figures], Sequence[Disagreement]]]] = {
    "tensorflow.org": (_superlinear, _batch),
    "rossumai": (_layout, _best_server, _perfect, _clock_groups),
    "lambda-2018": (_missing_as_zero,),
}
