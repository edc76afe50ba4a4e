"""The parts of a bandwidth report about collective operations, of nccl-tests and of bench-reduction."""

from collections.abc import Iterator, Sequence

from gputopo.copies.collectives import NAMES, Series, is_limit, nearest, series_of
from gputopo.report.bandwidth.numbers import number
from gputopo.report.bandwidth.part import part
from gputopo.report.document import Section
from gputopo.report.layout import NOT_ASKED, Column, plain
from gputopo.report.units import counted, size
from gputopo.values.bandwidth import HOSTS, Sample, gpus_of
from gputopo.values.index_ranges import index_ranges

SOURCE = "nccl-tests"
_MAX_SIZES = 12  # of one operation, the largest first
_MAX_SWEEPS = 8


def collective_parts(samples: Sequence[Sample]) -> Iterator[Section | None]:
    """Yield the summary of all operations, then each one by size, where nccl-tests measured any."""
    found = [one for one in series_of(samples) if one.first.ranks != 1]
    if not any(one.is_of_nccl_tests for one in found):
        return
    yield _summary(found)
    swept = [one for one in found if len(one.sizes) > 1]
    for one in swept[:_MAX_SWEEPS]:
        yield _by_size(one)
    if len(swept) > _MAX_SWEEPS:
        yield part("Other operations by size", notes=(f"{len(swept) - _MAX_SWEEPS} more: see --json.",))


def _summary(found: Sequence[Series]) -> Section:
    rows = [(one, one.best) for one in found]
    columns = [
        Column("GPUs", tuple(_gpus(one.first) for one in found)),
        Column("method", tuple(_method(one.first) for one in found)),
        Column("size", tuple(_size(best) for _, best in rows)),
        Column("algorithm\nGB/s", tuple(number(best.median_gb_per_s) for _, best in rows), side="right"),
        Column("bus\nGB/s", tuple(number(best.bus_gb_per_s) for _, best in rows), side="right"),
        Column("expected\nbus", tuple(_expected(best) for _, best in rows), side="right"),
        Column("smallest\nus", tuple(_latency(one) for one in found), side="right"),
    ]
    is_said = len({_method(one.first) for one in found}) > 1 or any(
        one.first.source == HOSTS for one in found
    )
    unsaid = {NOT_ASKED} if is_said else {NOT_ASKED, SOURCE}
    shown = [one for one in columns if not unsaid.issuperset(one.cells)]
    return part(
        "Collective operations",
        head=Column("Operation", tuple(_name(one.first) for one in found)),
        groups=(tuple(shown),),
        notes=(*_comparisons(found), "Bus bandwidth is comparable with the rate of the links (nccl-tests)."),
    )


def _by_size(one: Series) -> Section:
    sizes = sorted(one.sizes, reverse=True)[:_MAX_SIZES]
    in_two = any(one.at(each, in_place=True) for each in sizes)
    pairs = [(one.at(each, in_place=False), one.at(each, in_place=True)) for each in sizes]
    columns = [
        Column("us", tuple(_us(out or within) for out, within in pairs), side="right"),
        Column("bus\nGB/s", tuple(_bus(out) for out, _ in pairs), side="right"),
    ]
    if in_two:
        columns.append(Column("in place\nbus GB/s", tuple(_bus(within) for _, within in pairs), side="right"))
    more = len(one.sizes) - len(sizes)
    return part(
        f"{_name(one.first)} of {_gpus(one.first)} by size",
        head=Column("Size", tuple(map(size, sizes))),
        groups=(tuple(columns),),
        notes=(f"{counted(more, 'smaller size')}: see --json.",) if more else (),
    )


def _comparisons(found: Sequence[Series]) -> Iterator[str]:
    """Yield how the reductions of bench-reduction compare with nccl-tests on the same GPUs."""
    for own in found:
        other = next((one for one in found if one.is_of_nccl_tests and one.is_comparable(own)), None)
        if own.is_of_nccl_tests or other is None:
            continue
        theirs = nearest(other, own.best.bytes or 0)
        if own.best.bus_gb_per_s and theirs.bus_gb_per_s:
            share = own.best.bus_gb_per_s / theirs.bus_gb_per_s
            yield (
                f"{plain(own.best.algorithm or '?')} with {_size(own.best)} reaches {share:.0%} of the bus "
                f"bandwidth of nccl-tests with {_size(theirs)}."
            )


def _name(sample: Sample) -> str:
    details = [sample.reduction if sample.reduction != "sum" else None, sample.data_type]
    details = [word for word in details if word not in (None, "float")]
    root = [] if not sample.root else [f"root {sample.root}"]
    run = [] if sample.run is None else [f"run {plain(sample.run)}"]
    words = ", ".join([*map(plain, filter(None, details)), *root, *run])
    return f"{NAMES[sample.kind]}{f' ({words})' if words else ''}"


def _gpus(sample: Sample) -> str:
    gpus = gpus_of(sample.source)
    if sample.source == HOSTS or not gpus:
        ranks = "?" if sample.ranks is None else counted(sample.ranks, "GPU")
        hosts = f" on {sample.hosts} hosts" if sample.hosts and sample.hosts > 1 else ""
        one = " of one of the hosts" if sample.hosts == 1 else " on several hosts"
        several = one if sample.source == HOSTS and not hosts else ""
        return f"{ranks}{hosts or several}"
    return f"GPU {index_ranges(gpus)}"


def _method(sample: Sample) -> str:
    return plain(sample.algorithm or "?")


def _size(sample: Sample) -> str:
    return NOT_ASKED if sample.bytes is None else size(sample.bytes)


def _expected(sample: Sample) -> str:
    rate = number(sample.expected_gb_per_s)
    return f"max {rate}" if is_limit(sample) else rate


def _bus(sample: Sample | None) -> str:
    return number(None if sample is None else sample.bus_gb_per_s)


def _us(sample: Sample | None) -> str:
    return number(None if sample is None else sample.median_us)


def _latency(one: Series) -> str:
    smallest = one.smallest
    return NOT_ASKED if smallest is None else number(smallest.median_us)
