"""The report of `gputopo bandwidth`: the answer first, then tables; with all details what is in doubt too."""

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from gputopo.findings import Finding
from gputopo.report.bandwidth.between import (
    collective_parts,
    host_memory_part,
    network_parts,
    reduction_part,
    soak_part,
)
from gputopo.report.bandwidth.gpus import gpu_part, is_inside_alone, node_part, sweep_parts
from gputopo.report.bandwidth.numbers import INVALID_MARK, Numbers
from gputopo.report.bandwidth.pairs import concurrent_part, map_part, pair_parts, range_part
from gputopo.report.bandwidth.summary import about, not_measured_line, summary_parts
from gputopo.report.document import Bullets, Document, Rows, Section, Styled
from gputopo.report.layout import QUIET, plain
from gputopo.report.units import counted
from gputopo.values.bandwidth import (
    Bandwidth,
    Failure,
    NotMeasured,
)
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Machine

_WHATS_NAMED = 6  # of what was not measured for one reason
_MAX_MAP = 8  # GPUs; of more the ranges of each kind of copy are on the first screen


def bandwidth_document(
    machine: Machine, bandwidth: Bandwidth, findings: Sequence[Finding], *, whole: bool = False
) -> Document:
    """Return the report: a verdict, the findings, the main tables; `whole`: every number, remedy and note."""
    numbers = Numbers(machine, bandwidth)
    parts = [
        *summary_parts(machine, bandwidth, findings, whole=whole),
        *filter(None, _all_tables(machine, numbers) if whole else _main_tables(machine, numbers)),
        *(_doubts(bandwidth) if whole else ()),
        _rest(machine, bandwidth, whole=whole),
    ]
    return Document("", "", tuple(one for one in parts if one.blocks))


def _main_tables(machine: Machine, numbers: Numbers) -> list[Section | None]:
    bandwidth = numbers.bandwidth
    gpus = gpu_part(numbers, whole=False)
    alone = gpus is not None and is_inside_alone(gpus)
    links = map_part(numbers, inside=alone) if len(numbers.gpus) <= _MAX_MAP else None
    found = [
        soak_part(machine, bandwidth.soak),
        None if alone and links else gpus,
        links or range_part(numbers),
        *network_parts(bandwidth),
        *collective_parts(bandwidth.samples, whole=False),
        reduction_part(bandwidth.samples),
    ]
    return found if any(found) else _all_tables(machine, numbers)


def _all_tables(machine: Machine, numbers: Numbers) -> list[Section | None]:
    bandwidth = numbers.bandwidth
    return [
        soak_part(machine, bandwidth.soak),
        gpu_part(numbers, whole=True),
        map_part(numbers),
        range_part(numbers),
        *pair_parts(numbers),
        concurrent_part(numbers),
        host_memory_part(bandwidth.samples),
        *network_parts(bandwidth),
        *collective_parts(bandwidth.samples, whole=True),
        reduction_part(bandwidth.samples),
        node_part(numbers),
        *sweep_parts(numbers),
    ]


def _rows(title: str, rows: Iterable[tuple[str, str]]) -> Section:
    found = tuple(rows)
    return Section(title, (Rows(found),) if found else ())


def _doubts(bandwidth: Bandwidth) -> Iterator[Section]:
    yield _rows("Failed", map(_failed, bandwidth.failures))
    yield _rows("Not measured", _not_measured(bandwidth.not_measured))
    notes = tuple(_notes(bandwidth))
    yield Section("Notes", (Bullets(notes),) if notes else ())


def _rest(machine: Machine, bandwidth: Bandwidth, *, whole: bool) -> Section:
    lines = [not_measured_line(bandwidth.not_measured)] if bandwidth.not_measured and not whole else []
    unused = sum(one.invalid is not None for one in bandwidth.samples)
    if unused:
        lines.append(f"{INVALID_MARK}: {counted(unused, 'number')} not used.")
    lines.append(f"Source: {about(machine, bandwidth)}.{'' if whole else ' Details: --all.'}")
    return Section("", (Styled("\n".join(lines), QUIET),))


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
        yield _some(whats), reason


def _notes(bandwidth: Bandwidth) -> Iterable[str]:
    yield from collapsed(map(plain, bandwidth.notes))
    changed = {seen.gpu for one in bandwidth.samples for seen in one.conditions if seen.link_changes}
    if changed:
        yield f"the PCIe link of GPU {index_ranges(changed)} changed while measured"
    sources = (plain(one.expected_source) for one in bandwidth.samples if one.expected_source)
    for source in collapsed(sources):
        yield f"Expected: {source}"


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


class BandwidthReport(Bandwidth, frozen=True, kw_only=True, tag_field="schema", tag="gputopo.bandwidth/1"):
    """A `gputopo.bandwidth/1` document with two more fields, readable as a bandwidth.

    `machine` is stored without its bandwidth, which would be the same again.
    """

    machine: Machine | None = None
    findings: tuple[Finding, ...] = ()


def report_of(machine: Machine, bandwidth: Bandwidth, findings: tuple[Finding, ...]) -> BandwidthReport:
    """Return the JSON document of a bandwidth, its machine and its findings."""
    fields = {name: getattr(bandwidth, name) for name in Bandwidth.__struct_fields__}
    bare = msgspec.structs.replace(machine, bandwidth=None)
    return BandwidthReport(**fields, machine=bare, findings=findings)
