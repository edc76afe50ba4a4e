"""The bits of a driver's clock event mask, the reasons for throttling, and their names."""

from gputopo.values.machine import Throttle

# nvml.h, nvmlClocksEventReason*; up to driver 530 nvmlClocksThrottleReason*.
BITS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
    "board_limit": 0x200,
    "reliability": 0x400,
}
_NAMES = {bit: name for name, bit in BITS.items()}
_UNKNOWN = "unknown_"


def decode(mask: int) -> tuple[str, ...]:
    """Return the names of the bits of a clock event mask, low bit first; an unknown one is "
    ""unknown_0x800"."""
    bits = (1 << place for place in range(mask.bit_length()) if mask >> place & 1)
    return tuple(_NAMES.get(bit, f"{_UNKNOWN}{bit:#x}") for bit in bits)


def unnamed(reason: str) -> str:
    """Return the bit of an unknown reason, or the word of a capture."""
    return reason.removeprefix(_UNKNOWN)


def reasons_of(throttle: Throttle) -> tuple[str, ...]:
    """Return all reasons, from the mask or, where a capture has only words, from those."""
    decoded = decode(throttle.mask) if throttle.mask is not None and throttle.mask >= 0 else ()
    return decoded + tuple(name for name in throttle.reasons or () if name not in decoded)
