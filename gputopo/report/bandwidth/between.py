"""Tables of the transfers between hosts, collective operations, reductions, host memory and a soak."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from gputopo.report.bandwidth.numbers import Cells, grid, number
from gputopo.report.document import Section
from gputopo.report.layout import NOT_ASKED, Column, plain
from gputopo.report.units import counted, size
from gputopo.values.bandwidth import (
    COLLECTIVE_NAMES,
    Bandwidth,
    CollectiveRate,
    CollectiveSeries,
    CopyRate,
    Kind,
    Sample,
    Samples,
    Soak,
    Transfer,
    TransferLatency,
    TransferRate,
    series_of,
)
from gputopo.values.ends import HOSTS, End
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import index_ranges, natural
from gputopo.values.machine import Machine

_MAX_ROWS = 24  # a sweep of perftest over all sizes (-a) has 23
_MAX_MATRIX = 32  # hosts; with more, only the table of hosts is shown


def network_parts(bandwidth: Bandwidth) -> Iterator[Section | None]:
    """Yield the transfers between hosts: by host and pair if all were measured, else one by one."""
    if bandwidth.source != "live":
        yield _transfers([sample for sample in bandwidth.samples if isinstance(sample, Transfer)])
        return
    samples = bandwidth.samples.of(TransferRate)
    hosts = sorted(dict.fromkeys(name for sample in samples for name in sample.names), key=natural)
    names = list(map(plain, hosts))
    pairs = [sample for sample in samples if sample.kind == "network" and sample.group is None]
    at_once = [sample for sample in samples if sample.group is not None]
    sends = grouped((sample.source.name, sample.median_gb_per_s) for sample in pairs)
    receives = grouped((sample.destination.name, sample.median_gb_per_s) for sample in pairs)
    sends_at_once = grouped((sample.source.name, sample.median_gb_per_s) for sample in at_once)
    expected = grouped((sample.source.name, sample.expectation.gb_per_s) for sample in pairs)

    def medians(head: str, rates: Mapping[str, Sequence[float | None]]) -> Cells:
        known = [[rate for rate in rates.get(host, ()) if rate is not None] for host in hosts]
        return head, [_number(median(of_host) if of_host else None) for of_host in known]

    columns = [
        medians("sends\nGB/s", sends),
        medians("receives\nGB/s", receives),
        medians("all at once:\nsends GB/s", sends_at_once),
        medians("expected\nGB/s", expected),
    ]
    note = "Medians over all other hosts, one pair at a time for each host."
    while_both = " while both send" if pairs and pairs[0].with_reverse else ""
    tools = dict.fromkeys(sample.tool for sample in samples if sample.kind == "network" and sample.tool)
    by = f", by {plain(', '.join(tools))}" if tools else ""
    yield grid(f"Between hosts{while_both}{by}", "Host", names, [columns], [note])
    if len(hosts) <= _MAX_MATRIX:
        rates = {sample.names: sample.median_gb_per_s for sample in pairs}
        matrix = [[(plain(to), [_number(rates.get((host, to))) for host in hosts])] for to in hosts]
        yield grid(f"From host (row) to host (column){while_both}, GB/s{by}", "", names, matrix)


def _transfers(samples: Sequence[Transfer]) -> Section | None:
    shown = sorted(samples, key=lambda sample: -(sample.bytes or 0))[:_MAX_ROWS]
    columns: list[Cells] = [
        Column("run", tuple(plain(sample.run or NOT_ASKED) for sample in shown)),
        Column("size", tuple(map(_size, shown))),
        Column("streams", tuple(str(sample.streams or NOT_ASKED) for sample in shown)),
        ("GB/s", [_number(sample.value if isinstance(sample, TransferRate) else None) for sample in shown]),
        ("us", [number(sample.value if isinstance(sample, TransferLatency) else None) for sample in shown]),
    ]
    kinds = {sample.kind for sample in samples}
    notes = []
    if "network_bidirectional" in kinds:
        notes.append("<-> is the sum of both directions.")
    if "network_latency" in kinds:
        notes.append("us: half of a round trip; a full round trip for RDMA read and atomic.")
    if len(samples) > len(shown):
        notes.append(f"{len(samples) - len(shown)} more: see --json.")
    return grid("Between hosts", "Transfer", list(map(_transfer, shown)), [columns], notes)


def _transfer(sample: Transfer) -> str:
    words = (sample.tool, sample.transport, "with reverse copy" if sample.with_reverse else "")
    details = ", ".join(filter(None, words))
    arrow = "<->" if sample.kind == "network_bidirectional" else "->"
    ends = f"{sample.source.name} {arrow} {sample.destination.name}"
    return plain(f"{ends} ({details})" if details else ends)


def _number(value: float | None) -> str:
    """Return a rate or time; below 1 with three digits: 1 Gbit/s is 0.118 GB/s of payload."""
    return f"{value:.3g}" if value is not None and 0 < value < 1 else number(value)


SOURCE = "nccl-tests"
_MAX_SIZES = 12  # for each operation, the largest first
_MAX_SWEEPS = 8


def collective_parts(samples: Samples, *, whole: bool) -> Iterator[Section | None]:
    """Yield the summary of all operations, then each one by size, if nccl-tests measured any."""
    operations = [series for series in series_of(samples) if series.first.ranks != 1]
    if not any(series.is_of_nccl_tests for series in operations):
        return
    yield _summary(operations)
    swept = [series for series in operations if len(series.sizes) > 1] if whole else []
    yield from map(_by_size, swept[:_MAX_SWEEPS])
    if len(swept) > _MAX_SWEEPS:
        yield Section("Other operations by size", (f"{len(swept) - _MAX_SWEEPS} more: see --json.",))


def _summary(operations: Sequence[CollectiveSeries]) -> Section | None:
    firsts, best = [series.first for series in operations], [series.best for series in operations]
    methods = [plain(sample.algorithm or "?") for sample in firsts]
    shows_methods = len({*methods, SOURCE}) > 1 or any(sample.source == HOSTS for sample in firsts)
    expected = [sample.expectation for sample in best]
    limits = [f"{'max ' if rate.is_limit else ''}{number(rate.gb_per_s)}" for rate in expected]
    columns: list[Cells] = [
        Column("GPUs", tuple(map(_gpus, firsts))),
        Column("method", tuple(methods if shows_methods else ())),
        Column("size", tuple(map(_size, best))),
        ("algorithm\nGB/s", [number(sample.median_gb_per_s) for sample in best]),
        ("bus\nGB/s", [number(sample.bus_gb_per_s) for sample in best]),
        ("expected\nbus", limits),
        ("smallest\nus", [_us(series.smallest) for series in operations]),
    ]
    notes = ("Bus bandwidth is comparable with the rate of the links (nccl-tests).",)
    return grid("Collective operations", "Operation", list(map(_operation, firsts)), [columns], notes)


def _by_size(series: CollectiveSeries) -> Section | None:
    sizes = sorted(series.sizes, reverse=True)[:_MAX_SIZES]
    out = [series.at(bytes, in_place=False) for bytes in sizes]
    within = [series.at(bytes, in_place=True) for bytes in sizes]
    columns = [
        ("us", [_us(a or b) for a, b in zip(out, within, strict=True)]),
        ("bus\nGB/s", list(map(_bus, out))),
        ("in place\nbus GB/s", list(map(_bus, within))),
    ]
    more = len(series.sizes) - len(sizes)
    notes = (f"{counted(more, 'smaller size')}: see --json.",) if more else ()
    title = f"{_operation(series.first)} of {_gpus(series.first)} by size"
    return grid(title, "Size", list(map(size, sizes)), [columns], notes)


def _bus(sample: CollectiveRate | None) -> str:
    return number(None if sample is None else sample.bus_gb_per_s)


def _us(sample: CollectiveRate | None) -> str:
    return number(None if sample is None else sample.median_us)


def _operation(sample: CollectiveRate) -> str:
    details = [sample.reduction if sample.reduction != "sum" else None, sample.data_type]
    details = [word for word in details if word not in (None, "float")]
    root = [] if not sample.root else [f"root {sample.root}"]
    run = [] if sample.run is None else [f"run {plain(sample.run)}"]
    words = ", ".join([*map(plain, filter(None, details)), *root, *run])
    return f"{COLLECTIVE_NAMES[sample.kind]}{f' ({words})' if words else ''}"


def _gpus(sample: CollectiveRate) -> str:
    gpus = sample.source.gpus
    if sample.source == HOSTS or not gpus:
        ranks = "?" if sample.ranks is None else counted(sample.ranks, "GPU")
        hosts = f" on {sample.hosts} hosts" if sample.hosts and sample.hosts > 1 else ""
        several_hosts = " of one of the hosts" if sample.hosts == 1 else " on several hosts"
        several = several_hosts if sample.source == HOSTS and not hosts else ""
        return f"{ranks}{hosts or several}"
    sharing = f"{sample.ranks} ranks on " if sample.ranks and sample.ranks > len(gpus) else ""
    return f"{sharing}GPU {index_ranges(gpus)}"


def _size(sample: Sample) -> str:
    return NOT_ASKED if sample.bytes is None else size(sample.bytes)


def reduction_part(samples: Sequence[CollectiveRate]) -> Section | None:
    """Return the gradient reductions that `gputopo bench-reduction` timed, the fastest first."""
    timed = [sample for sample in samples if sample.kind == "allreduce" and sample.in_place is None]
    timed.sort(key=lambda sample: sample.median_us or float("inf"))
    columns: list[Cells] = [
        ("ms", [number(sample.median_us and sample.median_us / 1000) for sample in timed]),
        ("algorithm\nGB/s", [number(sample.median_gb_per_s) for sample in timed]),
        ("bus\nGB/s", [number(sample.bus_gb_per_s) for sample in timed]),
        ("spread\n%", [number(sample.spread_percent) for sample in timed]),
        Column("size", tuple(map(_size, timed))),
        Column("devices", tuple(plain(sample.source) for sample in timed)),
    ]
    models = ", ".join(dict.fromkeys(plain(sample.model) for sample in timed if sample.model))
    title = f"Reduction of the gradients{f' of {models}' if models else ''}"
    note = "Algorithm bandwidth: bytes over time; bus bandwidth: times 2 (n - 1) / n (nccl-tests)."
    return grid(title, "Method", [plain(sample.algorithm or "?") for sample in timed], [columns], [note])


def host_memory_part(samples: Sequence[CopyRate]) -> Section | None:
    """Return the rates of host memory, by the NUMA node of the memory and of the cores."""
    rates = [sample for sample in samples if sample.kind == "host_memory"]
    columns: list[Cells] = [
        Column("Cores", tuple(_node(sample.destination) for sample in rates)),
        ("GB/s", [number(sample.median_gb_per_s) for sample in rates]),
        ("spread %", [number(sample.spread_percent) for sample in rates]),
    ]
    note = "GB/s include each byte twice: read and written."
    return grid("Host memory", "Memory", [_node(sample.source) for sample in rates], [columns], [note])


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
    gpus = sorted(soak.copied_bytes)

    def rates(gpu: int, kinds: Iterable[Kind]) -> str:
        """Return the rates at the start and the end."""
        ends = (soak.ends(gpu, kind, receives=kind == "h2d") for kind in kinds)
        return ", ".join(map(number, next(filter(None, ends), ()))) or NOT_ASKED

    columns = [
        *((head, [rates(gpu, kinds) for gpu in gpus]) for head, kinds in _KINDS.items()),
        ("copied", [size(soak.copied_bytes[gpu]) for gpu in gpus]),
        ("max\n°C", [str(max(machine.temperatures(gpu), default=NOT_ASKED)) for gpu in gpus]),
    ]
    note = (
        f"GB/s in the first and the last quarter of {soak.intervals[-1].end_s / 60:.1f} min; the host with "
        "all GPUs in both directions at once, all GPUs to other ones at once."
    )
    return grid("Soak", "", [f"GPU{gpu}" for gpu in gpus], [columns], [note])
