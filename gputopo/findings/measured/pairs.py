"""Measured copies between GPUs: pairs slower than their peers or the expected rate."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from gputopo.copies.expected import with_expectations
from gputopo.copies.numbers import Pair, noise_share, pair_copies, rate
from gputopo.copies.pair_speeds import NvLinks, SlowEnds, direct_copies, fastest, is_hybrid, slow_ends
from gputopo.copies.physics import over_nvlink as faster_than_pcie
from gputopo.findings.compare import grouped, maxima
from gputopo.findings.measured.direct import DEVIATIONS, SlowPair, class_of, slower_directly, subject_of
from gputopo.findings.measured.links import BELOW_EXPECTED, CUBE_MESH_SHARE
from gputopo.findings.rule import Fault, Rule, Severity, Threshold, by_model, check, copies_of, roughly
from gputopo.reference.expectations import expected_of
from gputopo.topology.hops import class_name
from gputopo.values.bandwidth import Bandwidth, Kind, Sample
from gputopo.values.index_ranges import pairs_in_words
from gputopo.values.machine import Gpu, Hop, Machine

# The same pairs measured twice by p2pBandwidthLatencyTest differ by up to 7 % during clock ramp-up (10.44
# and 11.26 GB/s between GTX 1080 Ti).
PAIR_SHARE = Threshold("pair slower than its peers", 0.90, "of the expected rate")
UNKNOWN_PAIR_SHARE = Threshold(
    "pair slower than its peers, where no hop is known",
    0.50,
    "of the expected rate",
    "Near and far pairs may be mixed, which differ by up to a factor of two without a fault (13.2 and "
    "6.5 GB/s in one machine with RTX 3090)",
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
def pair_slower(machine: Machine) -> Iterator[Fault]:
    """Find pairs that are slower than their peers, beyond what their two GPUs reach with others.

    Peers: pairs of the same class and the same two models. Each pair is compared with the slower of the best
    rates from its source and to its destination, so a GPU on a narrow link makes none of its pairs a slow
    one: its link has another finding.
    """
    known = slower_directly(machine)
    for kind, word in _PATHS:
        copies = _over_pcie(copies_of(machine), kind, machine)
        slow = _slower_than_peers(copies, machine)
        slow = [one for one in slow if kind != "p2p_direct" or one.pair not in known]
        yield from behind_peers(slow, word, machine)


@check(BELOW_EXPECTED)
def below_expected(machine: Machine) -> Iterator[Fault]:
    """Find pairs over PCIe that are below the expected rate of the slower of their two links."""
    bandwidth = with_expectations(copies_of(machine), machine)
    known = slower_directly(machine)
    for kind, word in _PATHS:
        copies = _over_pcie(bandwidth, kind, machine)
        known |= {one.pair for one in _slower_than_peers(copies, machine)}
        slow = [
            SlowPair(pair, rate(sample), sample.expected_gb_per_s)
            for pair, sample in copies.items()
            if sample.expected_gb_per_s and rate(sample) < (sample.expected_low_gb_per_s or 0)
        ]
        yield from below([one for one in slow if one.pair not in known], copies, word, machine)


def behind_peers(
    slow: Sequence[SlowPair], word: str, machine: Machine, label: str | None = None
) -> Iterator[Fault]:
    """Return a finding for each class of pairs that are slower than their peers, or for all as `label`."""
    for hop, group in _by_class(slow, machine, label).items():
        says = f"{word} copies are slower than those of peer pairs ({_worst(hop, group)} (its peers)"
        pairs = _rates(group, "gb_per_s", "as_its_equals_gb_per_s")
        evidence = {"class": hop, "path": word, "pairs": pairs}
        yield PAIR_SLOWER.fault(subject_of(one.pair for one in group), says, evidence)


def below(
    slow: Sequence[SlowPair],
    copies: Mapping[Pair, Sample],
    word: str,
    machine: Machine,
    label: str | None = None,
) -> Iterator[Fault]:
    """Return a finding for each class of pairs that are below the expected rate, or for all as `label`."""
    for hop, group in _by_class(slow, machine, label).items():
        worst = min(group, key=lambda one: one.share)
        reach = f"{word} copies reach {worst.share:.0%} of the expected rate or more"
        says = f"{reach} ({_worst(hop, group)} ({copies[worst.pair].expected_source})"
        evidence = {"class": hop, "path": word, "pairs": _rates(group, "gb_per_s", "expected_gb_per_s")}
        severity: Severity = "warning" if hop.startswith("NV") or hop in _WITHIN_SWITCHES else "info"
        subject = subject_of(one.pair for one in group)
        yield BELOW_EXPECTED.fault(subject, says, evidence, severity, case="pairs")


def _over_pcie(bandwidth: Bandwidth, kind: Kind, machine: Machine) -> dict[Pair, Sample]:
    """Return the copies of each pair without those over NVLink, which are judged by themselves."""
    copies = pair_copies(bandwidth.samples, kind)
    if kind != "p2p_direct":
        return copies
    nvlinks, fast = NvLinks(bandwidth, machine), faster_than_pcie(bandwidth.samples, machine)
    return {
        (a, b): sample
        for (a, b), sample in copies.items()
        if nvlinks.between(a, b) is None and (min(a, b), max(a, b)) not in fast
    }


def _slower_than_peers(copies: Mapping[Pair, Sample], machine: Machine) -> list[SlowPair]:
    measured = {pair: rate(sample) for pair, sample in copies.items()}
    out = maxima((a, gb_per_s) for (a, _), gb_per_s in measured.items())
    into = maxima((b, gb_per_s) for (_, b), gb_per_s in measured.items())
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    peers = grouped(
        ((class_name(machine.link(a, b)), frozenset((names.get(a), names.get(b)))), (a, b))
        for a, b in measured
    )
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
                found.append(SlowPair((a, b), measured[a, b], round(expected, 3)))
    return found


def _worst(hop: str, group: Sequence[SlowPair]) -> str:
    """Return the pairs of a group and the numbers of the worst, after an opening bracket."""
    one = min(group, key=lambda one: one.share)
    rates = f"{one.gb_per_s:.2f} GB/s for {one.pair[0]} to {one.pair[1]}, expected {one.against_gb_per_s:.2f}"
    return f"{hop}: {pairs_in_words(slow.pair for slow in group)}): {rates}"


def _by_class(
    slow: Iterable[SlowPair], machine: Machine, label: str | None = None
) -> dict[str, list[SlowPair]]:
    return grouped((label or class_of(machine, one.pair), one) for one in sorted(slow))


def _rates(slow: Sequence[SlowPair], reached: str, against: str) -> dict[str, dict[str, float]]:
    """Return the two numbers of each pair under these names."""
    return {
        f"{one.pair[0]}>{one.pair[1]}": {reached: one.gb_per_s, against: one.against_gb_per_s} for one in slow
    }


# Eight P100 or V100 are one hybrid cube mesh, in which each GPU has as many NVLinks; of fewer GPUs the rest
# may be in other jobs.
CUBE_MESH_GPUS = 8
# The share of slow pairs in a class above which they are a class of their own, with fewer NVLinks or none. By
# rate: of P100 and V100, where one pair of six may be slow. Unknown number: one GPU of four may be.
# Not measured on hardware.
SLOW_BY_RATE = 1 / 3
SLOW_UNKNOWN = 1 / 2


class _Class(NamedTuple):
    """Pairs that have as many NVLinks, 0 where unknown, and which share of them can be slow."""

    links: int
    slow_share: float = 1.0

    @property
    def name(self) -> str:
        return f"NV{self.links}" if self.links else "NVLink"


@check(BELOW_EXPECTED, PAIR_SLOWER)
def over_nvlink(machine: Machine) -> Iterator[Fault]:
    """Find GPUs whose copies over NVLink are slow with most peers, and pairs that are slow by themselves.

    Compared: all pairs with as many NVLinks, and each with the expected rate. A GPU explains its slow pairs.
    """
    copies, word = direct_copies(with_expectations(copies_of(machine), machine).samples)
    nvlinks, fast = (
        NvLinks(copies_of(machine), machine),
        faster_than_pcie(copies_of(machine).samples, machine),
    )
    hybrid = {gpu.index for gpu in machine.gpus if (row := expected_of(gpu)) and is_hybrid(row)}
    classes: dict[_Class, dict[Pair, Sample]] = {}
    for (a, b), sample in copies.items():
        known = nvlinks.between(a, b)
        if known is not None:
            mixed = known.by == "rate" and a in hybrid
            of = _Class(known.links, SLOW_BY_RATE) if mixed else _Class(known.links)
        elif (min(a, b), max(a, b)) in fast and a not in hybrid:
            of = _Class(0, SLOW_UNKNOWN)
        else:
            continue
        classes.setdefault(of, {})[a, b] = sample
    for of, of_class in classes.items():
        yield from _of_class(of, of_class, word, machine)
    yield from _in_cube_mesh(nvlinks, machine)


def _of_class(of: _Class, copies: Mapping[Pair, Sample], word: str, machine: Machine) -> Iterator[Fault]:
    rates = {pair: rate(sample) for pair, sample in copies.items()}
    usual = fastest(rates)
    comparable = len({frozenset(pair) for pair in copies}) >= MIN_PEERS.value
    behind = {pair for pair, sample in copies.items() if comparable and _is_behind(sample, usual)}
    if len(behind) > of.slow_share * len(copies):
        behind = set()
    low = {pair for pair, one in copies.items() if rates[pair] < (one.expected_low_gb_per_s or 0)}
    if low == set(rates):
        yield from below(_against_expected(copies, low), copies, word, machine, of.name)
        low = behind
    ends = slow_ends(behind | low, rates)
    yield from _of_gpus(of, ends, rates, word, machine)
    pairs = set(ends.pairs) - slower_directly(machine)
    slower = [SlowPair(pair, rates[pair], usual) for pair in pairs & behind]
    yield from behind_peers(slower, word, machine, of.name)
    yield from below(_against_expected(copies, pairs - behind), copies, word, machine, of.name)


def _is_behind(sample: Sample, usual: float) -> bool:
    noise = noise_share(sample.repeats_gb_per_s) * DEVIATIONS.value
    return rate(sample) * (1 + noise) < PAIR_SHARE.value * usual


def _against_expected(copies: Mapping[Pair, Sample], pairs: set[Pair]) -> list[SlowPair]:
    return [
        SlowPair(pair, rate(sample), sample.expected_gb_per_s)
        for pair, sample in copies.items()
        if pair in pairs and sample.expected_gb_per_s
    ]


def _of_gpus(
    of: _Class, ends: SlowEnds, rates: Mapping[Pair, float], word: str, machine: Machine
) -> Iterator[Fault]:
    usual = fastest(rates)
    gpus = {gpu.index: gpu for gpu in machine.gpus}
    for index in ends.gpus:
        out, into = ends.out.get(index, []), ends.into.get(index, [])
        slow = sorted({*out, *into})
        own = median(rates[pair] for pair in slow)
        partners = {end for pair in slow for end in pair} - {index}
        direction = "" if out and into else " from it" if out else " to it"
        part = max(1, round(of.links * own / usual))
        links = f", about {part} of {of.links} NVLinks" if of.links > 1 else ""
        peers = {end for pair in rates if index in pair for end in pair} - {index}
        which = "every peer" if len(peers) == len(partners) else f"{len(partners)} of {len(peers)} peers"
        reach = f"{word} copies{direction} with {which} reach about {roughly(own / usual)}"
        says = f"{reach} of those of other pairs: {own:.0f} against {usual:.0f} GB/s{links}"
        pairs = {f"{a}>{b}": rates[a, b] for a, b in slow}
        evidence = {"gb_per_s": own, "peers_gb_per_s": usual, "pairs": pairs}
        about = gpus.get(index) or Gpu(index=index)
        yield BELOW_EXPECTED.fault(about, says, evidence, case="NVLinks of a GPU", part="nvlinks")


def _in_cube_mesh(nvlinks: NvLinks, machine: Machine) -> Iterator[Fault]:
    """Find GPUs with far fewer NVLinks than their peers, as counted by the rates of their pairs."""
    for group in by_model(machine):
        row = expected_of(group[0])
        if len(group) != CUBE_MESH_GPUS or row is None or not is_hybrid(row):
            continue
        totals = {gpu.index: _total(gpu, group, nvlinks) for gpu in group}
        usual = median(totals.values())
        for gpu in group:
            if totals[gpu.index] < CUBE_MESH_SHARE.value * usual:
                own = totals[gpu.index]
                says = f"direct copies are as fast as {own} NVLinks together, those of peers as {usual:g}"
                evidence = {"nvlinks": own, "peers": {str(index): count for index, count in totals.items()}}
                yield BELOW_EXPECTED.fault(gpu, says, evidence, case="NVLinks of a GPU", part="nvlinks")


def _total(gpu: Gpu, group: Sequence[Gpu], nvlinks: NvLinks) -> int:
    found = (nvlinks.between(gpu.index, other.index) for other in group if other is not gpu)
    return sum(one.links for one in found if one and one.by == "rate")
