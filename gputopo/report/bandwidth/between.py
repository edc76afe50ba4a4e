"""Tables of the transfers between hosts, collective operations, reductions, host memory and a soak."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from gputopo.report.bandwidth.numbers import Cells, grid, number
from gputopo.report.document import Section
from gputopo.report.layout import NOT_ASKED, Column, plain
from gputopo.report.units import counted, size
from gputopo.values.bandwidth import (
    COLLECTIVE_NAMES,
    NETWORK,
    Bandwidth,
    CollectiveSeries,
    Kind,
    Sample,
    Soak,
    series_of,
)
from gputopo.values.ends import HOSTS, End
from gputopo.values.index_ranges import index_ranges, natural
from gputopo.values.machine import Machine

_MAX_ROWS = 24  # a sweep of perftest over all sizes (-a) has 23
_MAX_MATRIX = 32  # hosts; with more, only the table of hosts is shown
_ARROWS = {"network_bidirectional": "<->"}


def network_parts(bandwidth: Bandwidth) -> Iterator[Section | None]:
    """Yield the transfers between hosts: by host and pair if all were measured, else one by one."""
    found = [one for one in bandwidth.samples if one.kind in NETWORK]
    if bandwidth.source != "live":
        yield _transfers(found)
        return
    hosts = list(dict.fromkeys(name for one in found for name in one.names))
    hosts.sort(key=natural)
    yield _by_host(found, hosts)
    if len(hosts) <= _MAX_MATRIX:
        yield _matrix(found, hosts)


def _by_host(found: Sequence[Sample], hosts: Sequence[str]) -> Section | None:
    pairs = [one for one in found if one.kind == "network" and one.group is None]
    at_once = [one for one in found if one.group is not None]
    expected = [[one.expected_gb_per_s for one in pairs if host == one.source.name] for host in hosts]
    columns = [
        _column("sends\nGB/s", [_rates(pairs, sends=host) for host in hosts]),
        _column("receives\nGB/s", [_rates(pairs, receives=host) for host in hosts]),
        _column("all at once:\nsends GB/s", [_rates(at_once, sends=host) for host in hosts]),
        _column("expected\nGB/s", expected),
    ]
    note = "Medians over all other hosts, one pair at a time for each host."
    title = f"Between hosts{_both_ways(pairs)}{_by(found)}"
    return grid(title, "Host", list(map(plain, hosts)), [columns], [note])


def _matrix(found: Sequence[Sample], hosts: Sequence[str]) -> Section | None:
    pairs = [one for one in found if one.kind == "network" and one.group is None]
    rates = {one.names: one.median_gb_per_s for one in pairs}
    columns = [(plain(to), [_number(rates.get((host, to))) for host in hosts]) for to in hosts]
    title = f"From host (row) to host (column){_both_ways(pairs)}, GB/s{_by(found)}"
    return grid(title, "", list(map(plain, hosts)), [[column] for column in columns])


def _both_ways(pairs: Sequence[Sample]) -> str:
    return " while both send" if pairs and pairs[0].with_reverse else ""


def _rates(
    samples: Iterable[Sample], *, sends: str | None = None, receives: str | None = None
) -> list[float | None]:
    return [
        one.median_gb_per_s
        for one in samples
        if sends in (None, one.source.name) and receives in (None, one.destination.name)
    ]


def _column(head: str, values: Sequence[Sequence[float | None]]) -> Cells:
    known = [[value for value in own if value is not None] for own in values]
    return head, [_number(median(own) if own else None) for own in known]


def _transfers(found: Sequence[Sample]) -> Section | None:
    ordered = sorted(found, key=lambda one: -(one.bytes or 0))
    shown = ordered[:_MAX_ROWS]
    columns: list[Cells] = [
        Column("run", tuple(NOT_ASKED if one.run is None else plain(one.run) for one in shown)),
        Column("size", tuple(map(_size, shown))),
        Column("streams", tuple(str(one.streams or NOT_ASKED) for one in shown)),
        ("GB/s", [_number(one.median_gb_per_s) for one in shown]),
        ("us", [number(one.median_us) for one in shown]),
    ]
    kinds = {one.kind for one in found}
    notes = []
    if "network_bidirectional" in kinds:
        notes.append("<-> is the sum of both directions.")
    if "network_latency" in kinds:
        notes.append("us: half of a round trip; a full round trip for RDMA read and atomic.")
    if len(ordered) > len(shown):
        notes.append(f"{len(ordered) - len(shown)} more: see --json.")
    return grid("Between hosts", "Transfer", list(map(_transfer, shown)), [columns], notes)


def _by(found: Iterable[Sample]) -> str:
    """Return the tool that measured the rates, as `, by iperf3`; empty if the tool is not stored."""
    tools = dict.fromkeys(plain(one.tool) for one in found if one.kind == "network" and one.tool)
    return f", by {', '.join(tools)}" if tools else ""


def _transfer(sample: Sample) -> str:
    words = [
        plain(sample.tool or ""),
        plain(sample.transport or ""),
        "with reverse copy" if sample.with_reverse else "",
    ]
    details = ", ".join(filter(None, words))
    arrow = _ARROWS.get(sample.kind, "->")
    ends = f"{plain(sample.source.name)} {arrow} {plain(sample.destination.name)}"
    return f"{ends} ({details})" if details else ends


def _number(value: float | None) -> str:
    """Return a rate or time; below 1 with three digits: 1 Gbit/s is 0.118 GB/s of payload."""
    return f"{value:.3g}" if value is not None and 0 < value < 1 else number(value)


SOURCE = "nccl-tests"
_MAX_SIZES = 12  # for each operation, the largest first
_MAX_SWEEPS = 8


def collective_parts(samples: Sequence[Sample], *, whole: bool) -> Iterator[Section | None]:
    """Yield the summary of all operations, then each one by size, if nccl-tests measured any."""
    found = [one for one in series_of(samples) if one.first.ranks != 1]
    if not any(one.is_of_nccl_tests for one in found):
        return
    yield _summary(found)
    swept = [one for one in found if len(one.sizes) > 1] if whole else []
    for one in swept[:_MAX_SWEEPS]:
        yield _by_size(one)
    if len(swept) > _MAX_SWEEPS:
        yield Section("Other operations by size", (f"{len(swept) - _MAX_SWEEPS} more: see --json.",))


def _summary(found: Sequence[CollectiveSeries]) -> Section | None:
    rows = [(one, one.best) for one in found]
    methods = [plain(one.first.algorithm or "?") for one in found]
    is_said = len(set(methods)) > 1 or any(one.first.source == HOSTS for one in found)
    columns: list[Cells] = [
        Column("GPUs", tuple(_gpus(one.first) for one in found)),
        Column("method", tuple(methods if is_said or methods[0] != SOURCE else ())),
        Column("size", tuple(_size(best) for _, best in rows)),
        ("algorithm\nGB/s", [number(best.median_gb_per_s) for _, best in rows]),
        ("bus\nGB/s", [number(best.bus_gb_per_s) for _, best in rows]),
        (
            "expected\nbus",
            [f"{'max ' if one.expects_at_most else ''}{number(one.expected_gb_per_s)}" for _, one in rows],
        ),
        ("smallest\nus", [_us(one.smallest) for one in found]),
    ]
    notes = ("Bus bandwidth is comparable with the rate of the links (nccl-tests).",)
    names = [_operation(one.first) for one in found]
    return grid("Collective operations", "Operation", names, [columns], notes)


def _by_size(one: CollectiveSeries) -> Section | None:
    sizes = sorted(one.sizes, reverse=True)[:_MAX_SIZES]
    pairs = [(one.at(each, in_place=False), one.at(each, in_place=True)) for each in sizes]
    columns = [
        ("us", [_us(out or within) for out, within in pairs]),
        ("bus\nGB/s", [_bus(out) for out, _ in pairs]),
        ("in place\nbus GB/s", [_bus(within) for _, within in pairs]),
    ]
    more = len(one.sizes) - len(sizes)
    notes = (f"{counted(more, 'smaller size')}: see --json.",) if more else ()
    title = f"{_operation(one.first)} of {_gpus(one.first)} by size"
    return grid(title, "Size", list(map(size, sizes)), [columns], notes)


def _operation(sample: Sample) -> str:
    details = [sample.reduction if sample.reduction != "sum" else None, sample.data_type]
    details = [word for word in details if word not in (None, "float")]
    root = [] if not sample.root else [f"root {sample.root}"]
    run = [] if sample.run is None else [f"run {plain(sample.run)}"]
    words = ", ".join([*map(plain, filter(None, details)), *root, *run])
    return f"{COLLECTIVE_NAMES[sample.kind]}{f' ({words})' if words else ''}"


def _gpus(sample: Sample) -> str:
    gpus = sample.source.gpus
    if sample.source == HOSTS or not gpus:
        ranks = "?" if sample.ranks is None else counted(sample.ranks, "GPU")
        hosts = f" on {sample.hosts} hosts" if sample.hosts and sample.hosts > 1 else ""
        one = " of one of the hosts" if sample.hosts == 1 else " on several hosts"
        several = one if sample.source == HOSTS and not hosts else ""
        return f"{ranks}{hosts or several}"
    sharing = f"{sample.ranks} ranks on " if sample.ranks and sample.ranks > len(gpus) else ""
    return f"{sharing}GPU {index_ranges(gpus)}"


def _size(sample: Sample) -> str:
    return NOT_ASKED if sample.bytes is None else size(sample.bytes)


def _bus(sample: Sample | None) -> str:
    return number(None if sample is None else sample.bus_gb_per_s)


def _us(sample: Sample | None) -> str:
    return number(None if sample is None else sample.median_us)


def reduction_part(samples: Sequence[Sample]) -> Section | None:
    """Return the gradient reductions that `gputopo bench-reduction` timed, the fastest first."""
    found = [one for one in samples if one.kind == "allreduce" and one.in_place is None]
    found.sort(key=lambda one: one.median_us or float("inf"))
    columns: list[Cells] = [
        ("ms", [number(None if one.median_us is None else one.median_us / 1000) for one in found]),
        ("algorithm\nGB/s", [number(one.median_gb_per_s) for one in found]),
        ("bus\nGB/s", [number(one.bus_gb_per_s) for one in found]),
        ("spread\n%", [number(one.spread_percent) for one in found]),
        Column("size", tuple(map(_size, found))),
        Column("devices", tuple(plain(one.source) for one in found)),
    ]
    models = ", ".join(dict.fromkeys(plain(one.model) for one in found if one.model))
    title = f"Reduction of the gradients{f' of {models}' if models else ''}"
    note = "Algorithm bandwidth: bytes over time; bus bandwidth: times 2 (n - 1) / n (nccl-tests)."
    return grid(title, "Method", [plain(one.algorithm or "?") for one in found], [columns], [note])


def host_memory_part(samples: Sequence[Sample]) -> Section | None:
    """Return the rates of host memory, by the NUMA node of the memory and of the cores."""
    found = [one for one in samples if one.kind == "host_memory"]
    columns: list[Cells] = [
        Column("Cores", tuple(_node(one.destination) for one in found)),
        ("GB/s", [number(one.median_gb_per_s) for one in found]),
        ("spread %", [number(one.spread_percent) for one in found]),
    ]
    note = "GB/s include each byte twice: read and written."
    return grid("Host memory", "Memory", [_node(one.source) for one in found], [columns], [note])


def _node(end: End) -> str:
    return plain(end) if end.node is None else f"node {end.node}"


_KINDS: dict[str, tuple[Kind, ...]] = {
    "to\nGPU": ("h2d",),
    "from\nGPU": ("d2h",),
    "to other\nGPUs": ("p2p_direct", "p2p_staged"),
    "inside\nGPU": ("d2d_local",),
}


def soak_part(machine: Machine, soak: Soak | None) -> Section | None:
    """Return the table of a soak, or None if there was no soak."""
    if soak is None or not soak.intervals:
        return None
    copied = soak.copied_bytes
    gpus = sorted(copied)
    heat = {gpu: machine.temperatures(gpu) for gpu in gpus}
    columns = [
        *((head, [_soak_rates(soak, gpu, kinds) for gpu in gpus]) for head, kinds in _KINDS.items()),
        ("copied", [size(copied[gpu]) for gpu in gpus]),
        ("max\n°C", [str(max(heat[gpu], default=NOT_ASKED)) for gpu in gpus]),
    ]
    note = (
        f"GB/s in the first and the last quarter of {soak.intervals[-1].end_s / 60:.1f} min; the host with "
        "all GPUs in both directions at once, all GPUs to other ones at once."
    )
    return grid("Soak", "", [f"GPU{gpu}" for gpu in gpus], [columns], [note])


def _soak_rates(soak: Soak, gpu: int, kinds: tuple[Kind, ...]) -> str:
    found = [pair for kind in kinds if (pair := soak.ends(gpu, kind, receives=kind == "h2d")) is not None]
    return ", ".join(map(number, found[0])) if found else NOT_ASKED
