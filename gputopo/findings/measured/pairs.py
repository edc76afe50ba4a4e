"""Measured copies between GPUs: each direction of a pair is judged once.

Against its peers, else against copies staged through the host, else against the expected rate.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from gputopo.copies import (
    NvLinks,
    SlowEnds,
    direct_copies,
    fastest,
    is_hybrid,
    link_names,
    model_link,
    slow_ends,
    with_expectations,
)
from gputopo.findings.measured.direct import (
    DEVIATIONS,
    DIRECT_SLOWER,
    SlowPair,
    class_of,
    noise_share,
    slow_words,
    slower_than_staged,
    subject_of,
)
from gputopo.findings.measured.gpus import behind_peers
from gputopo.findings.measured.links import (
    BELOW_EXPECTED,
    LOW_NVLINKS_OF_A_GPU,
    LOW_PAIRS_OVER_NVLINK,
    LOW_PAIRS_OVER_PCIE,
    LOW_STAGED_PAIRS,
    host_rates,
    link_is_unknown,
    narrow_links,
    narrow_pairs,
)
from gputopo.findings.rule import Fault, Rule, Threshold, check, copies_of, roughly
from gputopo.reference import LinkExpectation, expected_of, fitting_links
from gputopo.reference import over_nvlink as faster_than_pcie
from gputopo.topology import class_name
from gputopo.values.bandwidth import CopyRate, Kind, Pair, Path
from gputopo.values.finding import Severity
from gputopo.values.grouping import grouped, maxima
from gputopo.values.machine import Gpu, Hop, Machine
from gputopo.values.rates import pair_copies

PAIR_SHARE = Threshold(
    "pair slower than its peers",
    0.9,
    "of the expected rate",
    (
        "not measured on hardware: the same pairs measured twice by p2pBandwidthLatencyTest differ by up "
        "to 7% during clock ramp-up (10.44 and 11.26 GB/s between GTX 1080 Ti)"
    ),
)
UNKNOWN_PAIR_SHARE = Threshold(
    "pair slower than its peers, if the path is unknown",
    0.5,
    "of the expected rate",
    (
        "Near and far pairs may be mixed, which differ by up to a factor of two without a fault (13.2 "
        "and 6.5 GB/s in one machine with RTX 3090)"
    ),
)
MIN_PEERS = Threshold("peers of a pair", 3, "pairs", "A median of fewer is not meaningful")

PAIR_SLOWER = Rule(
    "bandwidth.pair_slower",
    "a pair of GPUs copies slower than its peers of the same class",
    remedy=(
        "Look for a shared uplink or bridge on the path (gputopo inspect), reseat both cards, and prefer "
        "other pairs (gputopo plan --from this result does)."
    ),
    thresholds=(PAIR_SHARE, UNKNOWN_PAIR_SHARE, MIN_PEERS, DEVIATIONS),
)

# Pairs within a board or switches carry what their links do; less is usual through one CPU or two.
_WITHIN_SWITCHES = (Hop.INTERNAL.value, Hop.PIX.value, Hop.PXB.value)
_PATHS: tuple[tuple[Kind, str], ...] = (("p2p_direct", "direct"), ("p2p_staged", "staged"))
_AT_ONCE: tuple[Path, ...] = ("direct", "staged")
# The path between CPU sockets may cost two thirds of a link (9.0 of 26.2 GB/s between A40), another slot or
# generation half. A lower share of the expected rate is a warning. Not measured; chosen just below both.
USUAL_SHARE = 1 / 3
# The share of slow pairs in a class above which they are a class of their own, with fewer NVLinks or none. By
# rate: of P100 and V100, where one pair of six may be slow. Unknown number: one GPU of four may be.
# Not measured on hardware.
SLOW_BY_RATE = 1 / 3
SLOW_UNKNOWN = 1 / 2


class _NvClass(NamedTuple):
    """Pairs that have as many NVLinks, 0 where unknown, and which share of them can be slow."""

    links: int
    slow_share: float = 1.0

    @property
    def name(self) -> str:
        return f"NV{self.links}" if self.links else "NVLink"


@check(BELOW_EXPECTED, PAIR_SLOWER, DIRECT_SLOWER)
def slow_pairs(machine: Machine) -> Iterator[Fault]:
    """Find slow pairs: by NVLink, then against peers, the path through the host, and the expected rate.

    Peers over PCIe: pairs of the same class and the same two models. Each pair is compared with the slower of
    the best rates from its source and to its destination, so a GPU on a narrow link makes none of its pairs a
    slow one: its link has another finding.
    """
    bandwidth = with_expectations(copies_of(machine), machine)
    samples = bandwidth.copies
    nvlinks, fast = NvLinks(bandwidth, machine), faster_than_pcie(samples, machine)
    judged: set[Pair] = set()
    copies, word = direct_copies(samples)
    by_class = grouped((_nv_class(pair, nvlinks, fast, machine), pair) for pair in copies)
    for nv_class, pairs in by_class.items():
        if nv_class is not None:
            yield from _over_nvlink(nv_class, {pair: copies[pair] for pair in pairs}, word, judged, machine)
    measured = {word: pair_copies(samples, kind) for kind, word in _PATHS}
    read = [sample for sample in samples if sample.method == "copy_engine_read"]
    measured["direct read"] = pair_copies(read, "p2p_direct")
    of_nvlink = {
        (a, b)
        for word in ("direct", "direct read")
        for a, b in measured[word]
        if nvlinks.between(a, b) is not None or (min(a, b), max(a, b)) in fast
    }
    over_pcie = {
        word: {pair: sample for pair, sample in of_path.items() if word == "staged" or pair not in of_nvlink}
        for word, of_path in measured.items()
    }
    for word, of_path in over_pcie.items():
        yield from _faults(PAIR_SLOWER, _behind_peers(of_path, machine), of_path, word, judged, machine)
    yield from slower_than_staged(machine, judged)
    best = maxima(
        (gpu, sample.rate)
        for of_path in over_pcie.values()
        for pair, sample in of_path.items()
        for gpu in pair
    )
    for path in _AT_ONCE:
        measured[f"{path} bidirectional"] = pair_copies(samples, "bidirectional", path)
    slow_links = _gpus_with_slow_links(machine)
    for word, of_path in measured.items():
        low = {pair for pair in _low(of_path) if not slow_links & {*pair}}
        by_nvlink = low & of_nvlink if word.startswith("direct") else set[Pair]()
        slow = _below_expected(of_path, by_nvlink)
        yield from _faults(BELOW_EXPECTED, slow, of_path, word, judged, machine, "NVLink")
        slow = _below_expected(of_path, low - by_nvlink)
        yield from _faults(BELOW_EXPECTED, slow, of_path, word, judged, machine, best=best)


def _gpus_with_slow_links(machine: Machine) -> set[int]:
    """Return the GPUs whose links are slow by copies between GPUs alone: that is another finding."""
    if any(narrow_pairs(machine)):
        return {gpu.index for gpu in machine.gpus}
    faults = (*narrow_links(machine), *behind_peers(machine))
    return {gpu for fault in faults for gpu in fault.gpus} - host_rates(machine).keys()


def _faults(
    rule: Rule,
    slow: Iterable[SlowPair],
    copies: Mapping[Pair, CopyRate],
    word: str,
    judged: set[Pair],
    machine: Machine,
    label: str | None = None,
    *,
    best: Mapping[int, float] | None = None,
) -> Iterator[Fault]:
    """Yield a fault for each class of slow pairs, or for all as `label`; those `judged` have one already.

    `best`: the rate of the fastest copy of each GPU over PCIe, in GB/s.
    """
    slow = sorted(slow_pair for slow_pair in slow if slow_pair.pair not in judged)
    judged |= {slow_pair.pair for slow_pair in slow}
    by_peers = rule is PAIR_SLOWER
    against = "as_its_equals_gb_per_s" if by_peers else "expected_gb_per_s"
    for hop, group in grouped(
        (label or class_of(machine, slow_pair.pair), slow_pair) for slow_pair in slow
    ).items():
        worst = min(group, key=lambda slow_pair: slow_pair.share)
        rates = {
            f"{slow_pair.pair[0]}>{slow_pair.pair[1]}": {
                "gb_per_s": slow_pair.gb_per_s,
                against: slow_pair.against_gb_per_s,
            }
            for slow_pair in group
        }
        evidence = {"class": hop, "path": word, "pairs": rates}
        subject = subject_of(slow_pair.pair for slow_pair in group)
        if by_peers:
            yield rule.fault(subject, slow_words(word, hop, group, "peer pairs"), evidence)
            continue
        fits = _fits(machine, worst.pair, best or {})
        says = slow_words(word, hop, group, "the expected rate")
        is_near = hop.startswith("NV") or hop in _WITHIN_SWITCHES
        severity: Severity = "warning" if is_near or _is_unusual(worst, fits) else "info"
        over_pcie = LOW_STAGED_PAIRS if word.startswith("staged") else LOW_PAIRS_OVER_PCIE
        yield rule.fault(
            subject,
            f"{says}; {_cause(hop, word, fits)} ({copies[worst.pair].expectation.source})",
            evidence | {"fits": [link.name for link in fits]},
            severity,
            case=LOW_PAIRS_OVER_NVLINK if hop.startswith("NV") else over_pcie,
        )


def _is_unusual(worst: SlowPair, fits: Sequence[LinkExpectation]) -> bool:
    """Return whether a rate is below what usual paths cost, or the link of the GPUs below usual links."""
    of_link = min((link.copy_low_gb_per_s for link in fits), default=worst.against_gb_per_s)
    return of_link < USUAL_SHARE * worst.against_gb_per_s or worst.gb_per_s < USUAL_SHARE * of_link


def _low(copies: Mapping[Pair, CopyRate]) -> set[Pair]:
    return {pair for pair, sample in copies.items() if sample.is_low}


def _fits(machine: Machine, pair: Pair, best: Mapping[int, float]) -> tuple[LinkExpectation, ...]:
    """Return the links that the fastest copy of the slower GPU of a pair fits, where its link is unknown.

    None where the widest of its model is among them.
    """
    ends = [gpu for gpu in machine.gpus if gpu.index in pair and gpu.index in best]
    slower = min(ends, key=lambda gpu: best[gpu.index], default=None)
    if slower is None or not link_is_unknown(slower, machine):
        return ()
    fits = fitting_links(best[slower.index], [slower])
    return () if model_link(slower) in fits else fits


def _cause(hop: str, word: str, fits: Sequence[LinkExpectation]) -> str:
    """Return the likeliest cause of a low rate, or the possible ones."""
    if fits:
        return f"as fast as {link_names(fits)}"
    if hop == Hop.SYS.value:
        return "the path is between CPU sockets"
    if hop.startswith("NV"):
        return "possible causes: NVLinks that are down, have errors or are not used"
    if word.startswith("staged"):
        return "host memory may be on another NUMA node, or in use"
    return "possible causes: ACS, an IOMMU that translates, the path between CPU sockets"


def _below_expected(copies: Mapping[Pair, CopyRate], pairs: set[Pair]) -> list[SlowPair]:
    return [
        SlowPair(pair, sample.rate, expected)
        for pair, sample in copies.items()
        if pair in pairs and (expected := sample.expectation.gb_per_s)
    ]


def _behind_peers(copies: Mapping[Pair, CopyRate], machine: Machine) -> list[SlowPair]:
    rates = {pair: sample.rate for pair, sample in copies.items()}
    out = maxima((a, gb_per_s) for (a, _), gb_per_s in rates.items())
    into = maxima((b, gb_per_s) for (_, b), gb_per_s in rates.items())
    limits = {(a, b): min(out[a], into[b]) for a, b in rates}
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    peers = grouped(
        ((class_name(machine.link(a, b)), frozenset((names.get(a), names.get(b)))), (a, b)) for a, b in rates
    )
    slow = []
    for (hop, _), pairs in peers.items():
        if hop == "unknown" and any(link.hop or link.nvlinks for link in machine.links):
            continue  # the hops of other pairs of this machine are known, of these none: no peers
        if len({frozenset(pair) for pair in pairs}) < MIN_PEERS.value:
            continue
        usual = median(rates[pair] / limits[pair] for pair in pairs)
        floor = (UNKNOWN_PAIR_SHARE if hop == "unknown" else PAIR_SHARE).value
        slow += [
            SlowPair(pair, rates[pair], round(usual * limits[pair], 3))
            for pair in pairs
            if _is_below(copies[pair], floor * usual * limits[pair])
        ]
    return slow


def _is_below(sample: CopyRate, limit: float) -> bool:
    return sample.rate * (1 + noise_share(sample.repeats_gb_per_s) * DEVIATIONS.value) < limit


def _nv_class(pair: Pair, nvlinks: NvLinks, fast: frozenset[Pair], machine: Machine) -> _NvClass | None:
    """Return the class of a pair over NVLink; None over PCIe, or where nothing is known of its NVLinks."""
    of_gpu = machine.by_index.get(pair[0])
    row = expected_of(of_gpu) if of_gpu else None
    hybrid = row is not None and is_hybrid(row)
    known = nvlinks.between(*pair)
    if known is not None:
        return _NvClass(known.links, SLOW_BY_RATE if known.by == "rate" and hybrid else 1.0)
    return _NvClass(0, SLOW_UNKNOWN) if (min(pair), max(pair)) in fast and not hybrid else None


def _over_nvlink(
    nv_class: _NvClass, copies: Mapping[Pair, CopyRate], word: str, judged: set[Pair], machine: Machine
) -> Iterator[Fault]:
    """Find GPUs whose copies are slow with most peers, and pairs that are slow by themselves."""
    rates = {pair: sample.rate for pair, sample in copies.items()}
    usual = fastest(rates.values())
    comparable = len({frozenset(pair) for pair in copies}) >= MIN_PEERS.value
    behind = {
        pair for pair, copy in copies.items() if comparable and _is_below(copy, PAIR_SHARE.value * usual)
    }
    if len(behind) > nv_class.slow_share * len(copies):
        behind = set()
    low = _low(copies)
    if low == set(rates):
        slow = _below_expected(copies, low)
        yield from _faults(BELOW_EXPECTED, slow, copies, word, judged, machine, nv_class.name)
        low = behind
    ends = slow_ends(behind | low, rates)
    yield from _of_gpus(nv_class, ends, rates, word, machine)
    judged |= {pair for part in (ends.out, ends.into) for pairs in part.values() for pair in pairs}
    slower = [SlowPair(pair, rates[pair], usual) for pair in ends.pairs if pair in behind]
    yield from _faults(PAIR_SLOWER, slower, copies, word, judged, machine, nv_class.name)
    yield from _faults(
        BELOW_EXPECTED, _below_expected(copies, set(ends.pairs)), copies, word, judged, machine, nv_class.name
    )


def _of_gpus(
    nv_class: _NvClass, ends: SlowEnds[int], rates: Mapping[Pair, float], word: str, machine: Machine
) -> Iterator[Fault]:
    usual = fastest(rates.values())
    gpus = machine.by_index
    for index in ends.blamed:
        out, into = ends.out.get(index, []), ends.into.get(index, [])
        slow = sorted({*out, *into})
        gb_per_s = median(rates[pair] for pair in slow)
        partners = {end for pair in slow for end in pair} - {index}
        direction = "" if out and into else " from it" if out else " to it"
        part = max(1, round(nv_class.links * gb_per_s / usual))
        links = f", about {part} of {nv_class.links} NVLinks" if nv_class.links > 1 else ""
        peers = {end for pair in rates if index in pair for end in pair} - {index}
        which = "every peer" if len(peers) == len(partners) else f"{len(partners)} of {len(peers)} peers"
        says = (
            f"{word} copies{direction} with {which} reach about {roughly(gb_per_s / usual)} of the rate of "
            f"other pairs: {gb_per_s:.0f} against {usual:.0f} GB/s{links}"
        )
        evidence = {
            "gb_per_s": gb_per_s,
            "peers_gb_per_s": usual,
            "pairs": {f"{a}>{b}": rates[a, b] for a, b in slow},
        }
        about = gpus.get(index) or Gpu(index=index)
        yield BELOW_EXPECTED.fault(about, says, evidence, case=LOW_NVLINKS_OF_A_GPU, part="nvlinks")
