"""The reasons for which a driver holds clocks down: how bad each is, what to do."""

from typing import NamedTuple

from gputopo.findings.finding import Severity


class Reason(NamedTuple):
    """`name`: as in `gputopo.reference.clock_events`. `severity` None: no fault, such as an idle GPU."""

    name: str
    severity: Severity | None
    says: str = ""
    remedy: str = ""


# How bad each is follows NVIDIA/DCGM's and GPUd's practice: the hardware's own slowdowns make a node
# unhealthy, software's do not.
REASONS: tuple[Reason, ...] = (
    Reason("gpu_idle", None),
    Reason("applications_clocks_setting", None),
    Reason(
        "sw_power_cap",
        "info",
        "the driver lowers clocks to stay within the power limit",
        "none needed for a card at full work; with better cooling or a higher limit "
        "(sudo nvidia-smi -i GPU -pl WATTS) it runs faster",
    ),
    Reason(
        "hw_slowdown",
        "error",
        "the hardware cuts the clocks to half or less (heat, power brake or supply)",
        "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER shows which; check fans, dust, the power cables and "
        "the supply",
    ),
    Reason(
        "sync_boost",
        "info",
        "clocks are held down to those of a slower GPU of the same sync boost group",
        "if it is not wanted, remove the group with the tool that made it (dcgmi config --syncboost 0)",
    ),
    Reason(
        "sw_thermal_slowdown",
        "warning",
        "the driver lowers clocks to stay under the highest operating temperature",
        "improve the air flow: fans, dust, distance to the next card, air temperature; or lower the power "
        "limit",
    ),
    Reason(
        "hw_thermal_slowdown",
        "error",
        "the card is too hot, and its hardware cuts the clocks to half or less",
        "stop the work and improve the cooling: fans, dust, heat sink and its paste, distance to the next "
        "card",
    ),
    Reason(
        "hw_power_brake_slowdown",
        "error",
        "something outside the card (power supply or mainboard) asks it to brake",
        "check the power cables of the card, the supply and its load; servers brake their GPUs when a supply "
        "fails or the chassis is over its power budget",
    ),
    Reason(
        "display_clock_setting",
        "info",
        "clocks are held by the display's setting",
        "detach displays from cards that compute, or lower the refresh rate",
    ),
    Reason(
        "board_limit",
        "warning",
        "a limit of the board (current of its supply) holds the clocks down",
        "check that every power socket of the card has a cable of its own",
    ),
    Reason(
        "reliability",
        "info",
        "the voltage that is allowed for a long life of the chip holds the clocks down",
        "none needed: the card runs as fast as its maker allows",
    ),
)

BY_NAME = {reason.name: reason for reason in REASONS}

THERMAL = ("sw_thermal_slowdown", "hw_thermal_slowdown")
# With any of these a low clock is explained, and is no finding of its own.
EXPLAINING = tuple(reason.name for reason in REASONS if reason.severity is not None)
