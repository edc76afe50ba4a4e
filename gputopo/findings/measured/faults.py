"""What went wrong while copies were measured: failures, throttling, clock ramp-up, unsteady rates."""

import re
from collections.abc import Iterable, Iterator

from gputopo.copies.numbers import is_large
from gputopo.copies.settling import ramp_ups
from gputopo.findings.rule import SEVERITIES, Fault, Finding, Rule, Severity, Threshold, check, present
from gputopo.findings.throttling import THROTTLE
from gputopo.reference.clock_events import reasons_of
from gputopo.values.bandwidth import Failure, Sample, gpu_of
from gputopo.values.machine import Machine, Throttle
from gputopo.values.subject import MACHINE, Subject

UNSTEADY_PERCENT = Threshold(
    "spread of the repeats of one copy",
    15.0,
    "% of the median",
    "Repeats of a large copy are within 1 to 2 % on an idle machine. Ours",
)
MIN_REPEATS = Threshold("repeats before their spread is judged", 3, "repeats", "Ours")

WRONG_DATA = Rule(
    "bandwidth.wrong_data",
    title="data corruption: copied bytes differ from the sent ones",
    remedy="Do not train over these paths. Reseat cards, risers and bridges, look for PCIe, NVLink and "
    "memory errors (gputopo inspect, sudo dmesg), turn IOMMU and ACS off, and set NCCL_P2P_DISABLE=1 "
    "meanwhile.",
    severities=("error",),
)
HUNG = Rule(
    "bandwidth.hung",
    title="a copy did not complete",
    remedy="Look for ACS or an IOMMU between the GPUs (gputopo inspect), the usual cause for direct copies, "
    "and see sudo dmesg | grep -i xid. Reboot if the GPU stays hung.",
    severities=("error",),
)
COPY_FAILED = Rule(
    "bandwidth.copy_failed",
    title="a copy failed; the driver's reason is in the evidence",
    remedy="See gputopo inspect and sudo dmesg | grep -i -e xid -e nvrm. If an allocation was refused, end "
    "the programs that use the GPU's memory (nvidia-smi). Then measure again.",
    severities=("error",),
)
COPIES_THROTTLED = Rule(
    "bandwidth.throttled",
    title="throttled while copies were measured",
    remedy="Remove the cause (see the throttle findings), and measure again.",
    severities=("warning", "info"),
)
RAMP_UP = Rule(
    "bandwidth.woke_up",
    title="low rates measured during clock ramp-up, which do not count",
    remedy="None needed. For rates at full clocks measure again with gputopo.",
    severities=("info",),
)
UNSTEADY = Rule(
    "bandwidth.unsteady",
    title="repeats of one copy differ widely",
    remedy="Check that nothing else uses the GPUs or the host (gputopo inspect, top), and measure again. If "
    "it persists, look for PCIe errors and changing clocks (gputopo inspect --watch).",
    thresholds=(UNSTEADY_PERCENT, MIN_REPEATS),
)

_BY_REASON = {"WRONG_DATA": WRONG_DATA, "TIMED_OUT": HUNG}
_MAX_NAMED = 4
# The messages of CUDA's samples and nvbandwidth where no copy is named.
_CUDA_FAILED = re.compile(
    r"\bCUDA_ERROR_[A-Z]|\bcudaError[A-Z]|\bCuda failure|\bCUDA error at|\bcudaGetDevice\w+ returned"
    r"|\bNo devices found|\bNVML_ERROR|\bResult = FAIL\b"
)
_KINDS = {
    "h2d": "from the host",
    "d2h": "to the host",
    "bidirectional": "both directions at once",
    "p2p_direct": "direct",
    "p2p_staged": "staged",
    "d2d_local": "within a GPU",
    "host_memory": "in host memory",
    "latency": "of a few bytes",
    "allreduce": "of gradients",
}


@check(WRONG_DATA, HUNG, COPY_FAILED)
def failures(machine: Machine) -> Iterator[Finding]:
    """Find copies that failed: one finding for each failure and kind of copy, with all pairs."""
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in machine.bandwidth.failures if machine.bandwidth else ():
        groups.setdefault((failure.reason, failure.kind), []).append(failure)
    for (reason, kind), failed in groups.items():
        rule = _BY_REASON.get(reason, COPY_FAILED)
        detail = f" ({failed[0].says or reason})" if rule is COPY_FAILED else ""
        what = "a copy failed" if rule is COPY_FAILED else rule.title
        paths = list(dict.fromkeys(f"{one.source} to {one.destination}" for one in failed))
        yield rule.finding(
            _subject(failed),
            f"{what}{detail}: {_KINDS[kind]}, {_named(paths)}",
            {
                "ways": [
                    {
                        name: value
                        for name in ("source", "destination", "reason", "says", "method", "path", "group")
                        if (value := getattr(one, name)) is not None
                    }
                    for one in failed
                ]
            },
        )


@check(COPY_FAILED)
def programs(machine: Machine) -> Iterator[Finding]:
    """Find programs whose output shows that CUDA failed, and not in which copy."""
    bandwidth = machine.bandwidth
    for name in bandwidth.source.split(" + ") if bandwidth else ():
        failed = [
            one
            for one in (bandwidth.not_measured if bandwidth else ())
            if re.match(rf"{re.escape(name)}\b", one.what) and _CUDA_FAILED.search(one.reason)
        ]
        if failed:
            words = dict.fromkeys(one.reason.removeprefix(f"{name} reported: ") for one in failed)
            yield COPY_FAILED.finding(
                MACHINE,
                f"{name} failed: {'; '.join(words)}",
                {"not_measured": [{"what": one.what, "reason": one.reason} for one in failed]},
            )


@check(COPIES_THROTTLED)
def throttled(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that were throttled during their copies: the rates are of that state."""
    counts: dict[int, dict[str, int]] = {}
    for sample in machine.bandwidth.samples if machine.bandwidth else ():
        for one in sample.conditions:
            reasons = counts.setdefault(one.gpu, {})
            for name in reasons_of(Throttle(mask=one.throttle_mask, reasons=one.throttle_reasons)):
                if name in THROTTLE:
                    reasons[name] = reasons.get(name, 0) + 1
    remedies = dict.fromkeys(
        THROTTLE[name].remedy for gpu in present(machine) for name in counts.get(gpu.index, ())
    )
    for gpu in present(machine):
        if found := counts.get(gpu.index):
            yield COPIES_THROTTLED.fault(
                gpu,
                f"{COPIES_THROTTLED.title}: {', '.join(found)}",
                {"samples_by_reason": found},
                _severity(found),
                remedy=" ".join(remedies),
            )


@check(RAMP_UP)
def ramp_up(machine: Machine) -> Iterator[Fault]:
    """Report rates measured during clock ramp-up: left out, or not meaningful."""
    if machine.bandwidth is None:
        return
    dropped: dict[int, int] = {}
    for sample in machine.bandwidth.samples:
        for index in {gpu_of(sample.source), gpu_of(sample.destination)} - {None}:
            if sample.discarded_gb_per_s and index is not None:
                dropped[index] = dropped.get(index, 0) + len(sample.discarded_gb_per_s)
    seen = {one.gpu: one for one in ramp_ups(machine.bandwidth, machine)}
    for gpu in present(machine):
        if gpu.index in dropped:
            says = "repeats during clock ramp-up left out"
            yield RAMP_UP.fault(gpu, says, {"left_out": dropped[gpu.index]})
        if (low := seen.get(gpu.index)) is not None:
            evidence: dict[str, object] = {
                "low_gb_per_s": list(low.low_gb_per_s),
                "awake_gb_per_s": low.full_gb_per_s,
                "awake_from": low.full_from,
            }
            if low.sure:
                says = "low copies in GPU memory during clock ramp-up: later at the expected rate"
            else:
                says = f"copies in GPU memory far below {low.full_from}: possibly clock ramp-up"
            yield RAMP_UP.fault(gpu, says, evidence, part="" if low.sure else "possible")


@check(UNSTEADY)
def unsteady(machine: Machine) -> Iterator[Finding]:
    """Find large copies whose repeats differ so much that their median is not meaningful."""
    found = [
        sample
        for sample in (machine.bandwidth.samples if machine.bandwidth else ())
        if is_large(sample)
        and len(sample.repeats_gb_per_s) >= MIN_REPEATS.value
        and _spread(sample) > UNSTEADY_PERCENT.value
    ]
    if found:
        paths = list(dict.fromkeys(map(_path, found)))
        yield UNSTEADY.finding(
            _subject(found),
            f"repeats of one copy differ by up to {max(map(_spread, found)):.0f} %: {_named(paths)}",
            {
                "samples": [
                    {
                        "way": _path(sample),
                        "group": sample.group,
                        "spread_percent": round(_spread(sample), 1),
                        "repeats_gb_per_s": list(sample.repeats_gb_per_s),
                    }
                    for sample in found
                ]
            },
        )


def _severity(reasons: Iterable[str]) -> Severity:
    """An error of the GPU is reported by inspect; here it means a rate of a throttled GPU."""
    worst = max((THROTTLE[name].severities[0] for name in reasons), key=SEVERITIES.index)
    return "info" if worst == "info" else "warning"


def _spread(sample: Sample) -> float:
    if sample.spread_percent is not None:
        return sample.spread_percent
    repeats, middle = sample.repeats_gb_per_s, sample.median_gb_per_s or 0
    return 100 * (max(repeats) - min(repeats)) / middle if middle else 0.0


def _path(sample: Sample) -> str:
    return f"{sample.source} to {sample.destination} ({_KINDS[sample.kind]})"


def _subject(found: Iterable[Failure | Sample]) -> Subject:
    places = {place for one in found for place in (one.source, one.destination)}
    gpus = sorted(index for place in places if (index := gpu_of(place)) is not None)
    if len(gpus) == 2 and len(places) == 2:
        return Subject.of_link(*gpus)
    return Subject.of_gpus(gpus) if len(gpus) == 1 else MACHINE


def _named(paths: list[str]) -> str:
    more = len(paths) - _MAX_NAMED
    return ", ".join(paths[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
