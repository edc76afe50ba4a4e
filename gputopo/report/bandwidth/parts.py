"""The report of `gputopo bandwidth`: the answer first, then tables, and with all details also the doubts."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from gputopo.report.bandwidth.between import (
    collective_parts,
    host_memory_part,
    network_parts,
    reduction_part,
    soak_part,
)
from gputopo.report.bandwidth.gpus import gpu_part, is_inside_alone, node_part, sweep_parts
from gputopo.report.bandwidth.numbers import INVALID_MARK, Numbers, cell
from gputopo.report.bandwidth.pairs import concurrent_part, map_part, pair_parts, range_part
from gputopo.report.bandwidth.summary import about, not_measured_line, summary_parts
from gputopo.report.document import Bullets, Document, Rows, Section, Styled
from gputopo.report.layout import QUIET, plain
from gputopo.report.units import counted
from gputopo.values.bandwidth import Bandwidth, Conditions, Failure, Invalid, NotMeasured, Sample
from gputopo.values.finding import Finding
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Machine

_WHATS_NAMED = 6  # things that were not measured for one reason
_MAX_MAP = 8  # GPUs; with more, the first screen has the ranges of each kind of copy instead


def bandwidth_document(
    machine: Machine, bandwidth: Bandwidth, findings: Sequence[Finding], *, whole: bool = False
) -> Document:
    """Return the report: a verdict, the findings, the main tables. `whole`: every number, remedy and note."""
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
    if unused and not whole:
        lines.append(f"{INVALID_MARK}: {counted(unused, 'number')} not used.")
    lines.append(f"Source: {about(machine, bandwidth)}.{'' if whole else ' Details: --all.'}")
    return Section("", (Styled("\n".join(lines), QUIET),))


def _failed(failure: Failure) -> tuple[str, str]:
    extra = [failure.method, failure.path, {True: "pinned", False: "pageable", None: None}[failure.pinned]]
    details = ", ".join(plain(str(word)) for word in (*extra, failure.group) if word)
    what = f"{failure.kind} {plain(failure.way)}"
    return f"{what}{f' ({details})' if details else ''}", f"{plain(failure.reason)}: {plain(failure.says)}"


def _not_measured(entries: Iterable[NotMeasured]) -> Iterable[tuple[str, str]]:
    by_reason = grouped((plain(one.reason), plain(one.what)) for one in entries)
    for reason, whats in by_reason.items():
        yield _some(list(dict.fromkeys(whats))), reason


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


def _not_used(samples: Sequence[Sample]) -> Iterable[str]:
    """Yield, for each reason, which numbers have a mark and are not used; then which runs disagree."""
    unused = grouped((one.invalid, _number_in_words(one)) for one in samples if one.invalid is not None)
    for reason, found in unused.items():
        yield f"{INVALID_MARK}: not used, {_WHY_NOT[reason]}: {_some(found)}"
    runs = [one for one in samples if one.invalid is None and not one.runs_agree]
    if differing := [f"{_number_in_words(one)} ({len(one.runs)} runs)" for one in runs]:
        yield f"runs disagree; the range is shown without a verdict: {_some(differing)}"


def _number_in_words(sample: Sample) -> str:
    return f"{sample.kind} {plain(sample.way)} {cell(sample)}"


def _some(found: Sequence[str]) -> str:
    more = f"; and {len(found) - _WHATS_NAMED} more" if len(found) > _WHATS_NAMED else ""
    return "; ".join(found[:_WHATS_NAMED]) + more


def collapsed(texts: Iterable[str]) -> list[str]:
    """Join texts that differ only in the number of one GPU: `GPU 0-3`."""
    gpus: dict[tuple[str, ...], set[int]] = {}
    for text in texts:
        parts = tuple(_ONE_GPU.split(text))
        one = len(parts) == 3
        gpus.setdefault(parts[::2] if one else (text,), set()).update([int(parts[1])] if one else [])
    return [f"GPU {index_ranges(found)}".join(parts) if found else parts[0] for parts, found in gpus.items()]


_ONE_GPU = re.compile(r"\bGPU (\d+)\b")


def _discarded(samples: Iterable[Sample]) -> Iterable[str]:
    by_reason = grouped(
        (plain(one.discarded_because or "clocks were still ramping up"), one)
        for one in samples
        if one.discarded_gb_per_s
    )
    for why, found in by_reason.items():
        gpus = {gpu for one in found for gpu in one.gpus}
        where = f" on GPU {index_ranges(gpus)}" if gpus else ""
        count = sum(len(one.discarded_gb_per_s) for one in found)
        yield f"{counted(count, 'repeat')}{where} discarded: {why}"


def _conditions(conditions: Sequence[Conditions]) -> Iterable[str]:
    slowed = grouped(
        (plain(reason), one.gpu)
        for one in conditions
        for reason in one.throttle_reasons or ()
        if reason not in _HARMLESS
    )
    for reason, gpus in slowed.items():
        yield f"GPU {index_ranges(set(gpus))} was throttled while measured: {reason}"
    if changed := {one.gpu for one in conditions if one.link_changes}:
        yield f"the PCIe link of GPU {index_ranges(changed)} changed while measured"


_HARMLESS = ("gpu_idle", "idle", "none")  # copies leave the cores idle, so these are not a cause
