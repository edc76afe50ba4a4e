"""The first screen of a bandwidth report: a verdict in one sentence, findings, what was not measured."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gputopo.copies.collectives import is_limit
from gputopo.copies.expected import model_link, observed_link
from gputopo.copies.numbers import Pair, by_copy_engine, floor_of, host_gpu, is_large, pair_of, rate
from gputopo.copies.pair_speeds import SAME_SPEED, speed_groups
from gputopo.copies.physics import over_nvlink
from gputopo.findings import Finding
from gputopo.findings.compare import grouped, maxima
from gputopo.findings.pcie import NARROW_LANES
from gputopo.report import units
from gputopo.report.bandwidth.numbers import number
from gputopo.report.document import Section, Styled, block_lines
from gputopo.report.findings import SCREEN_WIDTH, counts_in_words, findings_block, short_findings
from gputopo.report.layout import SEVERITY_STYLES, plain
from gputopo.report.units import counted, seconds
from gputopo.runs.history import date_in_words
from gputopo.topology.hops import class_name
from gputopo.values.bandwidth import (
    COLLECTIVES,
    KERNELS,
    NETWORK,
    Bandwidth,
    Kind,
    NotMeasured,
    Sample,
    gpu_of,
    gpus_of,
)
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Machine

_MAX_NAMED = 2
_MIN_GPUS = 3  # fewer have no peers to be compared with
_LEVELS = {"quick": "quick", "full": "full: every size"}
_BETWEEN: dict[Kind, str] = {"p2p_direct": "direct copies", "p2p_staged": "staged copies"}
_OF_GPU: dict[Kind, str] = {
    "h2d": "copies from the host",
    "d2h": "copies to the host",
    "bidirectional": "copies with the host both ways",
    "d2d_local": "copies in GPU memory",
}
_RATES = (*_BETWEEN, *_OF_GPU, *NETWORK, *COLLECTIVES)
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
    """Yield the verdict and the findings: all with their remedies, or as many as fit above the tables."""
    serious = [one for one in findings if one.severity != "info"]
    style = SEVERITY_STYLES[serious[0].severity] if serious else ""
    answer = Styled(verdict(machine, bandwidth, findings), style)
    if whole:
        yield Section("", (answer,))
        found = findings_block(findings, nothing="")
        yield Section("Findings", (found,) if found.items else ())
    else:
        above = len(block_lines(answer, SCREEN_WIDTH))
        found = short_findings(findings, above=above, beside=0, details="(--all)")
        yield Section("", (answer, found) if found.items else (answer,))


def verdict(machine: Machine, bandwidth: Bandwidth, findings: Sequence[Finding]) -> str:
    """Return the answer in one sentence.

    As expected is only what was compared with what that copy can reach. Other numbers are compared with one
    another.
    """
    serious = [one for one in findings if one.severity != "info"]
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
    rates = [one for one in bandwidth.samples if _counts(one)]
    judged = [one for one in rates if _has_reference(one)]
    rest = [
        one for one in rates if not _has_reference(one) and not one.with_reverse and one.method not in KERNELS
    ]
    if not judged and bandwidth.source == "live" and any(one.kind in NETWORK for one in rest):
        return f"{ended}No host or pair is slow: hosts are compared with one another only."
    notes = [one for one in findings if one.id in ("bandwidth.below_expected", "pcie.slot_narrow")]
    clauses = [f"{_short(one)} (no fault for certain)" for one in notes[:1]]
    if judged:
        clauses += [] if notes else [_as_expected(judged)]
        clauses += [*_narrow_links(judged, machine), *_slow_with_every_peer(judged, machine)]
    if peers := _peers(rest, machine):
        clauses.append(peers)
    elif rest and clauses:
        clauses.append(f"{len(rest)} not judged: no reference data")
    answer = "; ".join(clauses) or "not judged: no reference data for these numbers"
    return f"{ended}{answer[0].upper()}{answer[1:]}."


def _counts(sample: Sample) -> bool:
    """Return whether a sample is a rate of a link or memory on its own, or with only its other direction."""
    of_one_path = sample.with_reverse and sample.expected_gb_per_s is not None
    alone = sample.group is None or sample.kind == "d2d_local" or of_one_path
    return sample.kind in _RATES and is_large(sample) and alone and sample.pinned is not False


def _has_reference(sample: Sample) -> bool:
    """Return whether a sample has an expectation that copies of its kind reach: no limit, none of writes."""
    return sample.expected_gb_per_s is not None and not is_limit(sample) and by_copy_engine(sample)


def _as_expected(judged: Sequence[Sample]) -> str:
    """Return how many rates are as expected: none below its floor.

    Where any of the same copies reached what is expected, its clocks were still rising (`bandwidth.woke_up`).
    """
    ways = grouped(
        ((one.kind, one.source, one.destination, one.path, one.with_reverse), one) for one in judged
    )
    best = {way: max(one.bus_gb_per_s or rate(one) for one in of) for way, of in ways.items()}
    low = sum(best[way] < floor_of(one) for way, of in ways.items() for one in of)
    count = len(judged)
    if low:
        return f"{count - low} of {counted(count, 'rate')} as expected, {low} lower"
    return f"all {counted(count, 'rate')} as expected" if count > 1 else "as expected"


def _narrow_links(judged: Iterable[Sample], machine: Machine) -> Iterator[str]:
    """Yield the GPUs whose links are known to have few lanes, `GPUs 0-5 have x1 links (0.8 GB/s)`."""
    best = maxima(
        (gpu, rate(one))
        for one in judged
        if one.kind in ("h2d", "d2h", *_BETWEEN)
        for gpu in map(gpu_of, (one.source, one.destination))
        if gpu is not None
    )
    narrow = []
    for gpu in machine.gpus:
        link, _ = observed_link(gpu, None, machine) or (None, "")
        if link and gpu.index in best and link.width <= NARROW_LANES.value and link != model_link(gpu):
            narrow.append((link.width, gpu.index))
    for width, gpus in grouped(narrow).items():
        have = f"have x{width} links" if len(gpus) > 1 else f"has an x{width} link"
        yield f"{units.gpus(gpus)} {have} ({max(best[gpu] for gpu in gpus):.1g} GB/s)"


def _slow_with_every_peer(judged: Iterable[Sample], machine: Machine) -> Iterator[str]:
    """Yield the GPU that is slower than the others with every peer, though as expected."""
    by_kind = grouped((one.kind, one) for one in judged if pair_of(one) and one.kind in _BETWEEN)
    for samples in by_kind.values():
        groups = speed_groups(_by_pair(samples, of_expected=True))
        alone = [group for group in groups if len(group) == 1]
        if len(alone) == 1 and len(groups) == 2:
            yield _groups_in_words(_by_pair(samples), alone, machine)
            return


def _by_pair(samples: Iterable[Sample], *, of_expected: bool = False) -> dict[Pair, float]:
    """Return the rate of the fastest of the samples of each pair, or its share of what is expected."""
    return maxima(
        (pair, rate(one) / (one.expected_gb_per_s or 1.0) if of_expected else rate(one))
        for one in samples
        if (pair := pair_of(one))
    )


def _peers(rest: Sequence[Sample], machine: Machine) -> str | None:
    """Return how numbers without a reference compare with one another, of the kind that differs most."""
    fast = over_nvlink(rest, machine)
    kinds = grouped((name, one) for one in rest if (name := _kind_of(one, fast)))
    compared: list[tuple[bool, bool, float, str]] = []
    for name, samples in kinds.items():
        pairs = _by_pair(samples)
        of_gpus = maxima((place, rate(one)) for one in samples for place in (one.source, one.destination))
        gpus = {gpu for place in of_gpus if (gpu := gpu_of(place)) is not None}
        rates = [*pairs.values()] or [of_gpus[f"gpu:{gpu}"] for gpu in gpus]
        if len(gpus) < _MIN_GPUS:
            continue
        unit = f"{len(rates)} {'pairs' if pairs else 'GPUs'}"
        groups = speed_groups(pairs)
        is_alike = len(groups) < 2 and max(rates) <= SAME_SPEED * min(rates)
        if is_alike:
            says = f"all {unit} alike: {_span(rates)} GB/s"
        elif len(groups) > 1:
            alone = [group for group in groups if len(group) == 1]
            is_one_group = len(groups) - len(alone) == 1
            says = _groups_in_words(pairs, alone if is_one_group else groups, machine)
        else:
            says = f"{unit} differ: {_span(rates)} GB/s"
        says += f" (no reference for {name})"
        compared.append((is_alike, not pairs, min(rates) / max(rates), says))
    return min(compared)[-1] if compared else None


def _kind_of(sample: Sample, over_nvlinks: frozenset[Pair]) -> str | None:
    pair = pair_of(sample)
    if pair is None:
        return (
            _OF_GPU.get(sample.kind) if host_gpu(sample) is not None or sample.kind == "d2d_local" else None
        )
    is_nvlink = (min(pair), max(pair)) in over_nvlinks and "staged" not in (sample.path, sample.kind[4:])
    way = "reads" if sample.method == "copy_engine_read" else "copies"
    if sample.kind == "bidirectional":
        return f"{'NVLink' if is_nvlink else sample.path or 'direct'} {way} both ways"
    return f"NVLink {way}" if is_nvlink else _BETWEEN.get(sample.kind, "").replace("copies", way)


def _groups_in_words(rates: Mapping[Pair, float], groups: Sequence[tuple[int, ...]], machine: Machine) -> str:
    """Return GPUs that are slow with every peer, or the groups within which pairs are faster than between."""
    place = {gpu: group for group in groups for gpu in group}
    if all(len(group) == 1 for group in groups):
        own = _span([gb_per_s for pair, gb_per_s in rates.items() if {*pair} & place.keys()])
        others = _span([gb_per_s for pair, gb_per_s in rates.items() if not {*pair} & place.keys()])
        verb = "is" if len(place) == 1 else "are"
        return f"{units.gpus(sorted(place))} {verb} slow with every peer: {own} GB/s, other pairs {others}"
    within = [pair for pair in rates if place[pair[0]] == place[pair[1]]]
    between = [pair for pair in rates if pair not in within]
    classes = [
        " or ".join(sorted({class_name(machine.link(*pair)) for pair in own})) for own in (within, between)
    ]
    paths = "CPU sockets or switches" if "unknown" in classes else f"{classes[1]}, {classes[0]} within"
    *first, last = map(index_ranges, groups)
    return (
        f"{_span([rates[pair] for pair in within])} GB/s within GPUs {', '.join(first)} and {last}, "
        f"{_span([rates[pair] for pair in between])} between them, as across {paths}"
    )


def _span(rates: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(map(number, (min(rates), max(rates)))))


def _short(finding: Finding) -> str:
    """Return a finding in a few words: `GPU 2 at 3.1 of 12.3 GB/s: Gen3 x4`."""
    cases = [*finding.evidence.get("gpus", {}).values()] if "gpus" in finding.evidence else [finding.evidence]
    found = [(*rates, one) for one in cases if isinstance(one, Mapping) and (rates := _rates(one))]
    gpus = finding.subject.gpus
    where = units.gpus(gpus)
    if found:
        own, against, evidence = min(found, key=lambda one: one[0] / one[1])
        fits = evidence.get("fits") or []
        pairs = evidence.get("pairs") or ()
        where = where if gpus else f"{len(pairs)} pairs" if len(pairs) > 1 else finding.subject.text
        return f"{where} at {number(own)} of {number(against)} GB/s{f': {fits[0]}' if fits else ''}"
    fits = [one["fits"][0] for one in cases if isinstance(one, Mapping) and one.get("fits")]
    if gpus and fits:
        return f"{where} as fast as {fits[0]}"
    says = finding.says.partition(": ")[2] if finding.says.startswith("GPU") else finding.says
    says = re.split("; |: ", re.sub(r" \([^)]*\)", "", says))[0]
    return f"{where}: {says}" if gpus else says


def _rates(evidence: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the rate that evidence has, and what it is compared with: of several pairs the worst."""
    if isinstance(pairs := evidence.get("pairs"), Mapping):
        found = [rates for one in pairs.values() if isinstance(one, Mapping) and (rates := _rates(one))]
        if found:
            return min(found, key=lambda one: one[0] / one[1])
    own = evidence.get("gb_per_s", evidence.get("direct_gb_per_s"))
    against = next((evidence[name] for name in _AGAINST if evidence.get(name)), None)
    if isinstance(against, Mapping):
        against = max(against.values(), default=None)
    return (own, against) if isinstance(own, float) and isinstance(against, float) else None


def about(machine: Machine, bandwidth: Bandwidth) -> str:
    """Return what measured when and which GPUs, in one line."""
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
    places = {place for one in bandwidth.samples for place in (one.source, one.destination)}
    places |= {place for one in bandwidth.failures for place in (one.source, one.destination)}
    gpus = {gpu for place in places for gpu in gpus_of(place)}
    by_name: dict[str, list[int]] = {}
    for gpu in machine.gpus:
        if gpu.index in gpus and gpu.name:
            by_name.setdefault(gpu.name, []).append(gpu.index)
    names = [f"GPU {index_ranges(indices)} {name}" for name, indices in by_name.items()]
    if missed := sum(one.not_understood for one in machine.lines):
        names.append(f"{counted(missed, 'line')} not understood: gputopo inspect --from lists them")
    return plain("; ".join(filter(None, (", ".join(words), *names))))


def not_measured_line(entries: Sequence[NotMeasured]) -> str:
    """Return what was not measured in one line: how many, and the reasons."""
    whats = {one.what for one in entries}
    reasons = list(dict.fromkeys(one.reason for one in entries))
    more = f" and {counted(len(reasons) - _MAX_NAMED, 'other reason')}" if len(reasons) > _MAX_NAMED else ""
    first = next(iter(dict.fromkeys(one.what for one in entries)))
    what = first if len(whats) == 1 else f"{len(whats)} copies or tests"
    return plain(f"Not measured: {what} ({'; '.join(reasons[:_MAX_NAMED])}{more}).")
