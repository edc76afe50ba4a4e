"""Power limits below what the card comes with, and limits that were set and do not hold."""

from collections.abc import Iterator

from gputopo.findings.fault import Fault, findings_of, present
from gputopo.findings.finding import Finding
from gputopo.values.machine import Gpu, Machine

# Limits are set in whole watts and reported in milliwatts; less than this is rounding. Ours.
LIMIT_SHARE = 0.02


def limited(gpu: Gpu) -> bool:
    """Tell whether the power limit of a card is set below its default."""
    limit, default = gpu.power_w.limit, gpu.power_w.default_limit
    return limit is not None and default is not None and limit < default * (1 - LIMIT_SHARE)


def limits(machine: Machine) -> Iterator[Finding]:
    """Find lowered limits, and lower ones in force than were set."""
    gpus = present(machine)
    lowered = [
        Fault(
            gpu,
            f"its power limit is {gpu.power_w.limit:.0f} W, {gpu.power_w.default_limit:.0f} W by default",
            _evidence(gpu),
            "warning",
        )
        for gpu in gpus
        if limited(gpu)
    ]
    yield from findings_of(
        "power.limit_below_default",
        lowered,
        "if nobody wanted it: sudo nvidia-smi -i GPU -pl WATTS sets it back (until the next boot); look for "
        "a start-up script that lowers it",
        machine,
    )
    overruled = [
        Fault(
            gpu,
            f"{gpu.power_w.enforced_limit:.0f} W are in force as its power limit, though "
            f"{gpu.power_w.limit:.0f} W are set",
            _evidence(gpu),
            "warning",
        )
        for gpu in gpus
        if gpu.power_w.enforced_limit is not None
        and gpu.power_w.limit is not None
        and gpu.power_w.enforced_limit < gpu.power_w.limit * (1 - LIMIT_SHARE)
    ]
    yield from findings_of(
        "power.limit_overruled",
        overruled,
        "something above the card limits it: the server's management (BMC, power budget), or a limit for a "
        "module of several GPUs (nvidia-smi -q -d POWER)",
        machine,
    )


def _evidence(gpu: Gpu) -> dict[str, object]:
    power = gpu.power_w
    return {
        "limit_w": power.limit,
        "default_limit_w": power.default_limit,
        "enforced_limit_w": power.enforced_limit,
        "draw_w": power.draw,
    }
