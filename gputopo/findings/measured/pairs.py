"""Measured copies between GPUs: direct slower than staged, pairs slower than their peers or the expected "
"rate."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from gputopo.copies.expected import with_expectations
from gputopo.copies.numbers import Pair, noise_share, pair_copies, rate
from gputopo.findings.measured.links import BELOW_EXPECTED
from gputopo.findings.rule import Finding, Rule, Threshold, check
from gputopo.topology.hops import class_name
from gputopo.values.bandwidth import Bandwidth, Kind, Path, Sample
from gputopo.values.index_ranges import pairs_in_words
from gputopo.values.machine import Machine
from gputopo.values.subject import MACHINE, Subject

SLOWER_SHARE = Threshold(
    "direct copies slower than staged ones",
    0.03,
    "below the staged rate",
    "Published matrices of one run repeat within 2 % (0.77 and 0.79 GB/s for one staged pair of 7gforce-v2); "
    "direct copies across the host bridge of 7gforce are 3.9 to 7.6 % slower (0.73 against 0.76 to 0.79 "
    "GB/s)",
)
PRINTED_GB_PER_S = Threshold(
    "rounding of printed rates", 0.01, "GB/s", "The tools print two decimals: 0.40 and 0.41 may be the same"
)
DEVIATIONS = Threshold(
    "noise", 3.0, "standard deviations of both numbers together", "99.7 % of normally distributed repeats"
)
PAIR_SHARE = Threshold(
    "pair slower than its peers",
    0.90,
    "of the expected rate",
    "The same pairs measured twice by p2pBandwidthLatencyTest differ by up to 7 % during clock ramp-up "
    "(10.44 and 11.26 GB/s between GTX 1080 Ti). Ours",
)
UNKNOWN_PAIR_SHARE = Threshold(
    "pair slower than its peers, where no hop is known",
    0.50,
    "of the expected rate",
    "Near and far pairs may be mixed, which differ by up to a factor of two without a fault (13.2 and 6.5 "
    "GB/s in one machine with RTX 3090)",
)
MIN_PEERS = Threshold("peers of a pair", 3, "pairs", "A median of fewer is not meaningful")

DIRECT_SLOWER = Rule(
    "p2p.direct_slower_than_staged",
    title="direct copies (P2P) slower than those staged through host memory",
    remedy="Let these pairs copy through host memory: NCCL_P2P_LEVEL=PXB (P2P within switches only) or "
    "NCCL_P2P_DISABLE=1. On one switch look for ACS and the IOMMU (gputopo inspect: p2p.acs_on, p2p.iommu).",
    thresholds=(SLOWER_SHARE, PRINTED_GB_PER_S, DEVIATIONS),
)
PAIR_SLOWER = Rule(
    "bandwidth.pair_slower",
    title="a pair of GPUs copies slower than its peers of the same class",
    remedy="Look for a shared uplink or bridge on the path (gputopo inspect), reseat both cards, and prefer "
    "other pairs (gputopo plan --from this result does).",
    thresholds=(PAIR_SHARE, UNKNOWN_PAIR_SHARE, MIN_PEERS, DEVIATIONS),
)

_PATHS: tuple[tuple[Kind, Path | None, str], ...] = (
    ("p2p_direct", None, "direct"),
    ("p2p_staged", None, "staged"),
)


class _Slow(NamedTuple):
    """One ordered pair that is slower than what it is compared with."""

    pair: Pair
    gb_per_s: float
    against_gb_per_s: float

    @property
    def share(self) -> float:
        return self.gb_per_s / self.against_gb_per_s


@check(DIRECT_SLOWER)
def direct_slower(machine: Machine) -> Iterator[Finding]:
    """Find pairs that copy faster through host memory than directly; one finding for each class of link."""
    for hop, slow in _by_class(_slower_directly(machine), machine).items():
        worst = _worst(slow)
        yield DIRECT_SLOWER.finding(
            _subject(slow),
            f"direct copies are slower than those staged through host memory ({hop}: {_pairs(slow)}): "
            f"{worst.gb_per_s:.2f} against {worst.against_gb_per_s:.2f} GB/s for {worst.pair[0]} to "
            f"{worst.pair[1]}",
            {"class": hop, "pairs": _rates(slow, "direct_gb_per_s", "staged_gb_per_s")},
        )


@check(PAIR_SLOWER)
def pair_slower(machine: Machine) -> Iterator[Finding]:
    """Find pairs that are slower than their peers, beyond what their two GPUs reach with others.

    Peers: pairs of the same class and the same two models. Each pair is compared with the slower of the best
    rates from its source and to its destination, so a GPU on a narrow link makes none of its pairs a slow
    one: its link has another finding.
    """
    if machine.bandwidth is None:
        return
    known = {one.pair for one in _slower_directly(machine)}
    for kind, path, word in _PATHS:
        copies = pair_copies(machine.bandwidth.samples, kind, path)
        slow = [
            one
            for one in _slower_than_peers(copies, machine)
            if kind != "p2p_direct" or one.pair not in known
        ]
        for hop, group in _by_class(slow, machine).items():
            worst = _worst(group)
            yield PAIR_SLOWER.finding(
                _subject(group),
                f"{word} copies are slower than those of peer pairs ({hop}: {_pairs(group)}): "
                f"{worst.gb_per_s:.2f} GB/s for {worst.pair[0]} to {worst.pair[1]}, expected "
                f"{worst.against_gb_per_s:.2f} (its peers)",
                {"class": hop, "path": word, "pairs": _rates(group, "gb_per_s", "as_its_equals_gb_per_s")},
            )


@check(BELOW_EXPECTED)
def below_expected(machine: Machine) -> Iterator[Finding]:
    """Find pairs below the expected rate of their NVLinks, or of the slower of their two PCIe links."""
    if machine.bandwidth is None:
        return
    bandwidth = with_expectations(machine.bandwidth, machine)
    known = {one.pair for one in _slower_directly(machine)}
    for kind, path, word in _PATHS:
        copies = pair_copies(bandwidth.samples, kind, path)
        known |= {one.pair for one in _slower_than_peers(copies, machine)}
        slow = [
            _Slow(pair, rate(sample), sample.expected_gb_per_s)
            for pair, sample in copies.items()
            if sample.expected_gb_per_s and rate(sample) < (sample.expected_low_gb_per_s or 0)
        ]
        for hop, group in _by_class([one for one in slow if one.pair not in known], machine).items():
            worst = _worst(group)
            yield BELOW_EXPECTED.finding(
                _subject(group),
                f"{word} copies reach {worst.share:.0%} of the expected rate or more ({hop}: "
                f"{_pairs(group)}): {copies[worst.pair].expected_source}",
                {"class": hop, "path": word, "pairs": _rates(group, "gb_per_s", "expected_gb_per_s")},
                remedy=BELOW_EXPECTED.cases["pairs"].remedy,
            )


def _slower_directly(machine: Machine) -> list[_Slow]:
    bandwidth: Bandwidth | None = machine.bandwidth
    if bandwidth is None:
        return []
    direct, staged = (
        pair_copies(bandwidth.samples, "p2p_direct"),
        pair_copies(bandwidth.samples, "p2p_staged"),
    )
    return [
        _Slow(pair, rate(direct[pair]), rate(staged[pair]))
        for pair in direct
        if pair in staged and _is_slower(direct[pair], staged[pair])
    ]


def _is_slower(one: Sample, other: Sample) -> bool:
    deviation = (noise_share(one.repeats_gb_per_s) ** 2 + noise_share(other.repeats_gb_per_s) ** 2) ** 0.5
    noise = DEVIATIONS.value * deviation
    missing = rate(other) - rate(one)
    # Half a unit of the last place for the rounding of floats: 0.41 - 0.40 is a little more than 0.01.
    return missing > max(SLOWER_SHARE.value, noise) * rate(other) and missing > 1.5 * PRINTED_GB_PER_S.value


def _slower_than_peers(copies: Mapping[Pair, Sample], machine: Machine) -> list[_Slow]:
    measured = {pair: rate(sample) for pair, sample in copies.items()}
    out = _best((a, gb_per_s) for (a, _), gb_per_s in measured.items())
    into = _best((b, gb_per_s) for (_, b), gb_per_s in measured.items())
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    peers: dict[tuple[str, frozenset[str | None]], list[Pair]] = {}
    for a, b in measured:
        hop = class_name(machine.link(a, b))
        peers.setdefault((hop, frozenset((names.get(a), names.get(b)))), []).append((a, b))
    shares = {(a, b): gb_per_s / min(out[a], into[b]) for (a, b), gb_per_s in measured.items()}
    found = []
    for (hop, _), pairs in peers.items():
        if hop == "unknown" and any(link.hop or link.nvlinks for link in machine.links):
            continue  # the hops of other pairs of this machine are known, of these none: no peers
        usual = median(shares[pair] for pair in pairs)
        if len({frozenset(pair) for pair in pairs}) < MIN_PEERS.value:
            continue
        floor = (UNKNOWN_PAIR_SHARE if hop == "unknown" else PAIR_SHARE).value
        for a, b in pairs:
            expected = usual * min(out[a], into[b])
            low = min(copies[a, b].repeats_gb_per_s, default=measured[a, b])
            noise = noise_share(copies[a, b].repeats_gb_per_s) * DEVIATIONS.value * low
            if measured[a, b] + noise < floor * expected:
                found.append(_Slow((a, b), measured[a, b], round(expected, 3)))
    return found


def _best(rates: Iterable[tuple[int, float]]) -> dict[int, float]:
    found: dict[int, float] = {}
    for gpu, gb_per_s in rates:
        found[gpu] = max(gb_per_s, found.get(gpu, 0.0))
    return found


def _worst(slow: Sequence[_Slow]) -> _Slow:
    return min(slow, key=lambda one: one.share)


def _by_class(slow: Iterable[_Slow], machine: Machine) -> dict[str, list[_Slow]]:
    found: dict[str, list[_Slow]] = {}
    for one in sorted(slow):
        hop = class_name(machine.link(*one.pair))
        found.setdefault("unknown hop" if hop == "unknown" else hop, []).append(one)
    return found


def _rates(slow: Sequence[_Slow], reached: str, against: str) -> dict[str, dict[str, float]]:
    """Return the two numbers of each pair under these names."""
    return {
        f"{one.pair[0]}>{one.pair[1]}": {reached: one.gb_per_s, against: one.against_gb_per_s} for one in slow
    }


def _subject(slow: Sequence[_Slow]) -> Subject:
    pairs = {(min(one.pair), max(one.pair)) for one in slow}
    return Subject.of_link(*min(pairs)) if len(pairs) == 1 else MACHINE


def _pairs(slow: Sequence[_Slow]) -> str:
    return pairs_in_words(one.pair for one in slow)
