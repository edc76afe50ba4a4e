"""The state in which copies were measured: throttling, other load, clock ramp-up, unsteady rates."""

from collections import Counter
from collections.abc import Iterable, Iterator

from gputopo.copies import ramp_ups
from gputopo.findings.rule import Fault, Rule, Threshold, check, copies_of, present
from gputopo.findings.throttling import THROTTLE
from gputopo.findings.usage import GPU_BUSY, in_use
from gputopo.reference import throttle_reasons
from gputopo.values.bandwidth import (
    COLLECTIVE_NAMES,
    Between,
    Measured,
    Rate,
    TransferRate,
)
from gputopo.values.finding import Severity
from gputopo.values.grouping import grouped
from gputopo.values.machine import Machine, Throttle
from gputopo.values.subject import MACHINE, Subject

UNSTEADY_PERCENT = Threshold(
    "spread of the repeats of one copy",
    15.0,
    "% of the median",
    "not measured on hardware: repeats of a large copy are within 1 to 2% on an idle machine",
)
BUSY_SHARE = Threshold(
    "load average of the host before the measurement",
    0.25,
    "of its CPUs",
    (
        "not measured on hardware: a process that copies all the time on one of four cores takes a "
        "quarter of the memory's rate at most"
    ),
)
MIN_REPEATS = Threshold("repeats before their spread is judged", 3, "repeats")

COPIES_THROTTLED = Rule(
    "bandwidth.throttled",
    "throttled while copies were measured",
    remedy="Remove the cause (see the throttle findings), and measure again.",
    severities=("warning", "info"),
)
RAMP_UP = Rule(
    "bandwidth.woke_up",
    "low rates during clock ramp-up; they are not used",
    remedy="None needed. For rates at full clocks measure again with gputopo.",
    severities=("info",),
)
UNSTEADY = Rule(
    "bandwidth.unsteady",
    "repeats of one copy differ widely",
    remedy=(
        "Check that nothing else uses the GPUs or the host (gputopo inspect, top), and measure again. If "
        "it persists, look for PCIe errors and changing clocks (gputopo inspect --watch)."
    ),
    thresholds=(UNSTEADY_PERCENT, MIN_REPEATS, BUSY_SHARE),
)

_MAX_NAMED = 4
KINDS: dict[str, str] = {
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


@check(COPIES_THROTTLED)
def throttled(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that were throttled during their copies: the rates are of that state."""
    seen = grouped(
        (conditions.gpu, name)
        for sample in copies_of(machine).samples
        for conditions in sample.conditions
        for name in throttle_reasons(
            Throttle(mask=conditions.throttle_mask, reasons=conditions.throttle_reasons)
        )
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
        measured = {gpu for sample in bandwidth.samples for gpu in sample.gpu_ends}
        yield from in_use(gpu for gpu in present(machine) if gpu.index in measured)


@check(RAMP_UP)
def ramp_up(machine: Machine) -> Iterator[Fault]:
    """Report rates measured during clock ramp-up: left out, or not meaningful."""
    dropped = Counter(
        index
        for sample in copies_of(machine).copies
        for index in set(sample.gpu_ends)
        for _ in sample.discarded_gb_per_s
    )
    seen = {ramp.gpu: ramp for ramp in ramp_ups(copies_of(machine), machine)}
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
    unsteady_samples = [
        sample
        for sample in copies_of(machine).samples.of(Rate)
        if sample.is_large and is_unsteady(sample) and not isinstance(sample, TransferRate)
        if sample.kind != "host_memory" or not is_busy(machine)
    ]
    if unsteady_samples:
        widest, paths = max(map(_spread, unsteady_samples)), named_paths(map(path_words, unsteady_samples))
        samples = [
            {
                "way": path_words(sample),
                "group": sample.group,
                "spread_percent": round(_spread(sample), 1),
                "repeats_gb_per_s": list(sample.repeats_gb_per_s),
            }
            for sample in unsteady_samples
        ]
        says = f"repeats of one copy differ by up to {widest:.0f}%: {paths}"
        yield UNSTEADY.fault(subject_of(unsteady_samples), says, {"samples": samples})


def is_busy(machine: Machine) -> bool:
    """Return whether the host had another load when the measurement began."""
    return (copies_of(machine).host_load or 0.0) > BUSY_SHARE.value


def is_unsteady(sample: Rate) -> bool:
    """Return whether the repeats of a copy differ too much for their median to be meaningful."""
    repeats = len(sample.repeats_gb_per_s)
    return repeats >= MIN_REPEATS.value and _spread(sample) > UNSTEADY_PERCENT.value


def _spread(sample: Rate) -> float:
    if sample.spread_percent is not None:
        return sample.spread_percent
    repeats, middle = sample.repeats_gb_per_s, sample.rate
    return 100 * (max(repeats) - min(repeats)) / middle if middle else 0.0


def path_words(sample: Measured) -> str:
    """Return `gpu:0 to gpu:1 (direct)`."""
    return f"{sample.way} ({KINDS[sample.kind]})"


def subject_of(measurements: Iterable[Between]) -> Subject:
    """Return the GPU or the pair that all of these are of, else the machine."""
    ends = {end for measured in measurements for end in measured.ends}
    gpus = sorted(gpu for end in ends for gpu in end.gpus)
    if len(gpus) == 2 and len(ends) == 2:
        return Subject.of_link(*gpus)
    return Subject.of_gpus(gpus) if len(gpus) == 1 or (gpus and len(ends) == 1) else MACHINE


def named_paths(paths: Iterable[str]) -> str:
    """Return the first different ones of these, and how many more there are."""
    paths = list(dict.fromkeys(paths))
    more = len(paths) - _MAX_NAMED
    return ", ".join(paths[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
