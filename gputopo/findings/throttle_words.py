"""The reasons for which a driver holds clocks down: bits, names, how bad each is, what to do."""

from typing import NamedTuple

from gputopo.findings.finding import Severity
from gputopo.machine import Throttle


class Reason(NamedTuple):
    """A bit of the clock event mask. `severity` None: no fault at all, such as an idle GPU."""

    bit: int
    name: str
    severity: Severity | None
    says: str = ""
    remedy: str = ""


# Bits: nvml.h, nvmlClocksEventReason* (up to driver 530 nvmlClocksThrottleReason*). How bad each is follows
# NVIDIA/DCGM's and GPUd's practice: the hardware's own slowdowns make a node unhealthy, software's do not.
REASONS: tuple[Reason, ...] = (
    Reason(0x1, "gpu_idle", None),
    Reason(0x2, "applications_clocks_setting", None),
    Reason(
        0x4,
        "sw_power_cap",
        "info",
        "the driver lowers clocks to stay within the power limit",
        "none needed for a card at full work; with better cooling or a higher limit "
        "(sudo nvidia-smi -i GPU -pl WATTS) it runs faster",
    ),
    Reason(
        0x8,
        "hw_slowdown",
        "error",
        "the hardware cuts the clocks to half or less (heat, power brake or supply)",
        "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER shows which; check fans, dust, the power cables and "
        "the supply",
    ),
    Reason(
        0x10,
        "sync_boost",
        "info",
        "clocks are held down to those of a slower GPU of the same sync boost group",
        "if it is not wanted, remove the group with the tool that made it (dcgmi config --syncboost 0)",
    ),
    Reason(
        0x20,
        "sw_thermal_slowdown",
        "warning",
        "the driver lowers clocks to stay under the highest operating temperature",
        "improve the air flow: fans, dust, distance to the next card, air temperature; or lower the power "
        "limit",
    ),
    Reason(
        0x40,
        "hw_thermal_slowdown",
        "error",
        "the card is too hot, and its hardware cuts the clocks to half or less",
        "stop the work and improve the cooling: fans, dust, heat sink and its paste, distance to the next "
        "card",
    ),
    Reason(
        0x80,
        "hw_power_brake_slowdown",
        "error",
        "something outside the card (power supply or mainboard) asks it to brake",
        "check the power cables of the card, the supply and its load; servers brake their GPUs when a supply "
        "fails or the chassis is over its power budget",
    ),
    Reason(
        0x100,
        "display_clock_setting",
        "info",
        "clocks are held by the display's setting",
        "detach displays from cards that compute, or lower the refresh rate",
    ),
    Reason(
        0x200,
        "board_limit",
        "warning",
        "a limit of the board (current of its supply) holds the clocks down",
        "check that every power socket of the card has a cable of its own",
    ),
    Reason(
        0x400,
        "reliability",
        "info",
        "the voltage that is allowed for a long life of the chip holds the clocks down",
        "none needed: the card runs as fast as its maker allows",
    ),
)

BY_NAME = {reason.name: reason for reason in REASONS}
_BY_BIT = {reason.bit: reason for reason in REASONS}

THERMAL = ("sw_thermal_slowdown", "hw_thermal_slowdown")
# With any of these a low clock is explained, and is no finding of its own.
EXPLAINING = tuple(reason.name for reason in REASONS if reason.severity is not None)


def decode(mask: int) -> tuple[str, ...]:
    """Give the bits of a clock event mask in words, low bit first; one without a name is "unknown_0x800"."""
    bits = (1 << place for place in range(mask.bit_length()) if mask >> place & 1)
    return tuple(_BY_BIT[bit].name if bit in _BY_BIT else f"unknown_{bit:#x}" for bit in bits)


def encode(names: tuple[str, ...]) -> int:
    """Give the mask of names as `decode` writes them. Raises KeyError for a name that it does not write."""
    return sum(
        int(name.removeprefix("unknown_"), 16) if name.startswith("unknown_0x") else BY_NAME[name].bit
        for name in names
    )


def reasons_of(throttle: Throttle) -> tuple[str, ...]:
    """Give all reasons that are known, from the mask or, where a capture has only words, from those."""
    decoded = decode(throttle.mask) if throttle.mask is not None and throttle.mask >= 0 else ()
    return decoded + tuple(name for name in throttle.reasons or () if name not in decoded)
