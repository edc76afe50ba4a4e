"""Temperatures near the point at which a card slows itself down."""

from collections.abc import Iterator

from gputopo.findings.fault import Fault, findings_of, present
from gputopo.findings.finding import Finding, Severity
from gputopo.findings.throttle_words import THERMAL
from gputopo.reference.clock_events import reasons_of
from gputopo.values.machine import Gpu, Machine

# Degrees under the slowdown threshold; GeForce cards aim at 83 or 84 of 95 and stay clear of it. Ours.
NEAR_C = 5
# Some drivers give 127 for every threshold that they do not know (NVIDIA/nvidia-settings issue 34).
HIGHEST_THRESHOLD_C = 120
# Some H100 report a margin of 0 or less while they are cool (GPUd has its check off by default for that);
# thresholds lie between 82 and 101 (data/gpus.csv), so a card under this is far from any.
COOL_C = 65


def temperatures(machine: Machine) -> Iterator[Finding]:
    """Compare with the card's own thresholds. A card that slows down for heat says so already: no second."""
    gpus = [gpu for gpu in present(machine) if not any(name in THERMAL for name in reasons_of(gpu.throttle))]
    yield from findings_of(
        "thermal.near_slowdown",
        [fault for gpu in gpus if (fault := _core(gpu))],
        "improve the air flow before long work: fans, dust, distance to the next card, air temperature",
        machine,
    )
    yield from findings_of(
        "thermal.memory_hot",
        [fault for gpu in gpus if (fault := _memory(gpu))],
        "memory is cooled through the back plate and pads: improve the air flow there, or lower the power "
        "limit",
        machine,
    )


def degrees_left(gpu: Gpu) -> int | None:
    """Give the degrees until the card slows down, 0 or less once it does; None where it is not known.

    From the margin (T.Limit) where the card tells one, with the margin at which it slows down (at most 0);
    else from the absolute threshold.
    """
    now = gpu.temperature_c
    if now.margin is not None:
        if now.gpu is not None and now.gpu < COOL_C:
            return None
        return now.margin - min(now.margin_slowdown or 0, 0)
    return None if now.gpu is None or not _told(now.slowdown) else (now.slowdown or 0) - now.gpu


def _core(gpu: Gpu) -> Fault | None:
    now = gpu.temperature_c
    left = degrees_left(gpu)
    too_warm = now.gpu is not None and _told(now.max_operating) and now.gpu >= (now.max_operating or 0)
    if not too_warm and (left is None or left > NEAR_C):
        return None
    severity: Severity = "error" if left is not None and left <= 0 else "warning"
    told = {name: getattr(now, name) for name in now.__struct_fields__}
    evidence = {name: value for name, value in told.items() if value is not None} | {"degrees_left": left}
    words = [f"it is at {now.gpu} °C"] if now.gpu is not None else []
    if left is not None and left <= NEAR_C:
        words.append(f"{left} °C are left until it slows down" if left > 0 else "it is where it slows down")
    if too_warm:
        words.append(f"the highest operating temperature is {now.max_operating} °C")
    return Fault(gpu, ", ".join(words), evidence, severity)


def _told(threshold: int | None) -> bool:
    return threshold is not None and 0 < threshold <= HIGHEST_THRESHOLD_C


def _memory(gpu: Gpu) -> Fault | None:
    now, most = gpu.temperature_c.memory, gpu.temperature_c.memory_max_operating
    if now is None or not most or most > HIGHEST_THRESHOLD_C or now < most:
        return None
    evidence = {"memory": now, "memory_max_operating": most}
    return Fault(gpu, f"its memory is at {now} °C of at most {most}", evidence, "warning")
