"""The first screen of a bandwidth report: a verdict in one sentence, findings, what was not measured."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from gputopo.reference import NARROW_LANES, observed_link, over_nvlink
from gputopo.report.bandwidth.numbers import number
from gputopo.report.document import Section, Styled, block_lines
from gputopo.report.findings import SCREEN_WIDTH, counts_in_words, findings_block, short_findings
from gputopo.report.layout import SEVERITY_STYLES, plain
from gputopo.report.units import counted, seconds
from gputopo.values.bandwidth import (
    AGREE_SHARE,
    KERNELS,
    Bandwidth,
    CollectiveRate,
    CopyRate,
    Kind,
    NotMeasured,
    Pair,
    Rate,
    TransferRate,
)
from gputopo.values.ends import End
from gputopo.values.finding import Finding
from gputopo.values.grouping import grouped, maxima
from gputopo.values.index_ranges import gpu_ranges, index_ranges
from gputopo.values.machine import Machine
from gputopo.values.rates import SAME_SPEED
from gputopo.values.words import date_in_words

_MAX_NAMED = 2
_MIN_PEERS = 3  # rates; fewer are not compared with one another
_LEVELS = {"quick": "quick", "full": "full: every size"}
_OF_GPU: dict[Kind, str] = {
    "h2d": "copies from the host",
    "d2h": "copies to the host",
    "bidirectional": "copies with the host both ways",
    "d2d_local": "copies in GPU memory",
}
_AGAINST = (
    "expected_gb_per_s",
    "as_its_equals_gb_per_s",
    "best_gb_per_s",
    "peers_gb_per_s",
    "staged_gb_per_s",
)


def summary_parts(
    machine: Machine, bandwidth: Bandwidth, findings: Sequence[Finding], *, whole: bool
) -> Iterator[Section]:
    """Yield the verdict and the findings.

    `whole`: with all remedies, else those that fit above the tables.
    """
    serious = [finding for finding in findings if finding.severity != "info"]
    style = SEVERITY_STYLES[serious[0].severity] if serious else ""
    answer = Styled(verdict(machine, bandwidth, findings), style)
    if whole:
        yield Section("", (answer,))
        items = findings_block(findings, nothing="")
        yield Section("Findings", (items,) if items.items else ())
    else:
        above = len(block_lines(answer, SCREEN_WIDTH))
        items = short_findings(findings, above=above, beside=0, details="(--all)")
        yield Section("", (answer, items) if items.items else (answer,))


def verdict(machine: Machine, bandwidth: Bandwidth, findings: Sequence[Finding]) -> str:
    """Return the answer in one sentence.

    "As expected" includes only rates whose copy has an expected rate. Other rates are compared with one
    another.
    """
    serious = [finding for finding in findings if finding.severity != "info"]
    ended = "Ended early: " if bandwidth.source == "live" else "The capture ends early: "
    ended = "" if bandwidth.complete else ended
    if serious:
        named = "; ".join(dict.fromkeys(map(_short, serious[:_MAX_NAMED])))
        more = "; ..." if len(serious) > _MAX_NAMED else "."
        return f"{ended}{counts_in_words(serious)}: {named}{more}"
    if bandwidth.soak is not None and bandwidth.soak.intervals:
        minutes = bandwidth.soak.intervals[-1].end_s / 60
        return f"{ended}No error and no falling rate in {minutes:.3g} min under load."
    if not bandwidth.samples:
        return f"{ended}Nothing was measured."
    rates = [sample for sample in bandwidth.samples.of(Rate) if _counts(sample)]
    judged = [sample for sample in rates if _has_reference(sample)]
    rest = [
        sample
        for sample in rates
        if not (_has_reference(sample) or sample.with_reverse)
        if not (isinstance(sample, CopyRate) and sample.method in KERNELS)
    ]
    if not judged and bandwidth.source == "live" and any(isinstance(sample, TransferRate) for sample in rest):
        return f"{ended}No host or pair is slow: hosts were only compared with each other."
    notes = [
        finding for finding in findings if finding.id in ("bandwidth.below_expected", "pcie.slot_narrow")
    ]
    clauses = [f"{_short(note)} (possibly no fault)" for note in notes[:1]]
    if judged:
        clauses += [] if notes else [_as_expected(judged)]
        clauses += [*_narrow_links(judged, machine)]
        clauses += [kind.says for kind in _peers(judged, machine) if kind.is_one_gpu][:1]
    if peers := _peers(rest, machine):
        clauses.append(f"{peers[0].says} (no reference for {peers[0].name})")
    elif rest and clauses:
        clauses.append(f"{len(rest)} not judged: no reference data")
    answer = "; ".join(clauses) or "not judged: no reference for these rates"
    return f"{ended}{answer[0].upper()}{answer[1:]}."


def _counts(sample: Rate) -> bool:
    """Return whether a sample is a rate of a link or memory by itself, or with only its other direction."""
    of_one_path = sample.with_reverse and sample.expectation.gb_per_s is not None
    alone = sample.group is None or sample.kind == "d2d_local" or of_one_path
    is_pageable = isinstance(sample, CopyRate) and sample.pinned is False
    return sample.kind != "host_memory" and sample.is_large and alone and not is_pageable


def _has_reference(sample: Rate) -> bool:
    """Return whether a sample has an expected rate that its kind of copy reaches, not only an upper limit."""
    expected = sample.expectation
    return expected.gb_per_s is not None and not expected.is_limit and sample.is_by_copy_engine


def _as_expected(judged: Sequence[Rate]) -> str:
    """Return how many rates are as expected, that is, not below their floor.

    If any sample of the same copy reached the expected rate, slower ones are no fault: clocks were still
    rising (`bandwidth.woke_up`).
    """
    ways = grouped(
        (
            (
                sample.kind,
                sample.ends,
                sample.path if isinstance(sample, CopyRate) else None,
                sample.with_reverse,
            ),
            sample,
        )
        for sample in judged
    )
    best = {
        way: max((isinstance(rate, CollectiveRate) and rate.bus_gb_per_s) or rate.rate for rate in rates)
        for way, rates in ways.items()
    }
    floors = [(way, sample.expectation.floor_gb_per_s) for way, samples in ways.items() for sample in samples]
    low = sum(best[way] < floor for way, floor in floors)
    count = len(judged)
    if low:
        return f"{count - low} of {counted(count, 'rate')} as expected, {low} lower"
    return f"all {counted(count, 'rate')} as expected" if count > 1 else "as expected"


def _narrow_links(judged: Iterable[Rate], machine: Machine) -> Iterator[str]:
    """Yield the GPUs whose links are known to have few lanes: `GPUs 0-5 have x1 links (0.8 GB/s)`."""
    gpus = {End.of_gpus(gpu.index): gpu for gpu in machine.gpus}
    links = (
        (sample, gpu.index, observed_link(gpu, sample, machine))
        for sample in judged
        if sample.kind == "h2d" and (gpu := gpus.get(sample.destination))
    )
    narrow = grouped(
        (seen[0].width, (gpu, sample.rate))
        for sample, gpu, seen in links
        if seen and seen[0].width <= NARROW_LANES
    )
    for width, rates in narrow.items():
        best = maxima(rates)
        have = f"have x{width} links" if len(best) > 1 else f"has an x{width} link"
        yield f"{gpu_ranges(sorted(best))} {have} ({max(best.values()):.1f} GB/s)"


class _Peers(NamedTuple):
    """How the rates of one kind of copy compare. The kind with the largest difference sorts first."""

    is_alike: bool
    is_of_gpus: bool
    share: float  # the slowest rate as a share of the fastest
    name: str
    says: str
    is_one_gpu: bool  # whether one GPU is slow with every peer


def _peers(samples: Sequence[Rate], machine: Machine) -> list[_Peers]:
    """Compare the rates of each kind of copy with one another."""
    copies = [sample for sample in samples if isinstance(sample, CopyRate)]
    over_nvlinks = over_nvlink(copies, machine)
    kinds = grouped((_kind_of(copy, over_nvlinks), copy) for copy in copies)
    compared = []
    for name, of_kind in kinds.items():
        rates = maxima(((sample.source, sample.destination), sample.rate) for sample in of_kind)
        if len(rates) < _MIN_PEERS or name is None:
            continue
        share = min(rates.values()) / max(rates.values())
        pairs = maxima((pair, sample.rate) for sample in of_kind if (pair := sample.pair))
        groups = sorted(speed_groups(pairs), key=len)
        is_alike = len(groups) < 2 and share * SAME_SPEED >= 1
        count = f"{len(rates)} {'pairs' if pairs else 'GPUs'}"
        says = f"all {count} alike" if is_alike else f"{count} differ"
        says = _divided(pairs, groups) if len(groups) > 1 else f"{says}: {_span(rates.values())} GB/s"
        is_one_gpu = len(groups) == 2 and len(groups[0]) == 1
        compared.append(_Peers(is_alike, not pairs, share, name, says, is_one_gpu))
    return sorted(compared)


def _kind_of(sample: CopyRate, over_nvlinks: frozenset[Pair]) -> str | None:
    pair = sample.pair
    if pair is None:
        return _OF_GPU.get(sample.kind)
    path = "NVLink" if (min(pair), max(pair)) in over_nvlinks else "direct"
    path = "staged" if sample.kind == "p2p_staged" else sample.path or path
    way = "reads" if sample.method == "copy_engine_read" else "copies"
    return f"{path} {way}{' both ways' if sample.kind == 'bidirectional' else ''}"


def _divided(rates: Mapping[Pair, float], groups: Sequence[tuple[int, ...]]) -> str:
    """Return the groups of GPUs inside which pairs are faster than between groups, or the only slow GPU."""
    place = {gpu: group for group in groups for gpu in group}
    within = _span(rate for (a, b), rate in rates.items() if place[a] == place[b])
    between = _span(rate for (a, b), rate in rates.items() if place[a] != place[b])
    first, *others = groups
    if len(first) == len(others) == 1:
        return f"GPU {first[0]} is slow with every peer: {between} GB/s, other pairs {within}"
    named = " and ".join(
        [", ".join(map(index_ranges, sorted(groups)[:-1])), index_ranges(sorted(groups)[-1])]
    )
    return (
        f"{within} GB/s within GPUs {named}, {between} between them, for example across CPU "
        "sockets or switches"
    )


def _span(rates: Iterable[float]) -> str:
    ordered = sorted(rates)
    return " to ".join(dict.fromkeys((number(ordered[0]), number(ordered[-1]))))


def _short(finding: Finding) -> str:
    """Return a finding in a few words: `GPU 2 at 3.1 of 12.3 GB/s: Gen3 x4`."""
    cases = [*finding.evidence.get("gpus", {}).values()] if "gpus" in finding.evidence else [finding.evidence]
    rates_of_cases = [
        (*rates, case) for case in cases if isinstance(case, Mapping) and (rates := _rates(case))
    ]
    gpus = finding.subject.gpus
    where = gpu_ranges(gpus)
    if rates_of_cases:
        rate, against, evidence = min(rates_of_cases, key=lambda rates: rates[0] / rates[1])
        fits = evidence.get("fits") or []
        pairs = evidence.get("pairs") or ()
        where = where if gpus else f"{len(pairs)} pairs" if len(pairs) > 1 else finding.subject.text
        return f"{where} at {number(rate)} of {number(against)} GB/s{f': {fits[0]}' if fits else ''}"
    fits = [case["fits"][0] for case in cases if isinstance(case, Mapping) and case.get("fits")]
    if gpus and fits:
        return f"{where} as fast as {fits[0]}"
    says = finding.says.partition(": ")[2] if finding.says.startswith("GPU") else finding.says
    says = re.split("; |: ", re.sub(r" \([^)]*\)", "", says))[0]
    return f"{where}: {says}" if gpus else says


def _rates(evidence: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the rate in the evidence and its reference; for several pairs, of the worst pair."""
    if isinstance(pairs := evidence.get("pairs"), Mapping):
        rates_of_pairs = [
            rates for pair in pairs.values() if isinstance(pair, Mapping) and (rates := _rates(pair))
        ]
        if rates_of_pairs:
            return min(rates_of_pairs, key=lambda rates: rates[0] / rates[1])
    rate = evidence.get("gb_per_s", evidence.get("direct_gb_per_s"))
    against = next((evidence[name] for name in _AGAINST if evidence.get(name)), None)
    if isinstance(against, Mapping):
        against = max(against.values(), default=None)
    return (rate, against) if isinstance(rate, float) and isinstance(against, float) else None


def about(machine: Machine, bandwidth: Bandwidth) -> str:
    """Return in one line which tool measured which GPUs, and when."""
    words = [" + ".join(dict.fromkeys(bandwidth.source.split(" + ")))]
    if bandwidth.level is not None:
        words.append(_LEVELS[bandwidth.level])
    if bandwidth.soak is not None:
        words.append(f"soak, {bandwidth.soak.asked_s / 60:.3g} min")
    if bandwidth.measured_at is not None:
        words.append(date_in_words(bandwidth.measured_at))
    if bandwidth.duration_s is not None:
        words.append(seconds(bandwidth.duration_s))
    versions = (("driver", bandwidth.driver_version), ("CUDA", bandwidth.cuda_version))
    words += [f"{what} {version}" for what, version in versions if version]
    gpus = bandwidth.gpus
    by_name = grouped((gpu.name, gpu.index) for gpu in machine.gpus if gpu.index in gpus and gpu.name)
    names = [f"GPU {index_ranges(indices)} {name}" for name, indices in by_name.items()]
    if missed := sum(line.not_understood for line in machine.lines):
        names.append(f"{counted(missed, 'line')} not understood: gputopo inspect --from lists them")
    return plain("; ".join(filter(None, (", ".join(words), *names))))


def not_measured_line(entries: Sequence[NotMeasured]) -> str:
    """Return in one line how many things were not measured, and the reasons."""
    whats = {entry.what for entry in entries}
    reasons = list(dict.fromkeys(entry.reason for entry in entries))
    more = f" and {counted(len(reasons) - _MAX_NAMED, 'other reason')}" if len(reasons) > _MAX_NAMED else ""
    first = next(iter(dict.fromkeys(entry.what for entry in entries)))
    what = first if len(whats) == 1 else f"{len(whats)} copies or tests"
    return plain(f"Not measured: {what} ({'; '.join(reasons[:_MAX_NAMED])}{more}).")


def speed_groups(rates: Mapping[Pair, float]) -> list[tuple[int, ...]]:
    """Return the GPUs in groups: every pair within a group is faster than every pair between groups.

    A group of one GPU is slow with every peer. There is one group if the widest gap between the rates is
    within noise or does not divide the GPUs in this way.
    """
    worst = {pair: min(speed, rates.get(pair[::-1], speed)) for pair, speed in rates.items()}
    gaps = [(slow / fast, fast) for slow, fast in pairwise(sorted(worst.values()))]
    share, limit = min(gaps, default=(1.0, 0.0))
    group = {gpu: {gpu} for pair in rates for gpu in pair}
    for a, b in (pair for pair, speed in worst.items() if speed >= limit):
        group[a] |= group[b]
        group.update(dict.fromkeys(group[a], group[a]))
    divided = all((speed >= limit) == (group[a] is group[b]) for (a, b), speed in worst.items())
    if share > 1 - AGREE_SHARE or not divided:
        return [tuple(sorted(group))]
    return sorted({tuple(sorted(gpus)) for gpus in group.values()})
