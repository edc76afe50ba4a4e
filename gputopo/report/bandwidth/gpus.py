"""Copies of each GPU: to it, from it and inside it, alone and all at once, by size."""

from collections.abc import Callable, Iterator, Sequence

from gputopo.report.bandwidth.numbers import Numbers, cell, has_any, number, share
from gputopo.report.bandwidth.part import Part
from gputopo.report.layout import NOT_ASKED, Column, plain
from gputopo.report.units import size
from gputopo.values.bandwidth import Conditions, Failure, Kind, Sample, gpu_of

_MIN_SIZES = 3  # fewer sizes are no sweep
_Cell = Callable[[int], str]


def gpu_parts(numbers: Numbers) -> list[Part]:
    """Return the table of the GPUs, and the one by NUMA node where that was measured."""
    head = Column("", tuple(f"GPU{gpu}" for gpu in numbers.gpus))
    groups = [_shown(group, numbers.gpus) for group in _groups(numbers)]
    notes = ("GB/s, pinned memory unless stated; both: the sum of the two directions.",)
    table = Part("GPUs and host", head=head, groups=tuple(filter(None, groups)), notes=notes)
    return [table, *_by_node(numbers)]


def _groups(numbers: Numbers) -> list[list[tuple[str, _Cell]]]:
    def alone(kind: Kind, *, pinned: bool = True) -> _Cell:
        return lambda gpu: cell(
            numbers.with_host(kind, gpu, pinned=pinned), _host_failure(numbers, kind, gpu, pinned=pinned)
        )

    def expected(kind: Kind) -> _Cell:
        return lambda gpu: share(numbers.with_host(kind, gpu))

    def together(kind: Kind) -> _Cell:
        return lambda gpu: cell(numbers.with_host(kind, gpu, together=True))

    local: _Cell = lambda gpu: cell(  # noqa: E731  beside the functions above
        numbers.between("d2d_local", gpu, gpu), numbers.failure("d2d_local", gpu, gpu)
    )
    return [
        [("to GPU", alone("h2d")), ("expected\n(share)", expected("h2d"))],
        [("from GPU", alone("d2h")), ("expected\n(share)", expected("d2h"))],
        [("both", alone("bidirectional"))],
        [(f"all at once\n{direction}", together(kind)) for direction, kind in _DIRECTIONS],
        [(f"pageable\n{direction}", alone(kind, pinned=False)) for direction, kind in _DIRECTIONS],
        [
            ("inside\nGPU", local),
            ("expected\n(share)", lambda gpu: share(numbers.between("d2d_local", gpu, gpu))),
        ],
        [("latency us\nto GPU", _latency(numbers, to_gpu=True)), ("from", _latency(numbers, to_gpu=False))],
        [("link\nseen", lambda gpu: _link(numbers, gpu)), ("P-state", lambda gpu: _pstate(numbers, gpu))],
    ]


_DIRECTIONS: tuple[tuple[str, Kind], ...] = (("to", "h2d"), ("from", "d2h"), ("both", "bidirectional"))


def _shown(group: Sequence[tuple[str, _Cell]], gpus: Sequence[int]) -> tuple[Column, ...]:
    """Return the columns of a group that have anything to show."""
    columns = (Column(head, tuple(map(of, gpus)), side="right") for head, of in group)
    return tuple(column for column in columns if has_any(column.cells))


def _host_failure(numbers: Numbers, kind: Kind, gpu: int, *, pinned: bool) -> Failure | None:
    ends: tuple[int | None, int | None] = (gpu, None) if kind == "d2h" else (None, gpu)
    found = numbers.failure(kind, *ends, pinned=pinned)
    return found or (numbers.failure(kind, *ends[::-1], pinned=pinned) if kind == "bidirectional" else None)


def _latency(numbers: Numbers, *, to_gpu: bool) -> _Cell:
    def shown(gpu: int) -> str:
        for one in numbers.bandwidth.samples:
            ends = (gpu_of(one.source), gpu_of(one.destination))
            if (
                one.kind == "latency"
                and one.group is None
                and ends == ((None, gpu) if to_gpu else (gpu, None))
            ):
                return number(one.median_us)
        return NOT_ASKED

    return shown


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


def _by_node(numbers: Numbers) -> list[Part]:
    """Return the table of GPU by NUMA node where copies of a GPU used more than one."""
    speeds: dict[tuple[int, Kind, int], Sample] = {}
    for one in numbers.bandwidth.samples:
        gpu = gpu_of(one.destination if one.kind == "h2d" else one.source)
        if one.kind in ("h2d", "d2h") and one.group is None and gpu is not None and one.numa_node is not None:
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
    return [Part("GPUs by NUMA node, GB/s", head=head, groups=tuple(groups))]


def sweep_parts(numbers: Numbers) -> list[Part]:
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


def _sweep(title: str, curves: Sequence[tuple[str, dict[int, str]]]) -> Part:
    sizes = sorted({step for _, cells in curves for step in cells})
    columns = tuple(
        Column(name, tuple(cells.get(step, NOT_ASKED) for step in sizes), side="right")
        for name, cells in curves
    )
    return Part(title, head=Column("", tuple(map(size, sizes)), side="right"), groups=(columns,))
