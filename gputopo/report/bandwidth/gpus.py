"""Copies of each GPU: to it, from it and inside it, alone and all at once, by size."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gputopo.report.bandwidth.numbers import ENGINE, KERNELS, Beside, Numbers, cell, has_any, part, share
from gputopo.report.document import Section
from gputopo.report.layout import NOT_ASKED, Column, plain
from gputopo.report.units import size
from gputopo.values.bandwidth import Conditions, Failure, Kind, Method, Sample, gpu_of

_MIN_SIZES = 3  # fewer sizes are no sweep
NO_REFERENCE = "none"  # in a column of what is expected
Methods = Sequence[Method | None]
_Cell = Callable[[int], str]


def gpu_parts(numbers: Numbers) -> list[Section]:
    """Return the table of the GPUs, and the one by NUMA node where that was measured."""
    head = Column("", tuple(f"GPU{gpu}" for gpu in numbers.gpus))
    groups = [_shown(group, numbers.gpus) for group in _groups(numbers)]
    table = part("GPUs and host", head=head, groups=tuple(filter(None, groups)), notes=tuple(_notes(numbers)))
    return [table, *_by_node(numbers)]


def _notes(numbers: Numbers) -> Iterator[str]:
    yield "GB/s, pinned memory unless stated; both: the sum of the two directions."
    compared = [_compared(numbers, name) for name in _COMPARED]
    if any(one.some and one.without for one in compared):
        yield f"{NO_REFERENCE}: no reference data for this model or link."
    if unknown := [
        name for name, one in zip(_COMPARED, compared, strict=True) if one.without and not one.some
    ]:
        yield f"No reference data: {', '.join(unknown)}."


class _Compared(NamedTuple):
    """The samples that have a column of what is expected: whether some have that, and the GPUs without."""

    samples: dict[int, Sample]
    some: bool
    without: frozenset[int]


def _compared(numbers: Numbers, name: str) -> _Compared:
    found = {gpu: one for gpu in numbers.gpus if (one := _COMPARED[name](numbers, gpu)) is not None}
    return _Compared(
        found,
        any(one.expected_gb_per_s for one in found.values()),
        frozenset(
            gpu
            for gpu, one in found.items()
            if one.expected_gb_per_s is None
            and one.median_gb_per_s
            and one.invalid is None
            and one.group is None  # only a copy that ran alone is judged
        ),
    )


_COMPARED: dict[str, Callable[[Numbers, int], Sample | None]] = {
    "to GPU": lambda numbers, gpu: numbers.with_host("h2d", gpu),
    "from GPU": lambda numbers, gpu: numbers.with_host("d2h", gpu),
    "inside GPU": lambda numbers, gpu: numbers.inside(gpu),
}


def _groups(numbers: Numbers) -> list[list[tuple[str, _Cell]]]:
    def host(
        kind: Kind, *, pinned: bool = True, beside: Beside = "nothing", methods: Methods = ENGINE
    ) -> _Cell:
        def shown(gpu: int) -> str:
            found = numbers.with_host(kind, gpu, pinned=pinned, beside=beside, methods=methods)
            alone = beside == "nothing" and methods == ENGINE
            return cell(found, _host_failure(numbers, kind, gpu, pinned=pinned) if alone else None)

        return shown

    def expected(name: str) -> _Cell:
        found = _compared(numbers, name)
        return lambda gpu: (
            NO_REFERENCE if found.some and gpu in found.without else share(found.samples.get(gpu))
        )

    def inside(gpu: int) -> str:
        return cell(numbers.inside(gpu), numbers.failure("d2d_local", gpu, gpu))

    def latency(methods: Methods, *, to_gpu: bool) -> _Cell:
        return lambda gpu: cell(numbers.latency(gpu, methods, to_gpu=to_gpu))

    def at_once(words: str, beside: Beside, methods: Methods = ENGINE) -> list[tuple[str, _Cell]]:
        return [
            (f"{words}\n{direction}", host(kind, beside=beside, methods=methods))
            for direction, kind in _DIRECTIONS
        ]

    return [
        [("to GPU", host("h2d")), ("expected\n(share)", expected("to GPU"))],
        [("from GPU", host("d2h")), ("expected\n(share)", expected("from GPU"))],
        [("both", host("bidirectional"))],
        at_once("both:", "reverse"),
        at_once("all at once", "all"),
        at_once("all, both:", "all both"),
        at_once("kernel", "nothing", KERNELS),
        at_once("kernel both:", "reverse", KERNELS),
        at_once("kernel, all", "all", KERNELS),
        at_once("kernel, all both:", "all both", KERNELS),
        [(f"pageable\n{direction}", host(kind, pinned=False)) for direction, kind in _DIRECTIONS],
        [("inside\nGPU", inside), ("expected\n(share)", expected("inside GPU"))],
        [
            ("latency us\n(pointer chase)", latency(KERNELS, to_gpu=True)),
            ("latency us\n(chase) from", latency(KERNELS, to_gpu=False)),
        ],
        [
            ("engine latency\n(16 B) us", latency(ENGINE, to_gpu=True)),
            ("engine latency\n(16 B) us from", latency(ENGINE, to_gpu=False)),
        ],
        [("link\nseen", lambda gpu: _link(numbers, gpu)), ("P-state", lambda gpu: _pstate(numbers, gpu))],
    ]


_DIRECTIONS: tuple[tuple[str, Kind], ...] = (("to", "h2d"), ("from", "d2h"), ("both", "bidirectional"))


def _shown(group: Sequence[tuple[str, _Cell]], gpus: Sequence[int]) -> tuple[Column, ...]:
    """Return the columns of a group that have anything to show."""
    columns = [Column(head, tuple(map(of, gpus)), side="right") for head, of in group]
    return tuple(column for column in columns if has_any(column.cells))


def _host_failure(numbers: Numbers, kind: Kind, gpu: int, *, pinned: bool) -> Failure | None:
    ends: tuple[int | None, int | None] = (gpu, None) if kind == "d2h" else (None, gpu)
    found = numbers.failure(kind, *ends, pinned=pinned)
    return found or (numbers.failure(kind, *ends[::-1], pinned=pinned) if kind == "bidirectional" else None)


def _conditions(numbers: Numbers, gpu: int) -> Iterator[Conditions]:
    """Return what was read of a GPU while it alone copied to or from the host."""
    for kind in ("h2d", "d2h"):
        sample = numbers.with_host(kind, gpu, pinned=None)
        yield from (one for one in (sample.conditions if sample else ()) if one.gpu == gpu)


def _link(numbers: Numbers, gpu: int) -> str:
    seen = next((one for one in _conditions(numbers, gpu) if one.pcie_gen or one.pcie_width), None)
    return NOT_ASKED if seen is None else f"gen{seen.pcie_gen or '?'} x{seen.pcie_width or '?'}"


def _pstate(numbers: Numbers, gpu: int) -> str:
    return plain(next((one.pstate for one in _conditions(numbers, gpu) if one.pstate), NOT_ASKED))


def _by_node(numbers: Numbers) -> list[Section]:
    """Return the table of GPU by NUMA node where copies of a GPU used more than one."""
    speeds: dict[tuple[int, Kind, int], Sample] = {}
    for one in numbers.bandwidth.samples:
        gpu = gpu_of(one.destination if one.kind == "h2d" else one.source)
        if (
            one.kind in ("h2d", "d2h")
            and one.group is None
            and one.method in ENGINE
            and gpu is not None
            and one.numa_node is not None
        ):
            key = (gpu, one.kind, one.numa_node)
            if one.pinned is not False and (one.bytes or 0) >= (
                speeds[key].bytes or 0 if key in speeds else 0
            ):
                speeds[key] = one
    nodes = sorted({node for _, _, node in speeds})
    if not any(len({node for g, _, node in speeds if g == gpu}) > 1 for gpu in numbers.gpus):
        return []

    def speed(kind: Kind, node: int) -> _Cell:
        return lambda gpu: cell(speeds.get((gpu, kind, node)))

    groups = [
        _shown(
            [(f"node {node}\n{direction}", speed(kind, node)) for direction, kind in _DIRECTIONS[:2]],
            numbers.gpus,
        )
        for node in nodes
    ]
    head = Column("", tuple(f"GPU{gpu}" for gpu in numbers.gpus))
    return [part("GPUs by NUMA node, GB/s", head=head, groups=tuple(groups))]


def sweep_parts(numbers: Numbers) -> list[Section]:
    """Return GB/s by message size for each pair of ends that was copied in several sizes."""
    seen: set[tuple[object, ...]] = set()
    by_kind: dict[str, list[tuple[str, dict[int, str]]]] = {}
    for one in numbers.bandwidth.samples:
        sweep = numbers.sizes(one) if one.kind in _SWEPT and one.group is None else ()
        key = (one.kind, one.source, one.destination, one.pinned, one.method, one.path, one.numa_node)
        if len({step.bytes for step in sweep}) < _MIN_SIZES or key in seen:
            continue
        seen.add(key)
        cells = {step.bytes: cell(step) for step in sweep if step.bytes is not None}
        by_kind.setdefault(_sweep_title(one), []).append((_ends(one), cells))
    return [_sweep(title, curves) for title, curves in by_kind.items()]


_SWEPT: dict[Kind, str] = {
    "h2d": "host to GPU",
    "d2h": "GPU to host",
    "p2p_direct": "GPU to GPU, direct",
    "p2p_staged": "GPU to GPU, staged",
}


def _sweep_title(sample: Sample) -> str:
    extra = [] if sample.pinned is not False else ["pageable"]
    extra += (
        [f"node {sample.numa_node}"] if sample.kind in ("h2d", "d2h") and sample.numa_node is not None else []
    )
    extra += [sample.method.replace("_", " ")] if sample.method in ("kernel_read", "kernel_write") else []
    return ", ".join((f"By size, GB/s: {_SWEPT[sample.kind]}", *extra))


def _ends(sample: Sample) -> str:
    source, destination = gpu_of(sample.source), gpu_of(sample.destination)
    if source is None or destination is None:
        return f"GPU{destination if source is None else source}"
    return f"{source}->{destination}"


def _sweep(title: str, curves: Sequence[tuple[str, dict[int, str]]]) -> Section:
    sizes = sorted({step for _, cells in curves for step in cells})
    columns = tuple(
        Column(name, tuple(cells.get(step, NOT_ASKED) for step in sizes), side="right")
        for name, cells in curves
    )
    return part(title, head=Column("", tuple(map(size, sizes)), side="right"), groups=(columns,))
