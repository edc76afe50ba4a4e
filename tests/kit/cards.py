"""Numbers that cards of one kind share, for the machines of the kit."""

from typing import Any

from tests.kit.specs import NOT_SUPPORTED


def limits(default_w: int, low_w: int, high_w: int) -> dict[str, Any]:
    """Return the power limits of a card with default settings."""
    watts = default_w * 1000
    return {
        "power_limit_mw": watts,
        "power_default_mw": watts,
        "power_enforced_mw": watts,
        "power_range_mw": (low_w * 1000, high_w * 1000),
    }


def geforce(*, architecture: int, power_mw: int, slowdown: int) -> dict[str, Any]:
    """Return the numbers of an idle GeForce card."""
    return {
        "brand": 5,
        "architecture": architecture,
        "pstate": 8,
        "power_mw": power_mw,
        "slowdown": slowdown,
        "shutdown": slowdown + 3,
        "max_operating": slowdown - 4,
        "memory_max_operating": None,
        "target": 83,
        "bar1_bytes": (268_435_456, 2_097_152, 266_338_304),
        "fan": 0,
    }


def tesla(*, architecture: int, power_mw: int, slowdown: int) -> dict[str, Any]:
    """Return the numbers of an idle data-centre card without a fan, from before Ampere."""
    absent = (
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetSramEccErrorStatus",
        "nvmlDeviceGetFanSpeed",
        *(f"field[{number}]" for number in (193, 194, 196, 230)),
    )
    return {
        "architecture": architecture,
        "power_mw": power_mw,
        "slowdown": slowdown,
        "shutdown": slowdown + 3,
        "max_operating": slowdown - 4,
        "memory_max_operating": 95,
        "target": None,
        "bar1_bytes": (17_179_869_184, 4_194_304, 17_175_674_880),
        "refuses": dict.fromkeys(absent, NOT_SUPPORTED),
    }
