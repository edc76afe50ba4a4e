"""A bandwidth report as parts: titles with rows, tables and notes, for text and for Markdown."""

import re
from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from gputopo.copies.numbers import runs_agree
from gputopo.findings import Finding
from gputopo.report.bandwidth.between import collective_parts, network_parts, soak_part
from gputopo.report.bandwidth.gpus import gpu_parts, sweep_parts
from gputopo.report.bandwidth.numbers import INVALID_MARK, Numbers, cell, number, part
from gputopo.report.bandwidth.pairs import concurrent_part, heat_part, pair_parts
from gputopo.report.document import Document, Section
from gputopo.report.findings import findings_block
from gputopo.report.layout import NOT_ASKED, Column, plain
from gputopo.report.units import counted, seconds, size
from gputopo.runs.history import date_in_words
from gputopo.values.bandwidth import (
    Bandwidth,
    Conditions,
    Failure,
    Invalid,
    Kind,
    NotMeasured,
    Sample,
    UplinkGroup,
    gpu_of,
    gpus_of,
    node_of,
)
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Machine

_WHATS_NAMED = 6  # of what was not measured for one reason
_ENDED_EARLY = "no: ended early; these are the numbers until then"
_LEVELS = {"quick": "quick", "full": "full: every size"}


def bandwidth_parts(machine: Machine, bandwidth: Bandwidth, *, matrices: bool = True) -> list[Section]:
    """Return the parts of a report that come before the findings and have something to show.

    `matrices`: a matrix for each kind of copy between GPUs, else a table of their ranges.
    """
    numbers = Numbers(machine, bandwidth)
    parts = [
        part("Bandwidth", rows=tuple(_about(machine, numbers))),
        soak_part(machine, bandwidth.soak),
        *gpu_parts(numbers),
        heat_part(numbers),
        *pair_parts(numbers, matrices=matrices),
        concurrent_part(numbers),
        _uplinks(bandwidth.uplink_groups),
        _host_memory(bandwidth.samples),
        *network_parts(bandwidth),
        *collective_parts(bandwidth.samples),
        _reductions(bandwidth.samples),
        *sweep_parts(numbers),
    ]
    return [one for one in parts if one is not None and one.blocks]


def doubt_parts(bandwidth: Bandwidth) -> list[Section]:
    """Return the parts that follow the findings: what failed, what was not measured, notes."""
    parts = [
        part("Failed", rows=tuple(_failed(one) for one in bandwidth.failures)),
        part("Not measured", rows=tuple(_not_measured(bandwidth.not_measured))),
        part("Notes", notes=tuple(_notes(bandwidth))),
    ]
    return [one for one in parts if one.blocks]


def _about(machine: Machine, numbers: Numbers) -> Iterable[tuple[str, str]]:
    bandwidth = numbers.bandwidth
    yield "Source", plain(" + ".join(dict.fromkeys(bandwidth.source.split(" + "))))
    if bandwidth.measured_at is not None:
        took = "" if bandwidth.duration_s is None else f", in {seconds(bandwidth.duration_s)}"
        yield "Measured", f"{date_in_words(bandwidth.measured_at)}{took}"
    if bandwidth.level is not None:
        yield "Kind", _LEVELS[bandwidth.level]
    if bandwidth.soak is not None:
        yield (
            "Kind",
            f"soak, {bandwidth.soak.asked_s / 60:.3g} min: rates and error counters under load",
        )
    if not bandwidth.complete:
        yield "Complete", _ENDED_EARLY if bandwidth.source == "live" else "no: the capture ends early"
    if missed := sum(one.not_understood for one in machine.lines):
        yield "Lines", f"{missed} not understood: gputopo inspect --from lists them"
    versions = [("driver", bandwidth.driver_version), ("CUDA", bandwidth.cuda_version)]
    known = [f"{what} {plain(version)}" for what, version in versions if version]
    if known:
        yield "Software", ", ".join(known)
    places = [*(one.source for one in bandwidth.samples), *(one.source for one in bandwidth.failures)]
    of_collectives = {gpu for place in places for gpu in gpus_of(place)}
    yield from _gpu_names(machine, sorted({*numbers.gpus, *of_collectives}))


def _gpu_names(machine: Machine, gpus: Sequence[int]) -> Iterable[tuple[str, str]]:
    by_name: dict[str, list[int]] = {}
    for gpu in machine.gpus:
        if gpu.index in gpus and gpu.name:
            by_name.setdefault(plain(gpu.name), []).append(gpu.index)
    if by_name:
        yield "GPUs", "; ".join(f"{index_ranges(indices)}: {name}" for name, indices in by_name.items())


def _uplinks(groups: Sequence[UplinkGroup]) -> Section:
    return part(
        "Shared uplinks",
        rows=tuple((f"GPUs {index_ranges(group.gpus)}", _uplink(group)) for group in groups),
    )


_COPIES: dict[Kind, str] = {"h2d": "to the GPUs", "d2h": "from the GPUs", "bidirectional": "both directions"}


def _uplink(group: UplinkGroup) -> str:
    words = [f"slow one another down ({_COPIES.get(group.from_kind, group.from_kind)}"]
    if group.together_gb_per_s is not None and group.alone_gb_per_s is not None:
        words.append(
            f": {number(group.together_gb_per_s)} GB/s together, {number(group.alone_gb_per_s)} GB/s"
            " as the sum of each alone"
        )
    words += [f"; {_COPIES.get(kind, kind)} as well" for kind in group.directions if kind != group.from_kind]
    words.append(")")
    if group.bridge is not None:
        words.append(f"; their paths meet at {plain(group.bridge)}")
    if group.agrees is None:
        words.append("; no PCI tree to compare with")
    else:
        words.append("; the PCI tree agrees" if group.agrees else "; the PCI tree does not show that")
    return "".join(words)


def _host_memory(samples: Sequence[Sample]) -> Section | None:
    found = [one for one in samples if one.kind == "host_memory"]
    if not found:
        return None
    columns = [
        Column("Cores", tuple(_place(one.destination) for one in found)),
        Column("GB/s", tuple(number(one.median_gb_per_s) for one in found), side="right"),
        Column("spread %", tuple(number(one.spread_percent) for one in found), side="right"),
        Column("expected", tuple(number(one.expected_gb_per_s) for one in found), side="right"),
    ]
    return part(
        "Host memory",
        head=Column("Memory", tuple(_place(one.source) for one in found)),
        groups=(tuple(one for one in columns if any(cell != NOT_ASKED for cell in one.cells)),),
        notes=("Every byte counts twice: it is read and written.",),
    )


def _place(place: str) -> str:
    node = node_of(place)
    return plain(place) if node is None else f"node {node}"


def _reductions(samples: Sequence[Sample]) -> Section | None:
    found = sorted(
        (one for one in samples if one.kind == "allreduce" and one.in_place is None),
        key=lambda one: one.median_us or float("inf"),
    )
    if not found:
        return None
    columns = [
        Column("ms", tuple(_ms(one) for one in found), side="right"),
        Column("algorithm\nGB/s", tuple(number(one.median_gb_per_s) for one in found), side="right"),
        Column("bus\nGB/s", tuple(number(one.bus_gb_per_s) for one in found), side="right"),
        Column("spread\n%", tuple(number(one.spread_percent) for one in found), side="right"),
        Column("size", tuple(NOT_ASKED if one.bytes is None else size(one.bytes) for one in found)),
        Column("devices", tuple(plain(one.source) for one in found)),
    ]
    models = ", ".join(dict.fromkeys(plain(one.model) for one in found if one.model))
    return part(
        f"Reduction of the gradients{f' of {models}' if models else ''}",
        head=Column("Method", tuple(plain(one.algorithm or "?") for one in found)),
        groups=(tuple(columns),),
        notes=("Algorithm bandwidth: bytes over time; bus bandwidth: times 2 (n - 1) / n (nccl-tests).",),
    )


def _ms(sample: Sample) -> str:
    return number(None if sample.median_us is None else sample.median_us / 1000)


def ends_in_words(kind: str, source: str, destination: str) -> str:
    """Return `h2d host to gpu:0`."""
    return f"{kind} {plain(source)} to {plain(destination)}"


def _failed(failure: Failure) -> tuple[str, str]:
    extra = [failure.method, failure.path, {True: "pinned", False: "pageable", None: None}[failure.pinned]]
    details = ", ".join(plain(str(word)) for word in (*extra, failure.group) if word)
    what = ends_in_words(failure.kind, failure.source, failure.destination)
    return f"{what}{f' ({details})' if details else ''}", f"{plain(failure.reason)}: {plain(failure.says)}"


def _not_measured(entries: Iterable[NotMeasured]) -> Iterable[tuple[str, str]]:
    by_reason: dict[str, list[str]] = {}
    for one in entries:
        by_reason.setdefault(plain(one.reason), []).append(plain(one.what))
    for reason, found in by_reason.items():
        whats = list(dict.fromkeys(found))
        more = f"; and {len(whats) - _WHATS_NAMED} more, --json has them all"
        yield "; ".join(whats[:_WHATS_NAMED]) + (more if len(whats) > _WHATS_NAMED else ""), reason


def _notes(bandwidth: Bandwidth) -> Iterable[str]:
    yield from _not_used(bandwidth.samples)
    yield from collapsed(map(plain, bandwidth.notes))
    yield from _discarded(bandwidth.samples)
    yield from _conditions(list(chain.from_iterable(one.conditions for one in bandwidth.samples)))
    sources = (plain(one.expected_source) for one in bandwidth.samples if one.expected_source)
    for source in collapsed(sources):
        yield f"Expected: {source}"


_WHY_NOT: dict[Invalid, str] = {
    "cache": "faster than the memory of the GPU: the speed of its cache",
    "above_link": "faster than the widest link of the GPU",
    "inconsistent": "contradicted by the other numbers of the same path",
}


def _not_used(samples: Iterable[Sample]) -> Iterable[str]:
    """Return for each reason which numbers are shown with a mark and not used, and the runs that disagree."""
    by_reason: dict[Invalid, list[str]] = {}
    differing: list[str] = []
    for one in samples:
        if one.invalid is not None:
            by_reason.setdefault(one.invalid, []).append(_number_in_words(one))
        elif not runs_agree(one):
            differing.append(f"{_number_in_words(one)} ({len(one.runs)} runs)")
    for reason, found in by_reason.items():
        yield f"{INVALID_MARK}: not used, {_WHY_NOT[reason]}: {_some(found)}"
    if differing:
        yield f"several runs differ, the range is shown and not judged: {_some(differing)}"


def _number_in_words(sample: Sample) -> str:
    return f"{ends_in_words(sample.kind, sample.source, sample.destination)} {cell(sample)}"


def _some(found: Sequence[str]) -> str:
    more = f"; and {len(found) - _WHATS_NAMED} more" if len(found) > _WHATS_NAMED else ""
    return "; ".join(found[:_WHATS_NAMED]) + more


def collapsed(texts: Iterable[str]) -> list[str]:
    """Return texts that differ only in the number of one GPU once, as `GPU 0-3`."""
    gpus: dict[tuple[str, ...], set[int]] = {}
    for text in texts:
        parts = tuple(_ONE_GPU.split(text))
        one = len(parts) == 3
        gpus.setdefault(parts[::2] if one else (text,), set()).update([int(parts[1])] if one else [])
    return [f"GPU {index_ranges(found)}".join(parts) if found else parts[0] for parts, found in gpus.items()]


_ONE_GPU = re.compile(r"\bGPU (\d+)\b")


def _discarded(samples: Iterable[Sample]) -> Iterable[str]:
    """Return how many repeats were discarded, once for each reason."""
    counts: dict[str, int] = {}
    gpus: dict[str, set[int]] = {}
    for one in samples:
        if one.discarded_gb_per_s:
            why = plain(one.discarded_because or "clocks were still ramping up")
            counts[why] = counts.get(why, 0) + len(one.discarded_gb_per_s)
            ends = (gpu_of(one.source), gpu_of(one.destination))
            gpus.setdefault(why, set()).update(gpu for gpu in ends if gpu is not None)
    for why, count in counts.items():
        where = f" on GPU {index_ranges(gpus[why])}" if gpus[why] else ""
        yield f"{counted(count, 'repeat')}{where} discarded: {why}"


def _conditions(conditions: Iterable[Conditions]) -> Iterable[str]:
    slowed: dict[str, set[int]] = {}
    changed: set[int] = set()
    for one in conditions:
        for reason in one.throttle_reasons or ():
            if reason not in _HARMLESS:
                slowed.setdefault(plain(reason), set()).add(one.gpu)
        if one.link_changes:
            changed.add(one.gpu)
    for reason, gpus in slowed.items():
        yield f"GPU {index_ranges(gpus)} was throttled while measured: {reason}"
    if changed:
        yield f"the PCIe link of GPU {index_ranges(changed)} changed while measured"


_HARMLESS = ("gpu_idle", "idle", "none")  # copies leave the cores idle: not a cause


class BandwidthReport(Bandwidth, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.bandwidth/1"):
    """A `gputopo.bandwidth/1` document with two more fields, readable as a bandwidth.

    `machine` is stored without its bandwidth, which would be the same again.
    """

    machine: Machine | None = None
    findings: tuple[Finding, ...] = ()


def bandwidth_document(
    machine: Machine, bandwidth: Bandwidth, findings: Sequence[Finding], *, matrices: bool = False
) -> Document:
    """Return the report: numbers, findings, failures, notes. `matrices`: of every kind of copy."""
    found = Section("Findings", (findings_block(findings),))
    parts = bandwidth_parts(machine, bandwidth, matrices=matrices)
    return Document("", "", (*parts, found, *doubt_parts(bandwidth)))


def report_of(machine: Machine, bandwidth: Bandwidth, findings: tuple[Finding, ...]) -> BandwidthReport:
    """Return the JSON document of a bandwidth, its machine and its findings."""
    fields = {name: getattr(bandwidth, name) for name in Bandwidth.__struct_fields__}
    bare = msgspec.structs.replace(machine, bandwidth=None)
    return BandwidthReport(**fields, machine=bare, findings=findings)
