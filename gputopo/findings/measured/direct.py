"""Direct copies (P2P) that are slower than copies staged through host memory, and what to do about them."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from gputopo.findings.measured.nccl_p2p import P2P_OFF, cutoff, nvlink_pairs
from gputopo.findings.rule import Case, Fault, Rule, Threshold, copies_of
from gputopo.topology import class_name
from gputopo.values.bandwidth import CopyLatency, CopyRate, Failure, Pair, Path
from gputopo.values.finding import Severity
from gputopo.values.grouping import best, grouped
from gputopo.values.index_ranges import pairs_in_words
from gputopo.values.machine import Hop, Machine
from gputopo.values.rates import pair_copies
from gputopo.values.subject import MACHINE, Subject

SLOWER_SHARE = Threshold(
    "direct copies slower than staged ones",
    0.03,
    "below the staged rate",
    (
        "Published matrices of one run repeat within 2% (0.77 and 0.79 GB/s for one staged pair of "
        "7gforce-v2); direct copies across the host bridge of 7gforce are 3.9 to 7.6% slower (0.73 "
        "against 0.76 to 0.79 GB/s)"
    ),
)
PRINTED_GB_PER_S = Threshold(
    "rounding of printed rates",
    0.01,
    "GB/s",
    "The tools print two decimals: 0.40 and 0.41 may be the same",
)
# 1.4826 times the median deviation of normal noise is one standard deviation.
_DEVIATION = 1.4826
DEVIATIONS = Threshold(
    "noise",
    3.0,
    "standard deviations of both numbers together",
    "99.7% of normally distributed repeats",
)
LATENCY_SHARE = Threshold(
    "lower latency of direct copies",
    0.8,
    "of the staged latency",
    (
        "not measured on hardware: staged latencies of one matrix differ by a fifth (12.5 and 15.6 us in "
        "7gforce); direct ones without a fault have a tenth to a half of them"
    ),
)

NOT_IN_ALL_RESPECTS = Case(
    "not in all respects",
    "direct copies are slower in one direction, but faster in both at once or with lower latency",
    severity="info",
    remedy=(
        "Leave P2P on. If a job sends large blocks in one direction at a time, time it with and without "
        "P2P between these pairs."
    ),
)
PAIRS_WITH_NVLINK = Case(
    "pairs with NVLink",
    "the slower direct copies use NVLinks",
    severity="warning",
    remedy="Leave P2P on, and look for NVLinks that are down or have errors (nvidia-smi nvlink -s and -e).",
)
HOST_PATH_AT_FAULT = Case(
    "host path at fault",
    "copies of these GPUs with the host failed or corrupted data",
    severity="warning",
    remedy=(
        "Leave P2P on: without it all copies take the path through the host. Repair that first (see "
        "bandwidth.wrong_data, bandwidth.copy_failed), and measure again."
    ),
)
HOST_PATH_NOT_VERIFIED = Case(
    "host path not verified",
    "the tool that measured does not compare the copied data",
    severity="warning",
    remedy=(
        "Before P2P is turned off, measure with gputopo bandwidth: it compares every byte, also of the "
        "path through the host that all copies would then take."
    ),
)
NO_SETTING = Case(
    "no setting",
    "no NCCL_P2P_LEVEL turns P2P off only between these pairs",
    severity="warning",
    remedy=(
        "Choose other pairs (gputopo plan takes this result into account). On one switch look for ACS "
        "and the IOMMU (gputopo inspect: p2p.acs_on, p2p.iommu)."
    ),
)
DIRECT_SLOWER = Rule(
    "p2p.direct_slower_than_staged",
    "direct copies (P2P) slower than copies staged through host memory",
    remedy=(
        "Let NCCL stage these pairs with the NCCL_P2P_LEVEL of the message; NCCL_P2P_DISABLE=1 only "
        "without any NVLink. TensorFlow's own copies ignore NCCL's variables; gputopo plan uses this "
        "result. On one switch look for ACS and the IOMMU (gputopo inspect: p2p.acs_on, p2p.iommu)."
    ),
    severities=("warning", "info"),
    thresholds=(SLOWER_SHARE, PRINTED_GB_PER_S, DEVIATIONS, LATENCY_SHARE),
    cases=(
        NOT_IN_ALL_RESPECTS,
        PAIRS_WITH_NVLINK,
        HOST_PATH_AT_FAULT,
        HOST_PATH_NOT_VERIFIED,
        NO_SETTING,
    ),
)
_BESIDE = "TensorFlow's own copies ignore NCCL's variables; gputopo plan uses this result."
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
    compared = sorted(
        compared_pair for compared_pair in _compared(machine) if compared_pair.slow.pair not in judged
    )
    everywhere = [compared_pair.slow.pair for compared_pair in compared if not compared_pair.better]
    by_class = grouped(
        ((class_of(machine, compared_pair.slow.pair), compared_pair.better), compared_pair)
        for compared_pair in compared
    )
    for (hop, better), group in by_class.items():
        slow = [compared_pair.slow for compared_pair in group]
        pairs = [slow_pair.pair for slow_pair in slow]
        judged |= set[Pair]() if better else {*pairs}
        than = "copies staged through host memory" + (", one direction alone" if better else "")
        worst = min(group, key=lambda compared_pair: compared_pair.slow.share)
        says = slow_words("direct", hop, slow, than)
        if worst.both_gb_per_s is not None:
            says += ", both directions at once {:.2f} against {:.2f} GB/s".format(*worst.both_gb_per_s)
        if worst.latency_us is not None:
            says += ", latency {:.2f} against {:.2f} us".format(*worst.latency_us)
        evidence = {"class": hop, "pairs": dict(map(_evidence, group))}
        remedy = NOT_IN_ALL_RESPECTS.remedy if better else _remedy(machine, everywhere)
        severity: Severity = "info" if better else "warning"
        yield DIRECT_SLOWER.fault(subject_of(pairs), says, evidence, severity, remedy=remedy)


def slow_words(word: str, hop: str, slow: Sequence[SlowPair], than: str) -> str:
    """Return the message of slow pairs of a class, with the numbers of the worst."""
    worst = min(slow, key=lambda slow_pair: slow_pair.share)
    a, b = worst.pair
    which = f"{word} copies ({hop}: {pairs_in_words(slow_pair.pair for slow_pair in slow)})"
    return (
        f"{which} reach {worst.share:.0%} of {than}: "
        f"{worst.gb_per_s:.2f} against {worst.against_gb_per_s:.2f} GB/s for {a} to {b}"
    )


def is_slower(sample: CopyRate, other: CopyRate) -> bool:
    """Return whether a copy is slower than another beyond noise and the rounding of printed rates."""
    deviation = (noise_share(sample.repeats_gb_per_s) ** 2 + noise_share(other.repeats_gb_per_s) ** 2) ** 0.5
    noise = DEVIATIONS.value * deviation
    missing = other.rate - sample.rate
    # Half a unit of the last place for the rounding of floats: 0.41 - 0.40 is a little more than 0.01.
    return missing > max(SLOWER_SHARE.value, noise) * other.rate and missing > 1.5 * PRINTED_GB_PER_S.value


def class_of(machine: Machine, pair: Pair) -> str:
    """Return the class of a pair as in the matrix of `nvidia-smi topo -m`, or `unknown path`."""
    hop = class_name(machine.link(*pair))
    return "unknown path" if hop == "unknown" else hop


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
    samples = copies_of(machine).copies
    direct, staged = pair_copies(samples, "p2p_direct"), pair_copies(samples, "p2p_staged")
    both = [pair_copies(samples, "bidirectional", path) for path in _PATHS]
    latencies = [_latencies(machine, path) for path in _PATHS]
    for pair, sample in direct.items():
        if pair not in staged or not is_slower(sample, staged[pair]):
            continue
        sums = delays = None
        better = False
        at_once, staged_at_once = (copies.get(pair, copies.get(pair[::-1])) for copies in both)
        if at_once and staged_at_once:
            sums = at_once.rate, staged_at_once.rate
            better = is_slower(staged_at_once, at_once)
        small, staged_small = (copies.get(pair) for copies in latencies)
        # A pointer chase and a queued copy of a few bytes are not comparable.
        if small and staged_small and small.method == staged_small.method:
            delays = small.median_us, staged_small.median_us
            better = better or delays[0] < LATENCY_SHARE.value * delays[1]
        yield _Compared(SlowPair(pair, sample.rate, staged[pair].rate), sums, delays, better)


def _latencies(machine: Machine, path: Path) -> dict[Pair, CopyLatency]:
    return best(
        (
            (pair, sample)
            for sample in copies_of(machine).samples.of(CopyLatency)
            if sample.path == path and (pair := sample.pair)
        ),
        lambda sample: -sample.median_us,
    )


def _evidence(compared: _Compared) -> tuple[str, dict[str, float]]:
    numbers = {"direct_gb_per_s": compared.slow.gb_per_s, "staged_gb_per_s": compared.slow.against_gb_per_s}
    if compared.both_gb_per_s is not None:
        numbers["direct_both_gb_per_s"], numbers["staged_both_gb_per_s"] = compared.both_gb_per_s
    if compared.latency_us is not None:
        numbers["direct_latency_us"], numbers["staged_latency_us"] = compared.latency_us
    return f"{compared.slow.pair[0]}>{compared.slow.pair[1]}", numbers


def _remedy(machine: Machine, pairs: Iterable[Pair]) -> str:
    pairs = {(min(pair), max(pair)) for pair in pairs}
    if {gpu for gpu, _ in host_failures(machine)} & {gpu for pair in pairs for gpu in pair}:
        return HOST_PATH_AT_FAULT.remedy
    if pairs & nvlink_pairs(machine):
        return PAIRS_WITH_NVLINK.remedy
    setting = cutoff(machine, pairs)
    if setting is None or setting[1]:
        return f"{NO_SETTING.says} ({pairs_in_words(pairs)}). {NO_SETTING.remedy}"
    # Only a live measurement compares what arrived through the host with what was sent.
    if setting[0] == P2P_OFF and "live" not in copies_of(machine).source.split(" + "):
        return HOST_PATH_NOT_VERIFIED.remedy
    links = [machine.link(*pair) for pair in pairs]
    switched = any(link is not None and link.hop is not None and link.hop < Hop.PHB for link in links)
    causes = _ON_ONE_SWITCH if switched else ""
    return f"Let NCCL stage {pairs_in_words(pairs)}: {setting[0]}. {_BESIDE}{causes}"


def noise_share(repeats: tuple[float, ...]) -> float:
    """Return one standard deviation of repeats as a share of their median; 0 for fewer than three."""
    if len(repeats) < 3:
        return 0.0
    middle = median(repeats)
    deviation = _DEVIATION * median(abs(repeat - middle) for repeat in repeats)
    return deviation / middle if middle > 0 else 0.0
