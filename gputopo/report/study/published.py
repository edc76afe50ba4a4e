"""The tables of the published documents, made anew from their raw figures, then all that a study shows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from gputopo.measurements.cells import Cell
from gputopo.measurements.documents.claims import Recomputed, recomputed
from gputopo.measurements.scaling import ScalingRow
from gputopo.measurements.study import Study
from gputopo.reference.published import Derived, published_derived
from gputopo.report.document import Block, Bullets, Document, Section
from gputopo.report.study.document import clock_blocks, pair_blocks, study_document
from gputopo.report.study.models import model_table
from gputopo.report.study.tables import cell_words, table
from gputopo.workload.workloads import names, require

_ERROR = "document.error"


def published_document(name: str, study: Study) -> Document:
    """Return the document of this name: its errors, its own tables, then our observations."""
    errors = [one.says for one in study.observations if one.id == _ERROR]
    of_us = study_document(_without_errors(study))
    parts = [Section(title, tuple(blocks)) for title, blocks in _TABLES[name](study)]
    found = [Section("Errors of the document", (Bullets(tuple(errors)),))] if errors else []
    rest = [one for one in of_us.sections if one.title in ("Observations", "Sources")]
    return Document(of_us.title, of_us.summary, (*found, *parts, *rest), of_us.pages)


def _without_errors(study: Study) -> Study:
    import msgspec

    kept = tuple(one for one in study.observations if one.id != _ERROR)
    return msgspec.structs.replace(study, observations=kept)


_Sections = Iterable[tuple[str, Sequence[Block]]]


def _tensorpack(study: Study) -> _Sections:
    cells = study.figures.cells
    made = (("tensorpack", "synthetic"), ("tensorpack", "synthetic-cpu"), ("tensorpack", "synthetic-python"))
    columns = (*made, ("tf_cnn_benchmarks", "synthetic"))
    heads = ["GPUs", "tensorpack, GPU", "CPU", "Python", "tf_cnn_benchmarks"]
    for update in ("replicated", "parameter_server"):
        known = {
            (cell.of.n_gpus, cell.of.framework, cell.of.data): cell
            for cell in cells
            if cell.of.variable_update == update
        }
        rows = [
            [str(number), *(_figure(known[number, *column]) for column in columns)] for number in (1, 2, 4, 8)
        ]
        yield f"images/sec, {update}", [table(heads, rows)]


def _figure(cell: Cell | None) -> str:
    """Return a figure as its document prints it, with all its digits."""
    if cell is None:
        return ""
    return cell_words(cell) if cell.images_per_sec is None else _all_digits(cell.images_per_sec)


def _all_digits(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def _official(study: Study) -> _Sections:
    """The spreadsheet: 16 columns, each a batch, a data source, a model and a machine; medians at the end."""
    figures = study.figures
    columns = [
        (batch, data, model, machine)
        for batch in (64, 32)
        for data in ("synthetic", "real")
        for model in ("inception3", "resnet50")
        for machine in ("dgx1-p100", "gce-8x-k80")
    ]
    known: dict[tuple[object, ...], ScalingRow] = {}
    for scaling in figures.scalings:
        for row in scaling.rows:
            of = figures.cells[row.cell].of
            known[of.batch_per_gpu, of.data, of.model, of.machine, row.n_gpus] = row
    by_cell = {row.cell: column for column, row in known.items()}
    short = {"synthetic": "synth", "dgx1-p100": "P100", "gce-8x-k80": "K80"}
    heads = ["GPUs", *(f"{b} {short.get(d, d)} {m} {short[box]}" for b, d, m, box in columns)]

    def block(value: Callable[[ScalingRow], str], total: Callable[[list[ScalingRow]], str] | None) -> Block:
        rows = []
        for number in (1, 2, 4, 8):
            some = [known[*column, number] for column in columns]
            rows.append([str(number), *map(value, some), *([total(some)] if total else [])])
        return table([*heads, *(["median"] if total else [])], rows)

    yield "images/sec", [block(lambda row: f"{row.images_per_sec:g}", None)]
    yield (
        "Speedup",
        [
            block(
                lambda row: f"{row.speedup:.2f}x", lambda some: f"{median(row.speedup for row in some):.2f}x"
            )
        ],
    )
    yield (
        "Efficiency",
        [
            block(
                lambda row: f"{row.efficiency_percent:.2f}%",
                lambda some: f"{median(row.efficiency_percent for row in some):.2f}%",
            )
        ],
    )
    titles = {
        "data": "Synthetic over real data",
        "batch-scaling": "Speedup with batch 64 over that with 32",
        "batch": "images/sec with batch 64 over 32",
        "gpu": "P100 over K80",
        "model": "resnet50 over inception3",
    }
    for id, title in titles.items():
        found = next(one for one in figures.ratios if one.id == id)
        names = list(dict.fromkeys(by_cell[row.above][:4] for row in found.rows))
        ordered = [column for column in columns if column in names]
        values = {by_cell[row.above]: row.value for row in found.rows}
        totals = {one.n_gpus: one.value for one in found.medians}
        rows = [
            [
                str(number),
                *(f"{values[*column, number]:.2f}x" for column in ordered),
                f"{totals[number]:.2f}x",
            ]
            for number in (1, 2, 4, 8)
        ]
        heads_of = ["GPUs", *(heads[columns.index(column) + 1] for column in ordered), "median"]
        yield title, [table(heads_of, rows, notes=(f"Median of all: {totals[None]:.2f}x.",))]


_OF_ELSEWHERE = (
    "The document has these columns from elsewhere, not of the models that it ran: its alexnet has 233 MB, "
    "3 MB and 1.5 BFLOPs, its inception-v3 89 MB of features. Its MB are MiB, its FLOPs "
    "multiply-accumulates. vgg19 was not run; vgg16 and inception4 were, and have no row."
)


def _lambda(study: Study) -> _Sections:
    cpus = ("i7-7820X", "W-2133", "E5-1650", "1950X", "i9-7900X")
    models = ("resnet50", "resnet101", "resnet152", "inception3", "vgg19", "alexnet")
    yield "Models", [*model_table(models), _OF_ELSEWHERE]
    for one in study.figures.cpus:
        rows = []
        for model, numbers in zip(one.models, one.cells, strict=True):
            by_cpu = dict(zip(one.cpus, numbers, strict=True))
            known = [None if (n := by_cpu.get(cpu)) is None else study.figures.cells[n] for cpu in cpus]
            rows.append([model, *("" if cell is None else cell_words(cell, 2) for cell in known)])
        yield one.name, [table(["CPU", *cpus], rows)]


def _keras(study: Study) -> _Sections:
    yield "Each GPU and its clock", clock_blocks(study, _all_digits)
    yield "Pairs of GPUs", pair_blocks(study, _all_digits)
    for model, programs in (
        ("inception3", ("keras kuza55", "keras avolkov1", "tf_cnn_benchmarks")),
        ("resnet50", ("keras kuza55", "keras avolkov1")),
    ):
        yield f"Keras methods, {model}", [_methods(study, model, programs)]
    yield "kuza55 on a multilayer perceptron, 2 GPUs", [_perceptron()]
    yield from _cifar(study)
    yield "One GPU, percent of tf_cnn_benchmarks", [_one_gpu(study)]
    yield "GeForce GTX 1070 over Tesla M60, one GPU", [_cards(study)]


def _perceptron() -> Block:
    rows = [
        [one.machine or "", (one.ps_device or "").upper(), f"{one.printed}x"]
        for one in published_derived()
        if one.model == "mlp_kuza55"
    ]
    note = "Speedups as printed, of the times of an epoch, which the document does not have."
    return table(["machine", "PS", "speedup"], rows, left=2, notes=(note,))


_SPEEDUPS_ALONE = (
    "The document has no images/sec of these: speedups as printed, efficiencies as printed where the rounded "
    "speedup allows them, else made from it."
)
_COUNTED = "Parameters with the moving statistics of norms and the step counter, as the document counts them."


def _cifar(study: Study) -> _Sections:
    """The tables of CIFAR-10, of which the document has speedups alone."""
    found = recomputed("rossumai", study.figures)
    rows = [one for one in found if one.row.dataset == "cifar10"]
    speedups = {_job(one.row): one.row.printed for one in rows if one.row.metric == "speedup"}
    efficiencies = {_job(one.row): _efficiency(one) for one in rows if one.row.metric != "speedup"}
    tf = [
        [of.model or "", _parameters(of.model or ""), of.mode, f"{printed}x", efficiencies.get(of, "")]
        for of, printed in speedups.items()
        if of.framework == "tf_cnn_benchmarks" and of.machine == "az-2x-m60" and of.n_gpus == 2
    ]
    heads = ["model", "parameters", "mode", "speedup", "efficiency"]
    yield "CIFAR-10 on 2 Tesla M60", [table(heads, tf, notes=(_SPEEDUPS_ALONE, _COUNTED))]
    keras = {(of.n_gpus, of.batch_per_gpu): of for of in speedups if of.framework == "keras"}
    batches, numbers = (4096, 512, 32), range(1, 7)
    cells = [
        [str(number), *(f"{speedups[keras[number, batch]]}x" for batch in batches),
         *(efficiencies[keras[number, batch]] for batch in batches)]
        for number in numbers
    ]  # fmt: skip
    heads = ["GPUs", *(f"speedup, {one}" for one in batches), *(f"efficiency, {one}" for one in batches)]
    yield "avolkov1 on CIFAR-10, by batch", [table(heads, cells, notes=(_SPEEDUPS_ALONE,))]


class _Job(NamedTuple):
    """The conditions of a speedup that has no images/sec."""

    machine: str | None
    framework: str | None
    model: str | None
    mode: str
    n_gpus: int | None
    batch_per_gpu: int | None


def _job(row: Derived) -> _Job:
    mode = " ".join(filter(None, (row.variable_update, row.ps_device, "nccl" if row.nccl else None)))
    return _Job(row.machine, row.framework, row.model, mode, row.n_gpus, row.batch_per_gpu)


def _efficiency(one: Recomputed) -> str:
    own = one.row.printed if one.agrees or one.computed is None else f"{one.computed:.2f}"
    return f"{own}%"


def _parameters(model: str) -> str:
    name = f"{model}-cifar10" if f"{model}-cifar10" in names() else model
    if name not in names():
        return ""
    one = require(name)
    return f"{one.parameters + one.state + 1:,}"


_JOBS = (
    ("az-2x-m60", 1, "GPU"), ("az-2x-m60", 2, "CPU"), ("az-2x-m60", 2, "GPU"), ("7gforce", 1, "GPU"),
    ("7gforce", 2, "CPU"), ("7gforce", 4, "CPU"), ("7gforce", 6, "CPU"), ("7gforce", 2, "GPU"),
    ("7gforce", 4, "GPU"), ("7gforce", 6, "GPU"),
)  # fmt: skip


def _methods(study: Study, model: str, programs: Sequence[str]) -> Block:
    figures = study.figures
    speedups = {row.cell: row for scaling in figures.scalings for row in scaling.rows}
    rows = []
    for machine, number, server in _JOBS:
        row = [machine, str(number), server]
        for program in programs:
            cell = _one(
                cell
                for cell in figures.cells
                if (cell.of.machine, cell.of.n_gpus, cell.of.model, cell.of.program)
                == (machine, number, model, program)
                and (number == 1 or (cell.of.ps_device or "").upper().startswith(server))
                and not (program == "tf_cnn_benchmarks" and cell.of.data_format == "NHWC")
            )
            if cell is None or (scaled := speedups.get(cell.number)) is None:
                row += [_figure(cell) or "missing", "", ""]
            else:
                row += [_figure(cell), f"{scaled.speedup:.2f}x", f"{scaled.efficiency_percent:.2f}%"]
        rows.append(row)
    each = [f"{program} {what}" for program in programs for what in ("images/sec", "speedup", "efficiency")]
    return table(["machine", "GPUs", "PS", *each], rows, left=3)


def _one(cells: Iterable[Cell]) -> Cell | None:
    return next(iter(cells), None)


_ALONE = (("inception3", "az-2x-m60"), ("inception3", "7gforce"), ("resnet50", "az-2x-m60"))


def _alone(study: Study, model: str, machine: str, program: str, layout: str) -> float | None:
    found = _one(
        cell
        for cell in study.figures.cells
        if (cell.of.model, cell.of.machine, cell.of.program, cell.of.data_format, cell.of.n_gpus)
        == (model, machine, program, layout, 1)
    )
    return found.images_per_sec if found else None


def _one_gpu(study: Study) -> Block:
    rows = []
    for model, machine in _ALONE:
        nchw, nhwc = (
            _alone(study, model, machine, "tf_cnn_benchmarks", layout) for layout in ("NCHW", "NHWC")
        )
        row = [model, machine, f"{nchw:g}", f"{nhwc:g}", _share(nhwc, nchw)]
        for program in ("keras kuza55", "keras avolkov1"):
            own = _alone(study, model, machine, program, "NHWC")
            row += [f"{own:g}", _share(own, nchw), _share(own, nhwc)]
        rows.append(row)
    keras = [
        f"{name} {what}" for name in ("kuza55", "avolkov1") for what in ("NHWC", "% of NCHW", "% of NHWC")
    ]
    return table(["model", "machine", "tf NCHW", "tf NHWC", "% of NCHW", *keras], rows, left=2)


def _share(one: float | None, other: float | None) -> str:
    return "" if not one or not other else f"{100 * one / other:.2f}%"


def _cards(study: Study) -> Block:
    jobs = (
        ("inception3", "tf_cnn_benchmarks", "NCHW"), ("inception3", "keras kuza55", "NHWC"),
        ("inception3", "keras avolkov1", "NHWC"), ("resnet50", "keras kuza55", "NHWC"),
        ("resnet50", "keras avolkov1", "NHWC"),
    )  # fmt: skip
    rows = []
    for model, program, layout in jobs:
        new, old = (_alone(study, model, machine, program, layout) for machine in ("7gforce", "az-2x-m60"))
        rows.append([model, program, layout, f"{new / old:.2f}x" if new and old else ""])
    return table(["model", "program", "layout", "speedup"], rows, left=3)


_TABLES: Mapping[str, Callable[[Study], _Sections]] = {
    "tensorpack": _tensorpack,
    "tf-official": _official,
    "lambda-cpu": _lambda,
    "keras-multi-gpu": _keras,
}
