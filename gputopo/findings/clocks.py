"""Clocks: unlike those of equal cards, or low although the card works."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median

from gputopo.findings.fault import Fault, findings_of, kinds, present
from gputopo.findings.finding import Finding, Severity
from gputopo.findings.load import busy
from gputopo.findings.throttle_words import EXPLAINING
from gputopo.reference.clock_events import reasons_of
from gputopo.reference.expectations import expected_gpu
from gputopo.values.machine import ClockMhz, Gpu, Machine

# Memory of one model runs at one clock; drivers differ by 1 MHz in rounding (Tesla T4: 5000 of 5001).
MEMORY_SHARE = 0.01
# Reference and factory-overclocked GTX 1070 differ by 5 % (1683 and 1771 MHz), steps of a clock by 15 MHz.
CORE_SHARE = 0.02
# Equal cards under equal work scatter by their chips and coolers, some 5 %; below that something is up. Ours.
CORE_BUSY_SHARE = 0.10
# Compute work holds GeForce cards in P2 with slower memory: 9251 of 9501 MHz (RTX 3080), 5005 of 5505
# (GTX 1080 Ti), so a working card may lose a tenth.
MEMORY_BUSY_FLOOR = 0.90
# Of the boost clock that the maker promises, or of the application clock that is set. Ours.
CORE_BUSY_FLOOR = 0.90
# Where only NVML's maximum is known: promised boost clocks are 0.73 of it and more (data/gpus.csv).
CORE_MAXIMUM_FLOOR = 0.70
# NVML and published tables agree within this (data/gpus.csv).
MODEL_SHARE = 0.03

_CARD_DIFFERS = (
    "the cards are of different builds or VBIOS versions (nvidia-smi -q | grep -i vbios), or one has a clock "
    "offset; in synchronous training the slowest sets the pace: give the work to equal cards"
)


def peers(machine: Machine) -> Iterator[Finding]:
    """Compare highest and set clocks of cards of one model."""
    tops: tuple[tuple[str, float, Severity, str], ...] = (
        ("memory", MEMORY_SHARE, "warning", "clocks.memory_differs"),
        ("core", CORE_SHARE, "info", "clocks.core_differs"),
    )
    for what, share, severity, id in tops:
        faults = [fault for group in kinds(machine) for fault in _odd(group, what, "max", share, severity)]
        yield from findings_of(id, faults, _CARD_DIFFERS, machine)
    faults = [
        fault
        for group in kinds(machine)
        for what in ("memory", "core")
        for fault in _odd(group, what, "application", MEMORY_SHARE, "warning")
    ]
    yield from findings_of(
        "clocks.application_differs", faults, "set all cards alike: sudo nvidia-smi -i GPU -rac", machine
    )


def low(machine: Machine) -> Iterator[Finding]:
    """Find cards that work and whose clocks are low, with no reason told by the driver."""
    told = [gpu for gpu in present(machine) if busy(gpu) and not _explained(gpu)]
    core = [fault for gpu in told if (fault := _low_core(gpu))]
    yield from findings_of(
        "clocks.core_below_maximum",
        core,
        "nvidia-smi -q -d CLOCK,PERFORMANCE; a lock of clocks is removed with sudo nvidia-smi -rgc, set "
        "application clocks with sudo nvidia-smi -rac",
        machine,
    )
    memory = [fault for gpu in told if (fault := _low_memory(gpu))]
    yield from findings_of(
        "clocks.memory_below_maximum",
        memory,
        "nvidia-smi -q -d CLOCK,PERFORMANCE; a lock of memory clocks is removed with sudo nvidia-smi -rmc",
        machine,
    )
    known = {fault.gpu.index for fault in core}
    slower = [
        fault
        for group in kinds(machine)
        for fault in _slower([gpu for gpu in group if gpu in told and gpu.index not in known])
    ]
    yield from findings_of(
        "clocks.core_slower_than_peers",
        slower,
        "compare temperature, power draw and cooling of this card with those of its equals while both work",
        machine,
    )


def model(machine: Machine) -> Iterator[Finding]:
    """Compare the highest memory clock with what cards of this model have.

    A card that differs from its equals here is told by that already.
    """
    odd = {
        fault.gpu.index
        for group in kinds(machine)
        for fault in _odd(group, "memory", "max", MEMORY_SHARE, "info")
    }
    faults = []
    for gpu in present(machine):
        if gpu.index in odd:
            continue
        expected = expected_gpu(gpu.name, gpu.pci_device_id)
        top = gpu.clocks_mhz.memory.max
        if expected is None or expected.max_memory_mhz is None or not top:
            continue
        if top < expected.max_memory_mhz * (1 - MODEL_SHARE):
            evidence = {"max_mhz": top, "expected_mhz": expected.max_memory_mhz, "source": expected.source}
            says = f"its memory reaches {top} MHz at most; a {expected.name} has {expected.max_memory_mhz}"
            faults.append(Fault(gpu, says, evidence, "warning"))
    yield from findings_of(
        "clocks.memory_below_model",
        faults,
        "look for a clock offset or another VBIOS (nvidia-smi -q | grep -i vbios): a card of another build "
        "may bear the name",
        machine,
    )


def core(gpu: Gpu) -> ClockMhz:
    """Give the clocks of the arithmetic units: those of the SMs, else of the graphics domain."""
    return gpu.clocks_mhz.sm if gpu.clocks_mhz.sm != ClockMhz() else gpu.clocks_mhz.graphics


def _clock(gpu: Gpu, what: str, kind: str) -> int | None:
    value: int | None = getattr(core(gpu) if what == "core" else gpu.clocks_mhz.memory, kind)
    return value or None


def _odd(group: Sequence[Gpu], what: str, kind: str, share: float, severity: Severity) -> list[Fault]:
    """Give the cards whose clock is not that of most; of two values that are as common, the higher counts."""
    clocks = {gpu.index: clock for gpu in group if (clock := _clock(gpu, what, kind)) is not None}
    if len(clocks) < 2:
        return []
    common = max(Counter(clocks.values()).items(), key=lambda item: (item[1], item[0]))[0]
    names = {"max": "highest", "application": "set"}
    return [
        Fault(
            gpu,
            f"its {names[kind]} {what} clock is {clocks[gpu.index]} MHz; "
            f"most of the cards of its model here have {common}",
            {f"{kind}_mhz": clocks[gpu.index], "peers_mhz": common, "clock": what},
            severity,
        )
        for gpu in group
        if gpu.index in clocks and abs(clocks[gpu.index] - common) > share * common
    ]


def _explained(gpu: Gpu) -> bool:
    reasons = reasons_of(gpu.throttle)
    return any(name in EXPLAINING for name in reasons)


def _low_core(gpu: Gpu) -> Fault | None:
    now, top, set_ = (_clock(gpu, "core", kind) for kind in ("now", "max", "application"))
    expected = expected_gpu(gpu.name, gpu.pci_device_id)
    boost = expected.boost_mhz if expected else None
    known = [clock for clock in (top, set_, boost) if clock]
    if now is None or not known:
        return None
    aim = min(known)
    floor = CORE_BUSY_FLOOR if set_ or boost else CORE_MAXIMUM_FLOOR
    if now >= floor * aim:
        return None
    evidence = {
        "now_mhz": now,
        "max_mhz": top,
        "application_mhz": set_,
        "boost_mhz": boost,
        "least_share": floor,
        "utilization_percent": gpu.utilization_percent.gpu,
        "pstate": gpu.pstate,
    }
    return Fault(gpu, f"it works at {now} MHz where {aim} are due, and tells no reason", evidence, "warning")


def _low_memory(gpu: Gpu) -> Fault | None:
    now, top, set_ = (_clock(gpu, "memory", kind) for kind in ("now", "max", "application"))
    known = [clock for clock in (top, set_) if clock]
    if now is None or not known or now >= MEMORY_BUSY_FLOOR * min(known):
        return None
    evidence = {
        "now_mhz": now,
        "max_mhz": top,
        "application_mhz": set_,
        "least_share": MEMORY_BUSY_FLOOR,
        "pstate": gpu.pstate,
    }
    return Fault(
        gpu,
        f"its memory works at {now} MHz where {min(known)} are due, and tells no reason",
        evidence,
        "warning",
    )


def _due(gpu: Gpu) -> int | None:
    known = [clock for kind in ("max", "application") if (clock := _clock(gpu, "core", kind))]
    return min(known, default=None)


def _slower(group: Sequence[Gpu]) -> Iterator[Fault]:
    """Compare what share of its own maximum, or of what is set, each working card of a model reaches."""
    shares = {
        gpu.index: now / due for gpu in group if (now := _clock(gpu, "core", "now")) and (due := _due(gpu))
    }
    for gpu in group:
        others = [share for index, share in shares.items() if index != gpu.index]
        if gpu.index in shares and others and shares[gpu.index] < median(others) * (1 - CORE_BUSY_SHARE):
            evidence = {
                "now_mhz": core(gpu).now,
                "share_of_due": round(shares[gpu.index], 3),
                "peers_share": round(median(others), 3),
            }
            says = (
                f"it works at {core(gpu).now} MHz, {shares[gpu.index]:.0%} of what it may, where its equals "
                f"reach {median(others):.0%}"
            )
            yield Fault(gpu, says, evidence, "warning")
