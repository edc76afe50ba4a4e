"""Direct copies (P2P) that are slower than those staged through host memory, and what to do about them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

from gputopo.findings.rule import Fault, copies_of, present, rule_of, threshold
from gputopo.reference.expectations import over_nvlink
from gputopo.topology.hops import class_name
from gputopo.topology.peer_access import statuses
from gputopo.values.bandwidth import Failure, Pair, Path, Sample, noise_share
from gputopo.values.finding import Severity
from gputopo.values.grouping import best, grouped
from gputopo.values.index_ranges import pairs_in_words
from gputopo.values.machine import Hop, Machine
from gputopo.values.rates import pair_copies
from gputopo.values.subject import MACHINE, Subject

P2P_OFF = "NCCL_P2P_DISABLE=1"
LEVELS = ("NVL", "PIX", "PXB", "PHB", "SYS")  # near to far
_LEVEL_OF_HOP = {
    Hop.INTERNAL: "PIX",
    Hop.PIX: "PIX",
    Hop.PXB: "PXB",
    Hop.PHB: "PHB",
    Hop.NODE: "PHB",
    Hop.SYS: "SYS",
}


def cutoff(machine: Machine, pairs: Iterable[Pair]) -> tuple[str, tuple[Pair, ...]] | None:
    """Return the setting that turns P2P off between these pairs and between as few others as possible,
    and these others.

    P2P_OFF only on machines without any NVLink. None where one of the pairs has NVLinks, or their
    distance is unknown and other pairs would lose P2P.
    """
    unwanted = {(min(pair), max(pair)) for pair in pairs}
    links = {(link.a, link.b): link for link in machine.links}
    gpus = sorted({gpu.index for gpu in present(machine)} | {gpu for pair in unwanted for gpu in pair})
    by_nvlink = nvlink_pairs(machine)
    levels: dict[Pair, str | None] = {}
    for pair in combinations(gpus, 2):
        link = links.get(pair)
        hop = link.hop if link else None
        levels[pair] = "NVL" if pair in by_nvlink else _LEVEL_OF_HOP[hop] if hop else None
    others = [
        pair
        for pair in levels
        if pair not in unwanted and not (pair in links and statuses(links[pair]))  # without P2P as it is
    ]
    if unwanted & by_nvlink:
        return None
    none_at_all = "NCCL_P2P_LEVEL=NVL" if has_nvlink(machine) else P2P_OFF
    nearest = min((_place(levels[pair]) for pair in unwanted), default=None)
    if all(levels[pair] == "NVL" for pair in others) and (nearest is None or nearest < LEVELS.index("PXB")):
        return none_at_all, ()
    if nearest is None or nearest < 0:
        return None
    setting = none_at_all if nearest < LEVELS.index("PXB") else f"NCCL_P2P_LEVEL={LEVELS[nearest - 1]}"
    return setting, tuple(pair for pair in others if not 0 <= _place(levels[pair]) < nearest)


def nvlink_pairs(machine: Machine) -> frozenset[Pair]:
    """Return the pairs joined by NVLink, low index first: reported so, or faster than their PCIe links."""
    reported = {(link.a, link.b) for link in machine.links if link.nvlinks}
    return over_nvlink(copies_of(machine).samples, machine) | reported


def has_nvlink(machine: Machine) -> bool:
    """Return whether any two GPUs are, or may be, joined by NVLink."""
    if any(port.active is not False for gpu in present(machine) for port in gpu.nvlinks or ()):
        return True
    return bool(nvlink_pairs(machine))


def _place(level: str | None) -> int:
    """Return the place of a level from near to far, -1 where the distance is unknown."""
    return -1 if level is None else LEVELS.index(level)


SLOWER_SHARE = threshold("measured.direct.SLOWER_SHARE")
PRINTED_GB_PER_S = threshold("measured.direct.PRINTED_GB_PER_S")
DEVIATIONS = threshold("measured.direct.DEVIATIONS")
LATENCY_SHARE = threshold("measured.direct.LATENCY_SHARE")

DIRECT_SLOWER = rule_of(
    "p2p.direct_slower_than_staged", SLOWER_SHARE, PRINTED_GB_PER_S, DEVIATIONS, LATENCY_SHARE
)
_BESIDE = "TensorFlow's copies do not follow NCCL's variables: gputopo plan takes this result into account."
_ON_ONE_SWITCH = " First look for ACS and the IOMMU (gputopo inspect: p2p.acs_on, p2p.iommu)."


_PATHS: tuple[Path, Path] = ("direct", "staged")


class SlowPair(NamedTuple):
    """One ordered pair that is slower than what it is compared with."""

    pair: Pair
    gb_per_s: float
    against_gb_per_s: float

    @property
    def share(self) -> float:
        """The rate as a share of what it is compared with."""
        return self.gb_per_s / self.against_gb_per_s


class _Compared(NamedTuple):
    """Direct and staged numbers of one ordered pair; `better`: whether one of them is better directly."""

    slow: SlowPair
    both_gb_per_s: tuple[float, float] | None
    latency_us: tuple[float, float] | None
    better: bool


def slower_than_staged(machine: Machine, judged: set[Pair]) -> Iterator[Fault]:
    """Yield the pairs that copy faster through host memory than directly, a fault for each class of link.

    A warning only where both directions at once and latency, as far as they were measured, are no better
    directly; else all numbers are reported, and nothing is to be done. `judged`: pairs that have a fault
    already; these are added, but for those of which only one number is worse.
    """
    compared = sorted(one for one in _compared(machine) if one.slow.pair not in judged)
    everywhere = [one.slow.pair for one in compared if not one.better]
    for (hop, better), found in grouped(
        ((class_of(machine, one.slow.pair), one.better), one) for one in compared
    ).items():
        pairs = [one.slow.pair for one in found]
        judged |= set[Pair]() if better else {*pairs}
        than = "those staged through host memory" + (", one direction alone" if better else "")
        worst = min(found, key=lambda one: one.slow.share)
        says = slow_words("direct", hop, [one.slow for one in found], than) + _other_numbers(worst)
        evidence = {"class": hop, "pairs": dict(map(_evidence, found))}
        remedy = DIRECT_SLOWER.cases["not in all respects"].remedy if better else _remedy(machine, everywhere)
        severity: Severity = "info" if better else "warning"
        yield DIRECT_SLOWER.fault(subject_of(pairs), says, evidence, severity, remedy=remedy)


def slow_words(word: str, hop: str, slow: Sequence[SlowPair], than: str) -> str:
    """Return the message of slow pairs of a class, with the numbers of the worst."""
    worst = min(slow, key=lambda one: one.share)
    a, b = worst.pair
    which = f"{word} copies ({hop}: {pairs_in_words(one.pair for one in slow)})"
    return (
        f"{which} reach {worst.share:.0%} of {than}: "
        f"{worst.gb_per_s:.2f} against {worst.against_gb_per_s:.2f} GB/s for {a} to {b}"
    )


def is_slower(one: Sample, other: Sample) -> bool:
    """Return whether a copy is slower than another beyond noise and the rounding of printed rates."""
    deviation = (noise_share(one.repeats_gb_per_s) ** 2 + noise_share(other.repeats_gb_per_s) ** 2) ** 0.5
    noise = DEVIATIONS.value * deviation
    missing = other.rate - one.rate
    # Half a unit of the last place for the rounding of floats: 0.41 - 0.40 is a little more than 0.01.
    return missing > max(SLOWER_SHARE.value, noise) * other.rate and missing > 1.5 * PRINTED_GB_PER_S.value


def class_of(machine: Machine, pair: Pair) -> str:
    """Return the class of a pair as in the matrix of `nvidia-smi topo -m`, or `unknown hop`."""
    hop = class_name(machine.link(*pair))
    return "unknown hop" if hop == "unknown" else hop


def subject_of(pairs: Iterable[Pair]) -> Subject:
    """Return a single pair as the subject of a finding, the GPU that several have, else the machine."""
    unordered = {(min(pair), max(pair)) for pair in pairs}
    if len(unordered) == 1:
        return Subject.of_link(*min(unordered))
    common = set.intersection(*map(set, unordered))
    return Subject.of_gpus(sorted(common)) if common else MACHINE


def host_failures(machine: Machine) -> Iterator[tuple[int, Failure]]:
    """Yield each failure of a copy that passes host memory, with each GPU of it."""
    for failure in copies_of(machine).failures:
        ends = failure.gpu_ends
        with_host = failure.kind in ("h2d", "d2h", "bidirectional", "latency") and None in ends
        if with_host or failure.kind == "p2p_staged" or failure.path == "staged":
            yield from ((gpu, failure) for gpu in ends if gpu is not None)


def _compared(machine: Machine) -> Iterator[_Compared]:
    """Yield the pairs that are slower directly in one direction, with all that was measured of them."""
    samples = copies_of(machine).samples
    direct, staged = pair_copies(samples, "p2p_direct"), pair_copies(samples, "p2p_staged")
    both = [pair_copies(samples, "bidirectional", path) for path in _PATHS]
    latencies = [_latencies(samples, path) for path in _PATHS]
    for pair, one in direct.items():
        if pair not in staged or not is_slower(one, staged[pair]):
            continue
        one_of = [found.get(pair, found.get(pair[::-1])) for found in both]
        sums = (one_of[0], one_of[1]) if one_of[0] and one_of[1] else None
        small = [found.get(pair) for found in latencies]
        # A pointer chase and a queued copy of a few bytes are not comparable.
        alike = small[0] and small[1] and small[0].method == small[1].method
        delays = (
            (small[0].median_us or 0.0, small[1].median_us or 0.0)
            if small[0] and small[1] and alike
            else None
        )
        yield _Compared(
            SlowPair(pair, one.rate, staged[pair].rate),
            sums and (sums[0].rate, sums[1].rate),
            delays,
            better=bool(sums and is_slower(sums[1], sums[0]))
            or bool(delays and delays[0] < LATENCY_SHARE.value * delays[1]),
        )


def _latencies(samples: Iterable[Sample], path: Path) -> dict[Pair, Sample]:
    return best(
        (
            (pair, one)
            for one in samples
            if one.kind == "latency" and one.path == path and (pair := one.pair)
            if one.median_us and not one.invalid
        ),
        lambda one: -(one.median_us or 0.0),
    )


def _other_numbers(one: _Compared) -> str:
    words = ""
    if one.both_gb_per_s is not None:
        words += ", both directions at once {:.2f} against {:.2f} GB/s".format(*one.both_gb_per_s)
    if one.latency_us is not None:
        words += ", latency {:.2f} against {:.2f} us".format(*one.latency_us)
    return words


def _evidence(one: _Compared) -> tuple[str, dict[str, float]]:
    found = {"direct_gb_per_s": one.slow.gb_per_s, "staged_gb_per_s": one.slow.against_gb_per_s}
    if one.both_gb_per_s is not None:
        found["direct_both_gb_per_s"], found["staged_both_gb_per_s"] = one.both_gb_per_s
    if one.latency_us is not None:
        found["direct_latency_us"], found["staged_latency_us"] = one.latency_us
    return f"{one.slow.pair[0]}>{one.slow.pair[1]}", found


def _remedy(machine: Machine, pairs: Iterable[Pair]) -> str:
    pairs = {(min(pair), max(pair)) for pair in pairs}
    if {gpu for gpu, _ in host_failures(machine)} & {gpu for pair in pairs for gpu in pair}:
        return DIRECT_SLOWER.cases["host path at fault"].remedy
    if pairs & nvlink_pairs(machine):
        return DIRECT_SLOWER.cases["pairs with NVLink"].remedy
    found = cutoff(machine, pairs)
    if found is None or found[1]:
        case = DIRECT_SLOWER.cases["no setting"]
        return f"{case.says} ({pairs_in_words(pairs)}). {case.remedy}"
    # Only a live measurement compares what arrived through the host with what was sent.
    if found[0] == P2P_OFF and "live" not in copies_of(machine).source.split(" + "):
        return DIRECT_SLOWER.cases["host path not verified"].remedy
    links = [machine.link(*pair) for pair in pairs]
    switched = any(link is not None and link.hop is not None and link.hop < Hop.PHB for link in links)
    causes = _ON_ONE_SWITCH if switched else ""
    return f"Let NCCL stage {pairs_in_words(pairs)}: {found[0]}. {_BESIDE}{causes}"
