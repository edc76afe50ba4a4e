"""The parts of a bandwidth report about the network between hosts: all pairs, or single transfers."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from gputopo.report.bandwidth.numbers import number
from gputopo.report.bandwidth.part import part
from gputopo.report.document import Section
from gputopo.report.layout import NOT_ASKED, Column, plain
from gputopo.report.units import size
from gputopo.values.bandwidth import NETWORK, Bandwidth, Sample, host_of
from gputopo.values.index_ranges import natural

_MAX_ROWS = 24  # a sweep of perftest over all sizes (-a) has 23
_MAX_MATRIX = 32  # hosts; of more the table of hosts alone
_ARROWS = {"network_bidirectional": "<->"}


def network_parts(bandwidth: Bandwidth) -> Iterator[Section]:
    """Yield the transfers between hosts: by host and pair where all were measured, else one by one."""
    found = [one for one in bandwidth.samples if one.kind in NETWORK]
    if not found:
        return
    if bandwidth.source != "live":
        yield _transfers(found)
        return
    hosts = list(dict.fromkeys(_name(place) for one in found for place in (one.source, one.destination)))
    hosts.sort(key=natural)
    yield _by_host(found, hosts)
    if len(hosts) <= _MAX_MATRIX:
        yield _matrix(found, hosts)


def _by_host(found: Sequence[Sample], hosts: Sequence[str]) -> Section:
    alone = [one for one in found if one.kind == "network" and one.group is None]
    pairs = [one for one in alone if not one.with_reverse]
    both = [one for one in alone if one.with_reverse]
    at_once = [one for one in found if one.group is not None]
    latencies = [one for one in found if one.kind == "network_latency"]
    by = f", by {_tools(latencies)}" if _tools(latencies) else ""
    latency = f" latency: half a round trip of 8 bytes{by}." if latencies else ""
    columns = [
        _column("sends\nGB/s", [_rates(pairs, sends=host) for host in hosts]),
        _column("receives\nGB/s", [_rates(pairs, receives=host) for host in hosts]),
        _column("both: sends\nGB/s", [_rates(both, sends=host) for host in hosts]),
        _column("receives\nGB/s", [_rates(both, receives=host) for host in hosts]),
        _column("all at once:\nsends GB/s", [_rates(at_once, sends=host) for host in hosts]),
        _column("expected\nGB/s", [_expected(pairs, host) for host in hosts]),
        _column(
            "latency\nus",
            [
                [one.median_us for one in latencies if host in (_name(one.source), _name(one.destination))]
                for host in hosts
            ],
        ),
    ]
    return part(
        f"Between hosts{_by(found)}",
        head=Column("Host", tuple(map(plain, hosts))),
        groups=(tuple(one for one in columns if any(cell != NOT_ASKED for cell in one.cells)),),
        notes=(
            "Medians over all other hosts, one pair at a time for each host. both: each host of a pair sends "
            f"and receives.{latency}",
        ),
    )


def _matrix(found: Sequence[Sample], hosts: Sequence[str]) -> Section:
    pairs = [one for one in found if one.kind == "network" and one.group is None]
    shown = [one for one in pairs if not one.with_reverse] or pairs
    rates = {(_name(one.source), _name(one.destination)): one.median_gb_per_s for one in shown}
    both = " while both send" if shown and shown[0].with_reverse else ""
    columns = [
        Column(plain(to), tuple(_number(rates.get((host, to))) for host in hosts), side="right")
        for to in hosts
    ]
    return part(
        f"From host (row) to host (column){both}, GB/s{_by(found)}",
        head=Column("", tuple(map(plain, hosts))),
        groups=tuple((column,) for column in columns),
    )


def _rates(
    samples: Iterable[Sample], *, sends: str | None = None, receives: str | None = None
) -> list[float | None]:
    return [
        one.median_gb_per_s
        for one in samples
        if sends in (None, _name(one.source)) and receives in (None, _name(one.destination))
    ]


def _expected(samples: Iterable[Sample], host: str) -> list[float | None]:
    return [one.expected_gb_per_s for one in samples if host == _name(one.source)]


def _column(head: str, values: Sequence[Sequence[float | None]]) -> Column:
    known = [[value for value in own if value is not None] for own in values]
    return Column(head, tuple(_number(median(own) if own else None) for own in known), side="right")


def _transfers(found: Sequence[Sample]) -> Section:
    ordered = sorted(found, key=lambda one: -(one.bytes or 0))
    shown = ordered[:_MAX_ROWS]
    columns = [
        Column("run", tuple(NOT_ASKED if one.run is None else plain(one.run) for one in shown)),
        Column("size", tuple(NOT_ASKED if one.bytes is None else size(one.bytes) for one in shown)),
        Column("streams", tuple(NOT_ASKED if not one.streams else str(one.streams) for one in shown)),
        Column("GB/s", tuple(_number(one.median_gb_per_s) for one in shown), side="right"),
        Column("us", tuple(number(one.median_us) for one in shown), side="right"),
    ]
    kinds = {one.kind for one in found}
    notes = []
    if "network_bidirectional" in kinds:
        notes.append("<-> is the sum of both directions.")
    if "network_latency" in kinds:
        notes.append("us: half a round trip; of an RDMA read or atomic the whole.")
    if len(ordered) > len(shown):
        notes.append(f"{len(ordered) - len(shown)} more: see --json.")
    return part(
        "Between hosts",
        head=Column("Transfer", tuple(map(_transfer, shown))),
        groups=(tuple(one for one in columns if any(cell != NOT_ASKED for cell in one.cells)),),
        notes=tuple(notes),
    )


def _by(found: Iterable[Sample]) -> str:
    """Return what measured the rates: `, by iperf3`; empty where that is not stored."""
    tools = _tools(one for one in found if one.kind == "network")
    return f", by {tools}" if tools else ""


def _tools(samples: Iterable[Sample]) -> str:
    return ", ".join(dict.fromkeys(plain(one.tool) for one in samples if one.tool))


def _transfer(sample: Sample) -> str:
    words = [
        plain(sample.tool or ""),
        plain(sample.transport or ""),
        "beside the other direction" if sample.with_reverse else "",
    ]
    details = ", ".join(filter(None, words))
    arrow = _ARROWS.get(sample.kind, "->")
    ends = f"{plain(_name(sample.source))} {arrow} {plain(_name(sample.destination))}"
    return f"{ends} ({details})" if details else ends


def _number(value: float | None) -> str:
    """Return a rate or time; below 1 with three digits: 1 Gbit/s is 0.118 GB/s of payload."""
    return f"{value:.3g}" if value is not None and 0 < value < 1 else number(value)


def _name(place: str) -> str:
    return host_of(place) or place
