"""What went wrong while copies were measured: failures, throttling, clock ramp-up, unsteady rates."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from gputopo.copies.settling import ramp_ups
from gputopo.copies.sharing import HOST_KINDS
from gputopo.findings.driver import DRIVER_STATUS
from gputopo.findings.measured.direct import cutoff, host_failures, nvlink_pairs
from gputopo.findings.rule import Fault, Rule, check, copies_of, facts_of, present, rule_of, threshold
from gputopo.findings.throttling import THROTTLE
from gputopo.findings.usage import GPU_BUSY, in_use
from gputopo.reference.clock_events import reasons_of
from gputopo.values.bandwidth import (
    COLLECTIVE_NAMES,
    COLLECTIVES,
    NETWORK,
    SEPARATE_RUNS,
    Failure,
    Sample,
)
from gputopo.values.ends import HOST
from gputopo.values.finding import Severity
from gputopo.values.grouping import grouped
from gputopo.values.index_ranges import pairs_in_words
from gputopo.values.machine import Gpu, Machine, Throttle
from gputopo.values.rates import judged
from gputopo.values.subject import MACHINE, Subject

UNSTEADY_PERCENT = threshold("measured.faults.UNSTEADY_PERCENT")
BUSY_SHARE = threshold("measured.faults.BUSY_SHARE")
MIN_REPEATS = threshold("measured.faults.MIN_REPEATS")

WRONG_DATA = rule_of("bandwidth.wrong_data")
HUNG = rule_of("bandwidth.hung")
COPY_FAILED = rule_of("bandwidth.copy_failed")
COPIES_THROTTLED = rule_of("bandwidth.throttled")
RAMP_UP = rule_of("bandwidth.woke_up")
UNSTEADY = rule_of("bandwidth.unsteady", UNSTEADY_PERCENT, MIN_REPEATS, BUSY_SHARE)

_BY_REASON = {"WRONG_DATA": WRONG_DATA, "TIMED_OUT": HUNG}
BELOW_MINIMUM = "BELOW_MINIMUM"  # nccl-tests: bus bandwidth below NCCL_TESTS_MIN_BW, judged with the others
_OF_PROGRAMS = ("CUDA_ERROR", "NCCL_ERROR")  # nccl-tests: a call failed
_MAX_NAMED = 4
_KINDS: dict[str, str] = {
    "h2d": "from the host",
    "d2h": "to the host",
    "bidirectional": "both directions at once",
    "p2p_direct": "direct",
    "p2p_staged": "staged",
    "d2d_local": "within a GPU",
    "host_memory": "in host memory",
    "latency": "of a few bytes",
    "network": "between hosts",
    "network_bidirectional": "between hosts, both directions at once",
    "network_latency": "between hosts, of a few bytes",
    **{str(kind): name for kind, name in COLLECTIVE_NAMES.items()},
}


_WAY = ("source", "destination", "reason", "says", "method", "path", "group")


@check(WRONG_DATA, HUNG, COPY_FAILED)
def failures(machine: Machine) -> Iterator[Fault]:
    """Find copies that failed: one finding for each of CUDA's reasons; of wrong or hung ones for each path.

    A copy between hosts, one below a minimum that was asked for, or one of a capture that shows a driver
    that does not work, is judged elsewhere.
    """
    explained = machine.driver.status in DRIVER_STATUS and machine.source != "live"
    elsewhere = (BELOW_MINIMUM, SEPARATE_RUNS, *_OF_PROGRAMS * explained)
    failed = [
        one for one in copies_of(machine).failures if one.reason not in elsewhere and one.kind not in NETWORK
    ]
    refused = grouped((one.reason, one) for one in failed if one.reason not in _BY_REASON)
    for reason, of_reason in refused.items():
        yield from _refused(machine, reason, of_reason)
    by_path = grouped(((one.reason, one.kind, one.path), one) for one in failed if one.reason in _BY_REASON)
    for (reason, kind, _), of_path in by_path.items():
        rule = _BY_REASON[reason]
        detail = f" ({of_path[0].says})" if of_path[0].says else ""
        says = f"{rule.title}: {_KINDS[kind]}, {_named_ends(of_path)}{detail}"
        ways = [facts_of(one, *_WAY) for one in of_path]
        yield rule.fault(subject_of(of_path), says, {"ways": ways}, remedy=_remedy(machine, rule, of_path))


def _refused(machine: Machine, reason: str, failed: Sequence[Failure]) -> Iterator[Fault]:
    """Yield the faults of copies that failed for one reason: of the GPU that most have, then of the rest."""
    case = COPY_FAILED.cases.get(reason)
    what = case.says if case else failed[0].says.rpartition(" is no longer used: ")[2] or reason
    ends = {id(one): set(one.gpus) for one in failed}
    gpus = machine.by_index
    left = list(failed)
    while left:
        counts = Counter(gpu for one in left for gpu in sorted(ends[id(one)]))
        most = max(counts, key=counts.__getitem__, default=None)
        own = [one for one in left if most in ends[id(one)]] or left
        left = [one for one in left if one not in own]
        of_all = set.intersection(*(ends[id(one)] for one in own))
        about: Gpu | Subject = subject_of(own)
        if len(of_all) == 1:
            (index,) = of_all
            about = gpus.get(index) or Gpu(index=index)
        count = f"{len(own)} copies" if len(own) > 1 else "a copy"
        says = f"{what} ({reason}): {count} failed: {_named_ends(own)}"
        evidence = {"ways": [facts_of(one, *_WAY) for one in own]}
        yield COPY_FAILED.fault(about, says, evidence, case=reason if case else None)


def _named_ends(failed: Iterable[Failure]) -> str:
    return named_paths(one.source if one.kind in COLLECTIVES else one.way for one in failed)


@check(COPIES_THROTTLED)
def throttled(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that were throttled during their copies: the rates are of that state."""
    seen = grouped(
        (one.gpu, name)
        for sample in copies_of(machine).samples
        for one in sample.conditions
        for name in reasons_of(Throttle(mask=one.throttle_mask, reasons=one.throttle_reasons))
        if name in THROTTLE
    )
    gpus = [gpu for gpu in present(machine) if gpu.index in seen]
    remedy = " ".join(dict.fromkeys(THROTTLE[name].remedy for gpu in gpus for name in seen[gpu.index]))
    for gpu in gpus:
        counts = Counter(seen[gpu.index])
        # An error of the GPU is reported by inspect; here it means a rate of a throttled GPU.
        mild = all(THROTTLE[name].severities[0] == "info" for name in counts)
        severity: Severity = "info" if mild else "warning"
        says = f"{COPIES_THROTTLED.title}: {', '.join(counts)}"
        yield COPIES_THROTTLED.fault(gpu, says, {"samples_by_reason": dict(counts)}, severity, remedy=remedy)


@check(GPU_BUSY)
def other_load(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that other programs used when a measurement of this machine began."""
    bandwidth = copies_of(machine)
    if bandwidth.source == "live":
        measured = {gpu for one in bandwidth.samples for gpu in one.gpu_ends}
        yield from in_use(gpu for gpu in present(machine) if gpu.index in measured)


@check(RAMP_UP)
def ramp_up(machine: Machine) -> Iterator[Fault]:
    """Report rates measured during clock ramp-up: left out, or not meaningful."""
    dropped = Counter(
        index
        for sample in copies_of(machine).samples
        for index in set(sample.gpu_ends)
        for _ in sample.discarded_gb_per_s
    )
    seen = {one.gpu: one for one in ramp_ups(copies_of(machine), machine)}
    for gpu in present(machine):
        if gpu.index in dropped:
            says = "repeats during clock ramp-up discarded"
            yield RAMP_UP.fault(gpu, says, {"left_out": dropped[gpu.index]})
        if (low := seen.get(gpu.index)) is not None:
            evidence: dict[str, object] = {
                "low_gb_per_s": list(low.low_gb_per_s),
                "awake_gb_per_s": low.full_gb_per_s,
                "awake_from": low.full_from,
            }
            if low.sure:
                says = "copies in GPU memory slow during clock ramp-up, later at the expected rate"
            else:
                says = f"copies in GPU memory far below {low.full_from}: possibly clock ramp-up"
            yield RAMP_UP.fault(gpu, says, evidence, part="" if low.sure else "possible")


@check(UNSTEADY)
def unsteady(machine: Machine) -> Iterator[Fault]:
    """Find large copies whose repeats differ so much that their median is not meaningful."""
    found = [
        sample
        for sample in copies_of(machine).samples
        if sample.is_large and is_unsteady(sample) and sample.kind not in NETWORK
        if sample.kind != "host_memory" or not is_busy(machine)
    ]
    if found:
        widest, paths = max(map(_spread, found)), named_paths(map(path_words, found))
        samples = [
            {
                "way": path_words(sample),
                "group": sample.group,
                "spread_percent": round(_spread(sample), 1),
                "repeats_gb_per_s": list(sample.repeats_gb_per_s),
            }
            for sample in found
        ]
        says = f"repeats of one copy differ by up to {widest:.0f}%: {paths}"
        yield UNSTEADY.fault(subject_of(found), says, {"samples": samples})


def _remedy(machine: Machine, rule: Rule, failed: Sequence[Failure]) -> str | None:
    if rule is WRONG_DATA:
        return _wrong_data_remedy(machine, failed)
    # ACS and an IOMMU are on the path between two GPUs.
    of_one = all(one.source == one.destination or HOST in one.ends for one in failed)
    return DRIVER_STATUS["hung"].remedy if rule is HUNG and of_one else None


def _wrong_data_remedy(machine: Machine, failed: Sequence[Failure]) -> str:
    """Return what to do about corrupted data by where it was corrupted.

    P2P is to be turned off only where it alone is at fault: staged copies of the same pairs arrived intact.
    """
    kind, reason = failed[0].kind, failed[0].reason
    pairs = [pair for one in failed if (pair := one.pair)]
    if kind in ("d2d_local", "host_memory", *COLLECTIVES):
        places = {"d2d_local": "GPU memory", "host_memory": "host memory"}
        return WRONG_DATA.cases[places.get(kind, "collective operations")].remedy
    suspects = {gpu for gpu, one in host_failures(machine) if one.kind in HOST_KINDS and one.reason == reason}
    with_host = all(kind in HOST_KINDS or one.host_gpu is not None for one in failed)
    if with_host or (pairs and all(suspects & set(pair) for pair in pairs)):
        return WRONG_DATA.cases["with the host"].remedy
    if not pairs:
        return WRONG_DATA.remedy  # between GPUs of which none is named
    if kind == "p2p_staged" or failed[0].path == "staged":
        return WRONG_DATA.cases["staged"].remedy
    if not all(_arrives_staged(machine, *pair) for pair in pairs):
        return WRONG_DATA.cases["direct, host path unknown"].remedy
    if {(min(pair), max(pair)) for pair in pairs} & nvlink_pairs(machine):
        return WRONG_DATA.cases["over NVLink"].remedy
    case = WRONG_DATA.cases["direct"].remedy
    off = cutoff(machine, pairs)
    if off is None:
        return f"{case} No setting of NCCL turns P2P off between these pairs alone ({pairs_in_words(pairs)})."
    setting, others = off
    also = f" (and {pairs_in_words(others)})" if others else ""
    return f"{case} NCCL: {setting} turns it off between {pairs_in_words(pairs)}{also}."


def _arrives_staged(machine: Machine, source: int, destination: int) -> bool:
    """Return whether copies through host memory were measured from one GPU to another, and none failed."""
    if {gpu for gpu, _ in host_failures(machine)} & {source, destination}:
        return False
    samples = copies_of(machine).samples
    copies = {(one.kind, one.gpu_ends) for one in judged(samples)}
    in_two_steps = {("d2h", (source, None)), ("h2d", (None, destination))} <= copies
    return in_two_steps or ("p2p_staged", (source, destination)) in copies


def is_busy(machine: Machine) -> bool:
    """Return whether the host had another load when the measurement began."""
    return (copies_of(machine).host_load or 0.0) > BUSY_SHARE.value


def is_unsteady(sample: Sample) -> bool:
    """Return whether the repeats of a copy differ too much for their median to be meaningful."""
    repeats = len(sample.repeats_gb_per_s)
    return repeats >= MIN_REPEATS.value and _spread(sample) > UNSTEADY_PERCENT.value


def _spread(sample: Sample) -> float:
    if sample.spread_percent is not None:
        return sample.spread_percent
    repeats, middle = sample.repeats_gb_per_s, sample.rate
    return 100 * (max(repeats) - min(repeats)) / middle if middle else 0.0


def path_words(sample: Sample) -> str:
    """Return `gpu:0 to gpu:1 (direct)`."""
    return f"{sample.way} ({_KINDS[sample.kind]})"


def subject_of(found: Iterable[Failure | Sample]) -> Subject:
    """Return the GPU or the pair that all of these are of, else the machine."""
    ends = {end for one in found for end in one.ends}
    gpus = sorted(gpu for end in ends for gpu in end.gpus)
    if len(gpus) == 2 and len(ends) == 2:
        return Subject.of_link(*gpus)
    return Subject.of_gpus(gpus) if len(gpus) == 1 or (gpus and len(ends) == 1) else MACHINE


def named_paths(paths: Iterable[str]) -> str:
    """Return the first different ones of these, and how many more there are."""
    paths = list(dict.fromkeys(paths))
    more = len(paths) - _MAX_NAMED
    return ", ".join(paths[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
