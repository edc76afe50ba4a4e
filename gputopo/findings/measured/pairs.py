"""What measured copies tell of pairs of GPUs: direct slower than staged, pairs slower than their equals."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

import msgspec

from gputopo.copies.expected import with_expectations
from gputopo.copies.numbers import Pair, noise_share, pair_copies, rate
from gputopo.findings.finding import Finding
from gputopo.topology.hops import class_name
from gputopo.values.bandwidth import Bandwidth, Kind, Path, Sample
from gputopo.values.index_ranges import pairs_in_words
from gputopo.values.machine import Machine

# Published matrices of one run repeat within 2 % (0.77 and 0.79 GB/s for one staged pair of 7gforce-v2), and
# direct copies across the host bridge of 7gforce are 3.9 to 7.6 % slower than staged ones (0.73 against 0.76
# to 0.79 GB/s). The line is between the two.
SLOWER_SHARE = 0.03
# The tools print two decimals: 0.40 and 0.41 GB/s may be the same number.
PRINTED_GB_PER_S = 0.01
# Noise is told at three standard deviations of both numbers together.
DEVIATIONS = 3.0
# A pair this far under its equals is slow: the same pairs measured twice by p2pBandwidthLatencyTest differ by
# up to 7 % where cards were waking up (10.44 and 11.26 GB/s between GTX 1080 Ti). Ours.
PAIR_SHARE = 0.90
# Where no class is told, near and far pairs may be mixed, and those of sound boxes differ by up to a factor
# of two (13.2 and 6.5 GB/s in one box with RTX 3090).
UNTOLD_PAIR_SHARE = 0.50
FEWEST_EQUALS = 3  # a median of fewer says nothing

_PATHS: tuple[tuple[Kind, Path | None, str], ...] = (
    ("p2p_direct", None, "direct"),
    ("p2p_staged", None, "staged"),
)


class _Slow(msgspec.Struct, frozen=True):
    """One ordered pair that is slower than what it is held against."""

    pair: Pair
    gb_per_s: float
    against_gb_per_s: float

    @property
    def share(self) -> float:
        return self.gb_per_s / self.against_gb_per_s


def direct_slower(machine: Machine) -> Iterator[Finding]:
    """Find pairs that copy faster through host memory than directly; one finding for each class of link."""
    for hop, slow in _by_class(_slower_directly(machine), machine).items():
        worst = _worst(slow)
        yield _finding(
            "p2p.direct_slower_than_staged",
            slow,
            ("direct_gb_per_s", "staged_gb_per_s"),
            {"class": hop},
            says=f"direct copies are slower than those staged through host memory ({hop}: "
            f"{_pairs(slow)}): {worst.gb_per_s:.2f} against {worst.against_gb_per_s:.2f} GB/s "
            f"for {worst.pair[0]} to {worst.pair[1]}",
            remedy="let these pairs copy through host memory: NCCL_P2P_LEVEL=PXB (only within switches) or "
            "NCCL_P2P_DISABLE=1 for a run; on one switch look for access control and the IOMMU (gputopo "
            "inspect: p2p.acs_on, p2p.iommu)",
        )


def pair_slower(machine: Machine) -> Iterator[Finding]:
    """Find pairs that are slower than their equals, beyond what their two cards reach with others.

    Equals: pairs of the same class and the same two models. Each pair is held against the slower of what
    its source gives and its destination takes at best, so a card on a narrow link makes none of its pairs
    a slow one: that card is told by its link.
    """
    if machine.bandwidth is None:
        return
    told = {one.pair for one in _slower_directly(machine)}
    for kind, path, word in _PATHS:
        copies = pair_copies(machine.bandwidth.samples, kind, path)
        slow = [
            one
            for one in _slower_than_equals(copies, machine)
            if kind != "p2p_direct" or one.pair not in told
        ]
        for hop, group in _by_class(slow, machine).items():
            yield _pair_finding(hop, word, group)


def below_expected(machine: Machine) -> Iterator[Finding]:
    """Find pairs that are slower than their NVLinks or the slower of their two PCIe links let expect."""
    if machine.bandwidth is None:
        return
    bandwidth = with_expectations(machine.bandwidth, machine)
    told = {one.pair for one in _slower_directly(machine)}
    for kind, path, word in _PATHS:
        copies = pair_copies(bandwidth.samples, kind, path)
        told |= {one.pair for one in _slower_than_equals(copies, machine)}
        slow = [
            _Slow(pair, rate(sample), sample.expected_gb_per_s)
            for pair, sample in copies.items()
            if sample.expected_gb_per_s and rate(sample) < (sample.expected_low_gb_per_s or 0)
        ]
        for hop, group in _by_class([one for one in slow if one.pair not in told], machine).items():
            yield _below_finding(hop, word, group, copies)


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
    noise = (
        DEVIATIONS
        * (noise_share(one.repeats_gb_per_s) ** 2 + noise_share(other.repeats_gb_per_s) ** 2) ** 0.5
    )
    missing = rate(other) - rate(one)
    # Half a unit of the last place for the rounding of floats: 0.41 - 0.40 is a little more than 0.01.
    return missing > max(SLOWER_SHARE, noise) * rate(other) and missing > 1.5 * PRINTED_GB_PER_S


def _slower_than_equals(copies: Mapping[Pair, Sample], machine: Machine) -> list[_Slow]:
    measured = {pair: rate(sample) for pair, sample in copies.items()}
    out = _best((a, gb_per_s) for (a, _), gb_per_s in measured.items())
    into = _best((b, gb_per_s) for (_, b), gb_per_s in measured.items())
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    equals: dict[tuple[str, frozenset[str | None]], list[Pair]] = {}
    for a, b in measured:
        hop = class_name(machine.link(a, b))
        equals.setdefault((hop, frozenset((names.get(a), names.get(b)))), []).append((a, b))
    shares = {(a, b): gb_per_s / min(out[a], into[b]) for (a, b), gb_per_s in measured.items()}
    found = []
    for (hop, _), pairs in equals.items():
        if hop == "unknown" and any(link.hop or link.nvlinks for link in machine.links):
            continue  # some ways of this machine are known, of these nothing: no equals
        usual = median(shares[pair] for pair in pairs)
        if len({frozenset(pair) for pair in pairs}) < FEWEST_EQUALS:
            continue
        for a, b in pairs:
            due = usual * min(out[a], into[b])
            low = min(copies[a, b].repeats_gb_per_s, default=measured[a, b])
            noisy = noise_share(copies[a, b].repeats_gb_per_s) * DEVIATIONS * low
            if measured[a, b] + noisy < (UNTOLD_PAIR_SHARE if hop == "unknown" else PAIR_SHARE) * due:
                found.append(_Slow((a, b), measured[a, b], round(due, 3)))
    return found


def _best(rates: Iterable[tuple[int, float]]) -> dict[int, float]:
    found: dict[int, float] = {}
    for gpu, gb_per_s in rates:
        found[gpu] = max(gb_per_s, found.get(gpu, 0.0))
    return found


def _pair_finding(hop: str, word: str, slow: Sequence[_Slow]) -> Finding:
    worst = _worst(slow)
    return _finding(
        "bandwidth.pair_slower",
        slow,
        ("gb_per_s", "as_its_equals_gb_per_s"),
        {"class": hop, "path": word},
        says=f"{word} copies are slower than those of equal pairs ({hop}: {_pairs(slow)}): "
        f"{worst.gb_per_s:.2f} GB/s for {worst.pair[0]} to {worst.pair[1]}, where its equals' share would be "
        f"{worst.against_gb_per_s:.2f}",
        remedy="something on the way of these pairs alone is slow: look in gputopo inspect's tree for a "
        "shared uplink or a bridge, seat both cards again, and prefer other pairs (gputopo plan --from "
        "this result does)",
    )


def _below_finding(hop: str, word: str, slow: Sequence[_Slow], copies: Mapping[Pair, Sample]) -> Finding:
    worst = _worst(slow)
    return _finding(
        "bandwidth.below_expected",
        slow,
        ("gb_per_s", "expected_gb_per_s"),
        {"class": hop, "path": word},
        says=f"{word} copies reach {worst.share:.0%} of what is expected or more ({hop}: {_pairs(slow)}): "
        f"{copies[worst.pair].expected_source}",
        remedy="for NVLinks see nvidia-smi nvlink -s and -e; over PCIe look for access control (ACS), an "
        "IOMMU that translates, and a shared uplink between the two",
    )


def _finding(
    check: str,
    slow: Sequence[_Slow],
    names: tuple[str, str],
    about: Mapping[str, str],
    *,
    says: str,
    remedy: str,
) -> Finding:
    """Tell of slow pairs. `names`: what a pair's two numbers are called in the evidence, after `about`."""
    reached, against = names
    pairs = {_arrow(one.pair): {reached: one.gb_per_s, against: one.against_gb_per_s} for one in slow}
    return Finding(
        id=check,
        severity="warning",
        subject=_subject(slow),
        says=says,
        evidence={**about, "pairs": pairs},
        remedy=remedy,
    )


def _worst(slow: Sequence[_Slow]) -> _Slow:
    return min(slow, key=lambda one: one.share)


def _by_class(slow: Iterable[_Slow], machine: Machine) -> dict[str, list[_Slow]]:
    found: dict[str, list[_Slow]] = {}
    for one in sorted(slow, key=lambda each: each.pair):
        hop = class_name(machine.link(*one.pair))
        found.setdefault("class not told" if hop == "unknown" else hop, []).append(one)
    return found


def _subject(slow: Sequence[_Slow]) -> str:
    pairs = {(min(one.pair), max(one.pair)) for one in slow}
    a, b = min(pairs)
    return f"link:{a}-{b}" if len(pairs) == 1 else "machine"


def _pairs(slow: Sequence[_Slow]) -> str:
    return pairs_in_words(one.pair for one in slow)


def _arrow(pair: Pair) -> str:
    return f"{pair[0]}>{pair[1]}"
