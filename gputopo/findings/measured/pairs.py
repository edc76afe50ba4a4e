"""Measured copies between GPUs: pairs slower than their peers or the expected rate."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from gputopo.copies.expected import with_expectations
from gputopo.copies.numbers import Pair, noise_share, pair_copies, rate
from gputopo.copies.pair_speeds import NvLinks
from gputopo.copies.physics import over_nvlink
from gputopo.findings.measured.direct import DEVIATIONS, Slow, class_of, slower_directly, subject_of
from gputopo.findings.measured.links import BELOW_EXPECTED
from gputopo.findings.rule import Finding, Rule, Threshold, check
from gputopo.topology.hops import class_name
from gputopo.values.bandwidth import Bandwidth, Kind, Sample
from gputopo.values.index_ranges import pairs_in_words
from gputopo.values.machine import Hop, Machine

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

PAIR_SLOWER = Rule(
    "bandwidth.pair_slower",
    title="a pair of GPUs copies slower than its peers of the same class",
    remedy="Look for a shared uplink or bridge on the path (gputopo inspect), reseat both cards, and prefer "
    "other pairs (gputopo plan --from this result does).",
    thresholds=(PAIR_SHARE, UNKNOWN_PAIR_SHARE, MIN_PEERS, DEVIATIONS),
)

# Pairs within a board or switches carry what their links do; less is usual through one CPU or two.
_WITHIN_SWITCHES = (Hop.INTERNAL.value, Hop.PIX.value, Hop.PXB.value)
_PATHS: tuple[tuple[Kind, str], ...] = (("p2p_direct", "direct"), ("p2p_staged", "staged"))


@check(PAIR_SLOWER)
def pair_slower(machine: Machine) -> Iterator[Finding]:
    """Find pairs that are slower than their peers, beyond what their two GPUs reach with others.

    Peers: pairs of the same class and the same two models. Each pair is compared with the slower of the best
    rates from its source and to its destination, so a GPU on a narrow link makes none of its pairs a slow
    one: its link has another finding.
    """
    if machine.bandwidth is None:
        return
    known = slower_directly(machine)
    for kind, word in _PATHS:
        copies = _over_pcie(machine.bandwidth, kind, machine)
        slow = _slower_than_peers(copies, machine)
        slow = [one for one in slow if kind != "p2p_direct" or one.pair not in known]
        yield from behind_peers(slow, word, machine)


@check(BELOW_EXPECTED)
def below_expected(machine: Machine) -> Iterator[Finding]:
    """Find pairs over PCIe that are below the expected rate of the slower of their two links."""
    if machine.bandwidth is None:
        return
    bandwidth = with_expectations(machine.bandwidth, machine)
    known = slower_directly(machine)
    for kind, word in _PATHS:
        copies = _over_pcie(bandwidth, kind, machine)
        known |= {one.pair for one in _slower_than_peers(copies, machine)}
        slow = [
            Slow(pair, rate(sample), sample.expected_gb_per_s)
            for pair, sample in copies.items()
            if sample.expected_gb_per_s and rate(sample) < (sample.expected_low_gb_per_s or 0)
        ]
        yield from below([one for one in slow if one.pair not in known], copies, word, machine)


def behind_peers(
    slow: Sequence[Slow], word: str, machine: Machine, label: str | None = None
) -> Iterator[Finding]:
    """Return a finding for each class of pairs that are slower than their peers, or for all as `label`."""
    for hop, group in _by_class(slow, machine, label).items():
        worst = _worst(group)
        yield PAIR_SLOWER.finding(
            subject_of(one.pair for one in group),
            f"{word} copies are slower than those of peer pairs ({hop}: {_pairs(group)}): "
            f"{worst.gb_per_s:.2f} GB/s for {worst.pair[0]} to {worst.pair[1]}, expected "
            f"{worst.against_gb_per_s:.2f} (its peers)",
            {"class": hop, "path": word, "pairs": _rates(group, "gb_per_s", "as_its_equals_gb_per_s")},
        )


def below(
    slow: Sequence[Slow],
    copies: Mapping[Pair, Sample],
    word: str,
    machine: Machine,
    label: str | None = None,
) -> Iterator[Finding]:
    """Return a finding for each class of pairs that are below the expected rate, or for all as `label`."""
    for hop, group in _by_class(slow, machine, label).items():
        worst = _worst(group)
        yield BELOW_EXPECTED.finding(
            subject_of(one.pair for one in group),
            f"{word} copies reach {worst.share:.0%} of the expected rate or more ({hop}: "
            f"{_pairs(group)}): {worst.gb_per_s:.2f} GB/s for {worst.pair[0]} to {worst.pair[1]}, expected "
            f"{worst.against_gb_per_s:.2f} ({copies[worst.pair].expected_source})",
            {"class": hop, "path": word, "pairs": _rates(group, "gb_per_s", "expected_gb_per_s")},
            "warning" if hop.startswith("NV") or hop in _WITHIN_SWITCHES else "info",
            remedy=BELOW_EXPECTED.cases["pairs"].remedy,
        )


def _over_pcie(bandwidth: Bandwidth, kind: Kind, machine: Machine) -> dict[Pair, Sample]:
    """Return the copies of each pair without those over NVLink, which are judged by themselves."""
    copies = pair_copies(bandwidth.samples, kind)
    if kind != "p2p_direct":
        return copies
    nvlinks, fast = NvLinks(bandwidth, machine), over_nvlink(bandwidth.samples, machine)
    return {
        (a, b): sample
        for (a, b), sample in copies.items()
        if nvlinks.between(a, b) is None and (min(a, b), max(a, b)) not in fast
    }


def _slower_than_peers(copies: Mapping[Pair, Sample], machine: Machine) -> list[Slow]:
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
                found.append(Slow((a, b), measured[a, b], round(expected, 3)))
    return found


def _best(rates: Iterable[tuple[int, float]]) -> dict[int, float]:
    found: dict[int, float] = {}
    for gpu, gb_per_s in rates:
        found[gpu] = max(gb_per_s, found.get(gpu, 0.0))
    return found


def _worst(slow: Sequence[Slow]) -> Slow:
    return min(slow, key=lambda one: one.share)


def _by_class(slow: Iterable[Slow], machine: Machine, label: str | None = None) -> dict[str, list[Slow]]:
    found: dict[str, list[Slow]] = {label: sorted(slow)} if label and slow else {}
    for one in () if label else sorted(slow):
        found.setdefault(class_of(machine, one.pair), []).append(one)
    return found


def _rates(slow: Sequence[Slow], reached: str, against: str) -> dict[str, dict[str, float]]:
    """Return the two numbers of each pair under these names."""
    return {
        f"{one.pair[0]}>{one.pair[1]}": {reached: one.gb_per_s, against: one.against_gb_per_s} for one in slow
    }


def _pairs(slow: Sequence[Slow]) -> str:
    return pairs_in_words(one.pair for one in slow)
