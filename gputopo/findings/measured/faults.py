"""What went wrong while copies were measured: failures, low clocks, cards waking up, unsteady numbers."""

import re
from collections.abc import Iterable, Iterator

from gputopo.copies.numbers import is_large
from gputopo.copies.settling import waking
from gputopo.findings.fault import Fault, findings_of, present
from gputopo.findings.finding import SEVERITIES, Finding, Severity
from gputopo.findings.throttle_words import BY_NAME
from gputopo.reference.clock_events import reasons_of
from gputopo.values.bandwidth import Failure, Sample, gpu_of
from gputopo.values.machine import Machine, Throttle

# Repeats of one large copy lie within 1 to 2 % on a quiet machine; from here on a median is a guess. Ours.
UNSTEADY_PERCENT = 15.0
FEWEST_REPEATS = 3
_MOST_NAMED = 4

_WORDS: dict[str, tuple[str, str, str]] = {
    "WRONG_DATA": (
        "bandwidth.wrong_data",
        "the copied bytes were not those that were sent",
        "do not train over these ways: seat cards, risers and bridges again, look for PCIe, NVLink and "
        "memory "
        "errors (gputopo inspect, sudo dmesg), turn the IOMMU and ACS off, and set NCCL_P2P_DISABLE=1 "
        "meanwhile",
    ),
    "TIMED_OUT": (
        "bandwidth.hung",
        "a copy did not come back",
        "direct copies that hang are most often access control (ACS) or an IOMMU between the GPUs: see "
        "gputopo "
        "inspect and sudo dmesg | grep -i xid; a card that stays hung needs a reboot",
    ),
}
_FAILED = (
    "bandwidth.copy_failed",
    "a copy could not be made",
    "the driver's reason is in the evidence: sudo dmesg | grep -i -e xid -e nvrm tells more; for a refused "
    "allocation end the programs that hold the card's memory (nvidia-smi)",
)
# How CUDA's samples and nvbandwidth say it where no copy is named.
_CUDA_FAILED = re.compile(
    r"\bCUDA_ERROR_[A-Z]|\bcudaError[A-Z]|\bCuda failure|\bCUDA error at|\bcudaGetDevice\w+ returned"
    r"|\bNo devices found|\bNVML_ERROR|\bResult = FAIL\b"
)
_AGAIN = (
    "see what the driver tells of the cards (gputopo inspect, nvidia-smi, sudo dmesg | grep -i -e xid -e "
    "nvrm), make that work, and run the program again"
)
_KINDS = {
    "h2d": "from the host",
    "d2h": "to the host",
    "bidirectional": "both ways at once",
    "p2p_direct": "direct",
    "p2p_staged": "staged",
    "d2d_local": "within a GPU",
    "host_memory": "in host memory",
    "latency": "of a few bytes",
    "allreduce": "of gradients",
}


def failures(machine: Machine) -> Iterator[Finding]:
    """Give one finding for each way of failing and kind of copy, with every pair that failed so."""
    groups: dict[tuple[str, str, str], list[Failure]] = {}
    for failure in machine.bandwidth.failures if machine.bandwidth else ():
        own = failure.reason if failure.reason not in _WORDS else ""
        id = _WORDS.get(failure.reason, _FAILED)[0]
        groups.setdefault((id, failure.kind, own), []).append(failure)
    for (id, kind, _), failed in groups.items():
        _, says, remedy = _WORDS.get(failed[0].reason, _FAILED)
        ways = list(dict.fromkeys(f"{one.source} to {one.destination}" for one in failed))
        reason = f" ({failed[0].says or failed[0].reason})" if id == "bandwidth.copy_failed" else ""
        yield Finding(
            id=id,
            severity="error",
            subject=_subject(failed),
            says=f"{says}{reason}: {_KINDS[kind]}, {_named(ways)}",
            evidence={
                "ways": [
                    {
                        name: value
                        for name in ("source", "destination", "reason", "says", "method", "path", "group")
                        if (value := getattr(one, name)) is not None
                    }
                    for one in failed
                ]
            },
            remedy=remedy,
        )


def programs(machine: Machine) -> Iterator[Finding]:
    """Give one finding for each program whose output tells that CUDA failed, and not in which copy."""
    told = machine.bandwidth
    names = told.source.split(" + ") if told else ()
    for name in names:
        failed = [
            one
            for one in (told.not_measured if told else ())
            if re.match(rf"{re.escape(name)}\b", one.what) and _CUDA_FAILED.search(one.reason)
        ]
        if failed:
            words = dict.fromkeys(one.reason.removeprefix(f"{name} says: ") for one in failed)
            yield Finding(
                id="bandwidth.copy_failed",
                severity="error",
                subject="machine",
                says=f"{name} failed: {'; '.join(words)}",
                evidence={"not_measured": [{"what": one.what, "reason": one.reason} for one in failed]},
                remedy=_AGAIN,
            )


def throttled(machine: Machine) -> Iterator[Finding]:
    """Find GPUs whose clocks were held down while their copies ran: such numbers are of that state."""
    faults = []
    remedies: list[str] = []
    for gpu in present(machine):
        reasons: dict[str, int] = {}
        for sample in machine.bandwidth.samples if machine.bandwidth else ():
            for one in sample.conditions:
                if one.gpu == gpu.index:
                    for name in reasons_of(Throttle(mask=one.throttle_mask, reasons=one.throttle_reasons)):
                        reasons[name] = reasons.get(name, 0) + 1
        told = {name: count for name, count in reasons.items() if name in BY_NAME and BY_NAME[name].severity}
        if told:
            says = f"clocks were held down while copies were measured: {', '.join(told)}"
            faults.append(Fault(gpu, says, {"samples_by_reason": told}, _held_severity(told)))
            remedies += [BY_NAME[name].remedy for name in told if BY_NAME[name].remedy not in remedies]
    yield from findings_of("bandwidth.throttled", faults, "; ".join(remedies), machine)


def woke_up(machine: Machine) -> Iterator[Finding]:
    """Tell which numbers were taken while a card was waking up, and were left out or mean nothing."""
    if machine.bandwidth is None:
        return
    again = "nothing is wrong with the card; for numbers of a card that is awake measure again with gputopo"
    sure, maybe = [], []
    dropped: dict[int, int] = {}
    for sample in machine.bandwidth.samples:
        for index in {gpu_of(sample.source), gpu_of(sample.destination)} - {None}:
            if sample.discarded_gb_per_s and index is not None:
                dropped[index] = dropped.get(index, 0) + len(sample.discarded_gb_per_s)
    seen = {one.gpu: one for one in waking(machine.bandwidth, machine)}
    for gpu in present(machine):
        if gpu.index in dropped:
            says = "repeats that were taken while it was still waking up were left out"
            sure.append(Fault(gpu, says, {"left_out": dropped[gpu.index]}, "info"))
        if (low := seen.get(gpu.index)) is not None:
            evidence: dict[str, object] = {
                "low_gb_per_s": list(low.low_gb_per_s),
                "awake_gb_per_s": low.awake_gb_per_s,
                "awake_from": low.awake_from,
            }
            words = "low local copies were taken while it was waking up: later it reached what it should"
            if low.sure:
                sure.append(Fault(gpu, words, evidence, "info"))
            else:
                words = f"it may have been waking up: its local copies are far under {low.awake_from}"
                maybe.append(Fault(gpu, words, evidence, "info"))
    yield from findings_of("bandwidth.woke_up", sure, again, machine)
    yield from findings_of("bandwidth.woke_up", maybe, again, machine)


def unsteady(machine: Machine) -> Iterator[Finding]:
    """Find large copies whose repeats differ so much that their median says little."""
    found = [
        sample
        for sample in (machine.bandwidth.samples if machine.bandwidth else ())
        if is_large(sample)
        and len(sample.repeats_gb_per_s) >= FEWEST_REPEATS
        and _spread(sample) > UNSTEADY_PERCENT
    ]
    if not found:
        return
    worst = max(found, key=_spread)
    ways = list(dict.fromkeys(_way(sample) for sample in found))
    yield Finding(
        id="bandwidth.unsteady",
        severity="warning",
        subject=_subject(found),
        says=f"repeats of one copy differ by up to {_spread(worst):.0f} %: {_named(ways)}",
        evidence={
            "samples": [
                {
                    "way": _way(sample),
                    "group": sample.group,
                    "spread_percent": round(_spread(sample), 1),
                    "repeats_gb_per_s": list(sample.repeats_gb_per_s),
                }
                for sample in found
            ]
        },
        remedy="see that nothing else uses the GPUs or the host (gputopo inspect, top), and measure "
        "again; if it "
        "stays, look for PCIe errors and for clocks that change (gputopo inspect --watch)",
    )


def _held_severity(reasons: Iterable[str]) -> Severity:
    """An error of the card is told by inspect; here it says that a number is not of a free card."""
    worst = max((BY_NAME[name].severity or "info" for name in reasons), key=SEVERITIES.index)
    return "info" if worst == "info" else "warning"


def _spread(sample: Sample) -> float:
    if sample.spread_percent is not None:
        return sample.spread_percent
    repeats, middle = sample.repeats_gb_per_s, sample.median_gb_per_s or 0
    return 100 * (max(repeats) - min(repeats)) / middle if middle else 0.0


def _way(sample: Sample) -> str:
    return f"{sample.source} to {sample.destination} ({_KINDS[sample.kind]})"


def _subject(found: Iterable[Failure | Sample]) -> str:
    places = {place for one in found for place in (one.source, one.destination)}
    gpus = sorted(index for place in places if (index := gpu_of(place)) is not None)
    if len(gpus) == 2 and len(places) == 2:
        return f"link:{gpus[0]}-{gpus[1]}"
    return f"gpu:{gpus[0]}" if len(gpus) == 1 else "machine"


def _named(ways: list[str]) -> str:
    more = len(ways) - _MOST_NAMED
    return ", ".join(ways[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
