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
from gputopo.values.bandwidth import (
    Bandwidth,
    CollectiveRate,
    Conditions,
    CopyRate,
    Failure,
    Invalid,
    Rate,
    Sample,
)
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
    return Document("", "", tuple(section for section in parts if section.blocks))


def _main_tables(machine: Machine, numbers: Numbers) -> list[Section | None]:
    bandwidth = numbers.bandwidth
    gpus = gpu_part(numbers, whole=False)
    alone = gpus is not None and is_inside_alone(gpus)
    links = map_part(numbers, inside=alone) if len(numbers.gpus) <= _MAX_MAP else None
    tables = [
        soak_part(machine, bandwidth.soak),
        None if alone and links else gpus,
        links or range_part(numbers),
        *network_parts(bandwidth),
        *collective_parts(bandwidth.samples, whole=False),
        reduction_part(bandwidth.samples.of(CollectiveRate)),
    ]
    return tables if any(tables) else _all_tables(machine, numbers)


def _all_tables(machine: Machine, numbers: Numbers) -> list[Section | None]:
    bandwidth = numbers.bandwidth
    return [
        soak_part(machine, bandwidth.soak),
        gpu_part(numbers, whole=True),
        map_part(numbers),
        range_part(numbers),
        *pair_parts(numbers),
        concurrent_part(numbers),
        host_memory_part(numbers.copies),
        *network_parts(bandwidth),
        *collective_parts(bandwidth.samples, whole=True),
        reduction_part(bandwidth.samples.of(CollectiveRate)),
        node_part(numbers),
        *sweep_parts(numbers),
    ]


def _doubts(bandwidth: Bandwidth) -> Iterator[Section]:
    failed = tuple(map(_failed, bandwidth.failures))
    reasons = grouped((plain(entry.reason), plain(entry.what)) for entry in bandwidth.not_measured)
    not_measured = tuple((_some([*dict.fromkeys(whats)]), reason) for reason, whats in reasons.items())
    for title, rows in (("Failed", failed), ("Not measured", not_measured)):
        yield Section(title, (Rows(rows),) if rows else ())
    notes = tuple(_notes(bandwidth))
    yield Section("Notes", (Bullets(notes),) if notes else ())


def _rest(machine: Machine, bandwidth: Bandwidth, *, whole: bool) -> Section:
    lines = [not_measured_line(bandwidth.not_measured)] if bandwidth.not_measured and not whole else []
    unused = sum(sample.invalid is not None for sample in bandwidth.samples)
    if unused and not whole:
        lines.append(f"{INVALID_MARK}: {counted(unused, 'number')} not used.")
    lines.append(f"Source: {about(machine, bandwidth)}.{'' if whole else ' Details: --all.'}")
    return Section("", (Styled("\n".join(lines), QUIET),))


def _failed(failure: Failure) -> tuple[str, str]:
    extra = [failure.method, failure.path, {True: "pinned", False: "pageable", None: None}[failure.pinned]]
    details = ", ".join(plain(str(word)) for word in (*extra, failure.group) if word)
    what = f"{failure.kind} {plain(failure.way)}"
    return f"{what}{f' ({details})' if details else ''}", f"{plain(failure.reason)}: {plain(failure.says)}"


def _notes(bandwidth: Bandwidth) -> Iterable[str]:
    samples = bandwidth.samples
    yield from _not_used(samples)
    yield from _collapsed(map(plain, bandwidth.notes))
    yield from _discarded(samples.of(CopyRate))
    yield from _conditions(list(chain.from_iterable(sample.conditions for sample in samples)))
    sources = filter(None, (sample.expectation.source for sample in samples.of(Rate)))
    yield from (f"Expected: {source}" for source in _collapsed(map(plain, sources)))


_WHY_NOT: dict[Invalid, str] = {
    "cache": "faster than the memory of the GPU: the speed of its cache",
    "above_link": "faster than the widest link of the GPU",
    "inconsistent": "contradicted by the other numbers of the same path",
}


def _not_used(samples: Sequence[Sample]) -> Iterable[str]:
    """Yield, for each reason, which numbers have a mark and are not used; then which runs disagree."""
    unused = grouped(
        (sample.invalid, _number_in_words(sample)) for sample in samples if sample.invalid is not None
    )
    for reason, numbers in unused.items():
        yield f"{INVALID_MARK}: not used, {_WHY_NOT[reason]}: {_some(numbers)}"
    runs = [sample for sample in samples if sample.invalid is None and not sample.runs_agree]
    if differing := [f"{_number_in_words(run)} ({len(run.runs)} runs)" for run in runs]:
        yield f"runs disagree; the range is shown without a verdict: {_some(differing)}"


def _number_in_words(sample: Sample) -> str:
    return f"{sample.kind} {plain(sample.way)} {cell(sample)}"


def _some(words: Sequence[str]) -> str:
    more = f"; and {len(words) - _WHATS_NAMED} more" if len(words) > _WHATS_NAMED else ""
    return "; ".join(words[:_WHATS_NAMED]) + more


def _collapsed(texts: Iterable[str]) -> list[str]:
    """Join texts that differ only in the number of one GPU: `GPU 0-3`."""
    gpus: dict[tuple[str, ...], list[int]] = {}
    for text in texts:
        before, *rest = _ONE_GPU.split(text)
        if len(rest) == 2:
            gpus.setdefault((before, rest[1]), []).append(int(rest[0]))
        else:
            gpus[(text,)] = []
    return [f"GPU {index_ranges(numbers)}".join(parts) for parts, numbers in gpus.items()]


_ONE_GPU = re.compile(r"\bGPU (\d+)\b")


def _discarded(samples: Iterable[CopyRate]) -> Iterable[str]:
    by_reason = grouped(
        (plain(sample.discarded_because or "clocks were still ramping up"), sample)
        for sample in samples
        if sample.discarded_gb_per_s
    )
    for why, discarded in by_reason.items():
        gpus = {gpu for sample in discarded for gpu in sample.gpus}
        where = f" on GPU {index_ranges(gpus)}" if gpus else ""
        count = sum(len(sample.discarded_gb_per_s) for sample in discarded)
        yield f"{counted(count, 'repeat')}{where} discarded: {why}"


def _conditions(conditions: Sequence[Conditions]) -> Iterable[str]:
    slowed = grouped(
        (plain(reason), condition.gpu)
        for condition in conditions
        for reason in condition.throttle_reasons or ()
        if reason not in _HARMLESS
    )
    for reason, gpus in slowed.items():
        yield f"GPU {index_ranges(set(gpus))} was throttled while measured: {reason}"
    if changed := {condition.gpu for condition in conditions if condition.link_changes}:
        yield f"the PCIe link of GPU {index_ranges(changed)} changed while measured"


_HARMLESS = ("gpu_idle", "idle", "none")  # copies leave the cores idle, so these are not a cause
