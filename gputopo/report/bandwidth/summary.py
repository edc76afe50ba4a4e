"""The first screen of a bandwidth report: a verdict in one sentence, findings, what was not measured."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gputopo.copies.numbers import by_copy_engine, is_large, rate
from gputopo.copies.sharing import HOST_KINDS
from gputopo.findings import Finding
from gputopo.report import units
from gputopo.report.bandwidth.numbers import number
from gputopo.report.document import Section, Styled, block_lines
from gputopo.report.findings import SCREEN_WIDTH, counts_in_words, findings_block, short_findings
from gputopo.report.layout import SEVERITY_STYLES, plain
from gputopo.report.units import counted, seconds
from gputopo.runs.history import date_in_words
from gputopo.values.bandwidth import COLLECTIVES, NETWORK, Bandwidth, NotMeasured, Sample, gpus_of
from gputopo.values.index_ranges import index_ranges
from gputopo.values.machine import Machine

_MAX_NAMED = 2
_LOW_SHARE = 0.8  # of the usual rate of a link that is known by the model alone
_LEVELS = {"quick": "quick", "full": "full: every size"}
_LINKS = ("h2d", "d2h", "bidirectional", "p2p_direct", "p2p_staged", "d2d_local", *NETWORK, *COLLECTIVES)
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
    answer = Styled(verdict(bandwidth, findings), style)
    if whole:
        yield Section("", (answer,))
        found = findings_block(findings, nothing="")
        yield Section("Findings", (found,) if found.items else ())
    else:
        above = len(block_lines(answer, SCREEN_WIDTH))
        found = short_findings(findings, above=above, beside=0, details="(--all)")
        yield Section("", (answer, found) if found.items else (answer,))


def verdict(bandwidth: Bandwidth, findings: Sequence[Finding]) -> str:
    """Return the answer in one sentence."""
    links = [
        one
        for one in bandwidth.samples
        if one.kind in _LINKS and is_large(one) and one.group is None
        if by_copy_engine(one) and one.pinned is not False
    ]
    judged = sum(one.expected_gb_per_s is not None for one in links)
    rest = len(links) - judged
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
    if not judged and bandwidth.source == "live" and any(one.kind in NETWORK for one in links):
        return f"{ended}No host or pair is slow: hosts are compared with one another only."
    if not judged:
        return f"{ended}Not judged: no reference data for these numbers."
    unjudged = f"; {rest} not judged: no reference data" if rest else ""
    if notes := [one for one in findings if one.id in ("bandwidth.below_expected", "pcie.slot_narrow")]:
        return f"{ended}{_short(notes[0])} (no fault for certain){unjudged}."
    if low := _low(links, bandwidth.samples):
        return f"{ended}{judged - low} of {counted(judged, 'rate')} as expected, {low} lower{unjudged}."
    return (
        f"{ended}All {counted(judged, 'rate')} as expected{unjudged}."
        if judged > 1
        else f"{ended}As expected{unjudged}."
    )


def _low(links: Sequence[Sample], samples: Sequence[Sample]) -> int:
    """Return how many rates are low, though nothing is wrong for certain: a slot of few lanes.

    Where any of the same copies reached what is expected, its clocks were still rising (`bandwidth.woke_up`).
    """
    best: dict[tuple[str, str, str], float] = {}
    for one in samples:
        way = one.kind, one.source, one.destination
        best[way] = max(best.get(way, 0.0), one.bus_gb_per_s or rate(one))  # of a collective: its bus's
    low = 0
    for one in links:
        floor = one.expected_low_gb_per_s
        if floor is None and one.kind in HOST_KINDS:
            floor = _LOW_SHARE * (one.expected_gb_per_s or 0.0)
        low += best[one.kind, one.source, one.destination] < (floor or 0.0)
    return low


def _short(finding: Finding) -> str:
    """Return a finding in a few words: `GPU 2 at 3.1 of 12.3 GB/s: Gen3 x4`."""
    cases = [*finding.evidence.get("gpus", {}).values()] if "gpus" in finding.evidence else [finding.evidence]
    found = [(*rates, one) for one in cases if isinstance(one, Mapping) and (rates := _rates(one))]
    gpus = finding.subject.gpus
    where = units.gpus(gpus)
    if found:
        own, against, evidence = min(found, key=lambda one: one[0] / one[1])
        fits = evidence.get("fits") or []
        where = where if gpus else finding.subject.text
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
