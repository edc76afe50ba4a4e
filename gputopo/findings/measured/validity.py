"""Measured numbers that are shown and not used, and why; several runs of one copy."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from gputopo.copies import AT_ONCE_SUM, l2_mib, larger_copies, limit_of, memory_limit, on_path_of
from gputopo.findings.measured.faults import path_words, subject_of
from gputopo.findings.rule import Fault, Rule, check, copies_of, facts_of, present
from gputopo.values.bandwidth import AGREE_SHARE, CopyRate, Invalid, Latency, Rate, Sample, gb
from gputopo.values.finding import Severity
from gputopo.values.grouping import grouped
from gputopo.values.machine import Gpu, Machine

CACHE_RATE = Rule(
    "bandwidth.cache_rate",
    "copies in GPU memory faster than the memory: served by the L2 cache",
    remedy=(
        "None needed: the number is not used. To measure the memory, copy more than the cache holds "
        "(gputopo bandwidth, p2pBandwidthLatencyTest, nvbandwidth -t device_local_copy)."
    ),
    severities=("info",),
)
ABOVE_LINK = Rule(
    "bandwidth.above_link",
    "copies faster than the widest link of the GPUs",
    remedy=(
        "The number is not used. Check its unit, and whether it is a sum of both directions or of "
        "several GPUs. Measure again with gputopo bandwidth."
    ),
)
INCONSISTENT = Rule(
    "bandwidth.inconsistent",
    "one direction alone and both at once contradict each other",
    remedy=(
        "The number is not used. Check that nothing else used the GPUs, and measure again with gputopo "
        "bandwidth. If both directions at once stay below one, look for ACS and an IOMMU that "
        "translates."
    ),
)
SEVERAL_RUNS = Rule(
    "bandwidth.several_runs",
    "one copy measured by several runs",
    remedy="Look at the runs one by one: gputopo bandwidth --from RUN.",
    severities=("warning", "info"),
)
_MAX_NAMED = 4
_MAX_RANGES = 2
SUM_TOLERANCE = 0.2  # Twice the rate of others, within 10 %: both directions do not quite reach it.
# Not measured on hardware.


@check(CACHE_RATE)
def cache_rates(machine: Machine) -> Iterator[Fault]:
    """Report copies within a GPU that are faster than its memory."""
    for gpu in present(machine):
        samples = [sample for sample in _invalid(machine, "cache") if sample.source.gpu == gpu.index]
        if samples:
            fastest = max(samples, key=lambda sample: sample.rate)
            limit = memory_limit(gpu)
            if fastest.rate > limit.gb_per_s:
                words = f"is above the {gb(limit.gb_per_s)} GB/s of {limit.source}: {_served(fastest, gpu)}"
            else:
                larger = larger_copies(fastest, copies_of(machine).copies, gpu)
                reached = gb(max((sample.rate for sample in larger), default=0.0))
                copy = f"a copy of {(fastest.bytes or 0) / 1e6:.3g} MB"
                cache = f"the L2 cache of {l2_mib(gpu) or 0.0:g} MiB"
                words = f"is above the {reached} of larger copies: {copy} fits into {cache}"
            limits = {"memory_gb_per_s": limit.gb_per_s, "l2_mib": l2_mib(gpu)}
            evidence = {"gb_per_s": [sample.rate for sample in samples], "bytes": fastest.bytes} | limits
            yield CACHE_RATE.fault(gpu, f"{gb(fastest.rate)} GB/s {words}", evidence)


@check(ABOVE_LINK)
def above_link(machine: Machine) -> Iterator[Fault]:
    """Report copies that no link of the GPUs carries: one finding for each kind of copy."""
    gpus = machine.by_index
    by_kind = grouped(
        (sample.kind, (sample, limit))
        for sample in _invalid(machine, "above_link")
        if (limit := limit_of(sample, gpus)) is not None
    )
    for above in by_kind.values():
        worst, limit = max(above, key=lambda sample: sample[0].rate / sample[1].gb_per_s)
        says = (
            f"copies faster than the link: {gb(worst.rate)} GB/s {path_words(worst)}, at most "
            f"{gb(limit.gb_per_s)} over {limit.source}{_as_a_sum(worst, machine)}{_more(len(above))}"
        )
        samples = [{**_evidence(sample), "limit_gb_per_s": limit.gb_per_s} for sample, limit in above]
        yield ABOVE_LINK.fault(subject_of(sample for sample, _ in above), says, {"samples": samples})


@check(INCONSISTENT)
def inconsistent(machine: Machine) -> Iterator[Fault]:
    """Report numbers that contradict those of the same path."""
    contradicting = list(_invalid(machine, "inconsistent"))
    if not contradicting:
        return
    beside = [
        [other for other in on_path_of(sample, copies_of(machine).copies) if other.invalid is None]
        for sample in contradicting
    ]
    first = ", ".join(f"{gb(other.rate)} {path_words(other)}" for other in beside[0][:_MAX_NAMED])
    number, why = (
        f"{gb(contradicting[0].rate)} GB/s {path_words(contradicting[0])}",
        _contradiction(contradicting[0], beside[0]),
    )
    samples = [
        {**_evidence(sample), "beside": list(map(_evidence, others))}
        for sample, others in zip(contradicting, beside, strict=True)
    ]
    says = f"{number} is {why}: {first}{_more(len(contradicting))}"
    yield INCONSISTENT.fault(subject_of(contradicting), says, {"samples": samples})


@check(SEVERAL_RUNS)
def several_runs(machine: Machine) -> Iterator[Fault]:
    """Report copies that were measured by several runs of a tool."""
    several = [sample for sample in copies_of(machine).samples if sample.runs]
    for agree in (False, True):
        repeated = [sample for sample in several if sample.runs_agree == agree]
        if not repeated:
            continue
        count = "1 number" if len(repeated) == 1 else f"{len(repeated)} numbers"
        if agree:
            says = f"{count} of several runs, within {AGREE_SHARE:.0%} of their median, which is used"
        else:
            says = (
                f"{count} of several runs, which differ: {_ranges(repeated)}. The median is used, and is "
                "judged only if every run is below the limit"
            )
        samples = [
            {**_evidence(sample), "runs": [{"run": run.name, "value": run.value} for run in sample.runs]}
            for sample in repeated
        ]
        severity: Severity = "info" if agree else "warning"
        remedy = "None needed." if agree else None
        yield SEVERAL_RUNS.fault(subject_of(repeated), says, {"samples": samples}, severity, remedy=remedy)


def contradiction(machine: Machine) -> str | None:
    """Return which numbers cannot be true together, so that nothing can be planned by them; None if all can.

    Copies that no link carries; one direction and both at once that exclude each other; several runs of one
    copy that differ as much as a sum of both directions differs from one of them.
    """
    for finding in (*above_link(machine), *inconsistent(machine)):
        return finding.says
    for sample in copies_of(machine).samples.of(Rate):
        values = sample.run_values
        if values and max(values) > AT_ONCE_SUM * min(values):
            return f"{path_words(sample)} measured with {gb(min(values))} and with {gb(max(values))} GB/s"
    return None


def _invalid(machine: Machine, why: Invalid) -> Iterator[CopyRate]:
    return (sample for sample in copies_of(machine).copies if sample.invalid == why)


def _served(sample: CopyRate, gpu: Gpu) -> str:
    """Return what served a copy within a GPU: its L2 cache, unless the copy is much larger."""
    size = "" if sample.bytes is None else f" of {sample.bytes / 1e6:.3g} MB"
    cache = l2_mib(gpu)
    if cache is not None and sample.bytes is not None and sample.bytes > 2 * cache * 2**20:
        return f"not possible, and the copy{size} does not fit into the L2 cache of {cache:g} MiB"
    return f"the copy{size} was served by the L2 cache" + ("" if cache is None else f" of {cache:g} MiB")


def _contradiction(sample: CopyRate, beside: Sequence[CopyRate]) -> str:
    """Return how a number contradicts the valid ones of its path, and the likeliest cause."""
    alone = max((other.rate for other in beside if other.kind != "bidirectional"), default=0.0)
    if sample.kind == "bidirectional":
        if sample.rate > 2 * alone:
            return "more than twice one direction"
        return "not a sum of both directions: one alone is about as fast"
    return "faster during other copies than alone, so it is a sum of both directions"


def _as_a_sum(sample: CopyRate, machine: Machine) -> str:
    samples = copies_of(machine).copies
    others = [other.rate for other in samples if other.kind == sample.kind and other.is_large]
    if others and abs(sample.rate / median(others) - 2) <= SUM_TOLERANCE:
        return ": twice the usual rate, so a sum of both directions"
    return ""


def _ranges(samples: Sequence[Sample]) -> str:
    """Return the smallest and the largest number of all runs of each copy, the widest ranges first."""
    words = []
    ranges = [(min(sample.run_values), max(sample.run_values), sample) for sample in samples]
    for least, most, sample in sorted(ranges, key=lambda item: -item[1] / (item[0] or 1.0)):
        unit = "us" if isinstance(sample, Latency) else "GB/s"
        runs = f"{len(sample.run_values)} runs"
        words.append(f"{path_words(sample)} {gb(least)} to {gb(most)} {unit} ({runs})")
    more = len(words) - _MAX_RANGES
    return "; ".join(words[:_MAX_RANGES]) + (f"; and {more} more" if more > 0 else "")


def _evidence(sample: Sample) -> dict[str, Any]:
    facts = ("kind", "source", "destination", "bytes", "method", "path", "group", "median_gb_per_s")
    return facts_of(sample, *facts)


def _more(count: int) -> str:
    return f"; and {count - 1} more" if count > 1 else ""
