"""Slowdowns: every reason bit that the driver reports, known or not."""

from collections.abc import Iterator

from gputopo.findings.fault import Fault, findings_of, present
from gputopo.findings.finding import Finding, Severity
from gputopo.findings.load import idle
from gputopo.findings.power import limited
from gputopo.findings.throttle_words import BY_NAME, REASONS
from gputopo.reference.clock_events import reasons_of
from gputopo.values.machine import Gpu, Machine

# A card that is held by its own power limit draws about that much. Well below it, something else holds it:
# a limit of the slot or the cables, or one that is shared by several cards. Ours.
LOW_DRAW_SHARE = 0.80

_LOW_DRAW_REMEDY = (
    "see which limit is meant: nvidia-smi -q -d POWER; check that every power socket of the card has a cable "
    "of its own, and that no tool set a limit for the whole machine"
)
_UNKNOWN_REMEDY = (
    "look the bit up in nvml.h of the driver (nvmlClocksEventReason...), and report it to gputopo"
)


def slowdowns(machine: Machine) -> Iterator[Finding]:
    """Give one finding for each reason and the GPUs that have it."""
    gpus = present(machine)
    for reason in REASONS:
        if reason.severity is None or reason.name == "sw_power_cap":
            continue
        faults = [
            Fault(gpu, reason.says, _evidence(gpu), reason.severity)
            for gpu in gpus
            if _stands_for_itself(reason.name, reasons_of(gpu.throttle))
        ]
        yield from findings_of(f"throttle.{reason.name}", faults, reason.remedy, machine)
    yield from _power_cap(machine)
    unknown = [
        Fault(
            gpu,
            f"clocks are held down for a reason without a name: {', '.join(names)}",
            _evidence(gpu),
            "info",
        )
        for gpu in gpus
        if (names := [name for name in reasons_of(gpu.throttle) if name not in BY_NAME])
    ]
    yield from findings_of("throttle.unknown", unknown, _UNKNOWN_REMEDY, machine)


def _stands_for_itself(name: str, reasons: tuple[str, ...]) -> bool:
    """Tell whether to say it: the general hardware slowdown is set beside the one that names the cause."""
    named = ("hw_thermal_slowdown", "hw_power_brake_slowdown")
    return name in reasons and not (name == "hw_slowdown" and any(one in reasons for one in named))


def _power_cap(machine: Machine) -> Iterator[Finding]:
    """Tell a card at its limit from one that is held below it; a lowered limit has a finding of its own.

    Some cards tell a power cap while they do nothing (A10, A40, RTX A6000 and RTX 5090 in P8 at 0 %, in
    published captures): no fault.
    """
    faults: dict[Severity, list[Fault]] = {"info": [], "warning": []}
    for gpu in present(machine):
        if "sw_power_cap" not in reasons_of(gpu.throttle) or limited(gpu) or idle(gpu):
            continue
        draw, limit = gpu.power_w.draw, gpu.power_w.enforced_limit or gpu.power_w.limit
        if draw is not None and limit and draw < LOW_DRAW_SHARE * limit:
            says = f"the driver caps its power although it draws only {draw:.0f} of {limit:.0f} W"
            faults["warning"].append(Fault(gpu, says, _evidence(gpu), "warning"))
        else:
            faults["info"].append(Fault(gpu, BY_NAME["sw_power_cap"].says, _evidence(gpu), "info"))
    yield from findings_of("throttle.sw_power_cap", faults["warning"], _LOW_DRAW_REMEDY, machine)
    yield from findings_of("throttle.sw_power_cap", faults["info"], BY_NAME["sw_power_cap"].remedy, machine)


def _evidence(gpu: Gpu) -> dict[str, object]:
    return {
        "mask": None if gpu.throttle.mask is None else f"{gpu.throttle.mask:#x}",
        "reasons": list(reasons_of(gpu.throttle)),
        "core_mhz": gpu.clocks_mhz.sm.now or gpu.clocks_mhz.graphics.now,
        "power_w": gpu.power_w.draw,
        "temperature_c": gpu.temperature_c.gpu,
    }
