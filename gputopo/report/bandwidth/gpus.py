"""Copies of each GPU: to it, from it and inside it, one at a time and all at once, by size."""

from collections.abc import Callable, Iterator, Sequence

from gputopo.report.bandwidth.numbers import ENGINE, Beside, Numbers, cell, grid, how
from gputopo.report.document import Section, Table
from gputopo.report.layout import NOT_ASKED, plain
from gputopo.report.units import size
from gputopo.values.bandwidth import KERNELS, Conditions, CopyRate, Kind, Method
from gputopo.values.grouping import best

_MIN_SIZES = 3  # fewer sizes are no sweep
Methods = Sequence[Method | None]
_Cell = Callable[[int], str]
_INSIDE = "inside GPU\nread+write"
_DIRECTIONS: tuple[tuple[str, Kind], ...] = (("to", "h2d"), ("from", "d2h"), ("both", "bidirectional"))


def gpu_part(numbers: Numbers, *, whole: bool) -> Section | None:
    """Return the table of the GPUs. `whole`: with a column for each kind of copy, else for the main kinds."""
    groups = _groups(numbers) if whole else [_main(numbers)]
    copies = [numbers.with_host(kind, gpu) for gpu in numbers.gpus for kind in ("h2d", "d2h")]
    cells = [[(head, list(map(words, numbers.gpus))) for head, words in group] for group in groups]
    title = f"GPUs, GB/s{how([*copies, *map(numbers.inside, numbers.gpus)])}"
    return grid(title, "", numbers.names, cells)


def is_inside_alone(part: Section) -> bool:
    """Return whether the table of the GPUs has only copies inside a GPU."""
    heads = [column.head for table in part.blocks if isinstance(table, Table) for column in table.columns[1:]]
    return heads == [_INSIDE]


def _host(
    numbers: Numbers,
    kind: Kind,
    *,
    pinned: bool = True,
    beside: Beside = "nothing",
    methods: Methods = ENGINE,
) -> _Cell:
    alone = beside == "nothing" and methods == ENGINE

    def shown(gpu: int) -> str:
        sample = numbers.with_host(kind, gpu, pinned=pinned, beside=beside, methods=methods)
        to_gpu = None if kind == "d2h" else numbers.failure(kind, None, gpu, pinned=pinned)
        failure = to_gpu or (None if kind == "h2d" else numbers.failure(kind, gpu, None, pinned=pinned))
        return cell(sample, failure if alone else None, limit=alone and pinned and kind != "bidirectional")

    return shown


def _main(numbers: Numbers) -> list[tuple[str, _Cell]]:
    """Return the columns of the short table.

    For latencies, only the best method that was used has columns.
    """

    def latency(methods: Methods) -> _Cell:
        return lambda gpu: cell(numbers.lowest_latency((None, gpu), methods))

    latencies = [("latency us\n(load)", latency(KERNELS)), ("latency us\n(16 B copy)", latency(ENGINE))]
    used = [
        (head, column) for head, column in latencies if any(column(gpu) != NOT_ASKED for gpu in numbers.gpus)
    ]
    return [
        ("to GPU", _host(numbers, "h2d")),
        ("from GPU", _host(numbers, "d2h")),
        ("both\nat once", _host(numbers, "bidirectional")),
        ("both at once\nto/from", lambda gpu: _to_and_from(numbers, gpu, "reverse")),
        ("all at once\nto/from", lambda gpu: _to_and_from(numbers, gpu, "all")),
        (_INSIDE, lambda gpu: _inside(numbers, gpu)),
        *used[:1],
    ]


def _to_and_from(numbers: Numbers, gpu: int, beside: Beside) -> str:
    rates = [_host(numbers, kind, beside=beside)(gpu) for _, kind in _DIRECTIONS[:2]]
    return NOT_ASKED if rates == [NOT_ASKED] * 2 else "/".join(rates)


def _inside(numbers: Numbers, gpu: int) -> str:
    return cell(numbers.inside(gpu), numbers.failure("d2d_local", gpu, gpu), limit=True)


def _groups(numbers: Numbers) -> list[list[tuple[str, _Cell]]]:
    def at_once(words: str, beside: Beside, methods: Methods = ENGINE) -> list[tuple[str, _Cell]]:
        return [
            (f"{words}\n{direction}", _host(numbers, kind, beside=beside, methods=methods))
            for direction, kind in _DIRECTIONS
        ]

    def latency(methods: Methods, *, to_gpu: bool) -> _Cell:
        return lambda gpu: cell(numbers.lowest_latency((None, gpu) if to_gpu else (gpu, None), methods))

    return [
        [("to GPU", _host(numbers, "h2d")), ("from GPU", _host(numbers, "d2h"))],
        [("both", _host(numbers, "bidirectional"))],
        at_once("both:", "reverse"),
        at_once("all at once", "all"),
        at_once("all, both:", "all both"),
        at_once("kernel", "nothing", KERNELS),
        at_once("kernel both:", "reverse", KERNELS),
        at_once("kernel, all", "all", KERNELS),
        at_once("kernel, all both:", "all both", KERNELS),
        [(f"pageable\n{direction}", _host(numbers, kind, pinned=False)) for direction, kind in _DIRECTIONS],
        [(_INSIDE, lambda gpu: _inside(numbers, gpu))],
        [
            (f"latency us\n({name}) {direction}", latency(methods, to_gpu=direction == "to"))
            for name, methods in (("load", KERNELS), ("16 B copy", ENGINE))
            for direction in ("to", "from")
        ],
        [("link\nseen", lambda gpu: _link(numbers, gpu)), ("P-state", lambda gpu: _pstate(numbers, gpu))],
    ]


def _conditions(numbers: Numbers, gpu: int) -> Iterator[Conditions]:
    for kind in ("h2d", "d2h"):
        sample = numbers.with_host(kind, gpu, pinned=None)
        yield from (
            conditions for conditions in (sample.conditions if sample else ()) if conditions.gpu == gpu
        )


def _link(numbers: Numbers, gpu: int) -> str:
    seen = next(
        (
            conditions
            for conditions in _conditions(numbers, gpu)
            if conditions.pcie_gen or conditions.pcie_width
        ),
        None,
    )
    return NOT_ASKED if seen is None else f"gen{seen.pcie_gen or '?'} x{seen.pcie_width or '?'}"


def _pstate(numbers: Numbers, gpu: int) -> str:
    return plain(
        next((conditions.pstate for conditions in _conditions(numbers, gpu) if conditions.pstate), NOT_ASKED)
    )


def node_part(numbers: Numbers) -> Section | None:
    """Return the table of GPU by NUMA node, if the copies of a GPU used more than one node."""
    speeds: dict[tuple[int, Kind, int], CopyRate] = best(
        (
            ((gpu, sample.kind, node), sample)
            for sample in numbers.copies
            if sample.kind in ("h2d", "d2h") and sample.group is None and sample.method in ENGINE
            if (gpu := sample.host_gpu) is not None
            if (node := sample.numa_node) is not None and sample.pinned is not False
        ),
        lambda sample: sample.bytes or 0,
    )
    nodes = sorted({node for _, _, node in speeds})
    if not any(len({node for g, _, node in speeds if g == gpu}) > 1 for gpu in numbers.gpus):
        return None
    groups = [
        [
            (f"node {node}\n{direction}", [cell(speeds.get((gpu, kind, node))) for gpu in numbers.gpus])
            for direction, kind in _DIRECTIONS[:2]
        ]
        for node in nodes
    ]
    return grid("GPUs by NUMA node, GB/s", "", numbers.names, groups)


_SWEPT: dict[Kind, str] = {
    "h2d": "host to GPU",
    "d2h": "GPU to host",
    "p2p_direct": "GPU to GPU, direct",
    "p2p_staged": "GPU to GPU, staged",
}


def sweep_parts(numbers: Numbers) -> Iterator[Section | None]:
    """Yield GB/s by message size for each pair of ends that was copied in several sizes."""
    by_title: dict[str, dict[str, dict[int, str]]] = {}
    for sweep in numbers.sweeps():
        cells = {sample.bytes or 0: cell(sample) for sample in sweep}
        sample = sweep[0]
        if sample.kind in _SWEPT and sample.group is None and len(cells) >= _MIN_SIZES:
            title = f"By size, GB/s: {_SWEPT[sample.kind]}"
            title += ", pageable" if sample.pinned is False else ""
            if sample.kind in ("h2d", "d2h") and sample.numa_node is not None:
                title += f", node {sample.numa_node}"
            if sample.method in KERNELS:
                title += f", {str(sample.method).replace('_', ' ')}"
            ends = f"GPU{sample.host_gpu}" if sample.pair is None else "{}->{}".format(*sample.pair)
            by_title.setdefault(title, {})[ends] = cells
    for title, curves in by_title.items():
        sizes = sorted({bytes for cells in curves.values() for bytes in cells})
        columns = [(name, [cells.get(bytes, NOT_ASKED) for bytes in sizes]) for name, cells in curves.items()]
        yield grid(title, "size", [f"{size(bytes):>10}" for bytes in sizes], [columns])
