"""The reasons in a driver's clock event mask (throttle reasons): their bits, names and texts."""

import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gputopo.values.fields import rows_of
from gputopo.values.history import BUSY_PERCENT
from gputopo.values.machine import Gpu, Throttle


class ClockEvent(NamedTuple):
    """One reason. `words` are for lists, `short` is for columns, `effect` is the title of its finding.

    A reason without an effect is not throttling: the GPU is idle, or has the clocks that were set.
    """

    bit: int
    words: str
    short: str
    effect: str = ""


# nvml.h, nvmlClocksEventReason*; up to driver 530 nvmlClocksThrottleReason*.
CLOCK_EVENTS: Mapping[str, ClockEvent] = {
    row["name"]: ClockEvent(int(row["bit"], 16), row["words"], row["short"], row["effect"])
    for row in rows_of(__file__, "data/clock_events.csv")
}
BITS = {name: event.bit for name, event in CLOCK_EVENTS.items()}
IDLE = "gpu_idle"
UNTHROTTLED = tuple(name for name, event in CLOCK_EVENTS.items() if not event.effect)
_NAMES = {bit: name for name, bit in BITS.items()}
_UNKNOWN = "unknown_"


@functools.lru_cache(maxsize=1024)
def decode(mask: int) -> tuple[str, ...]:
    """Return the names of the bits in a clock event mask, low bit first; unknown bits as `unknown_0x800`."""
    bits = (1 << place for place in range(mask.bit_length()) if mask >> place & 1)
    return tuple(_NAMES.get(bit, f"{_UNKNOWN}{bit:#x}") for bit in bits)


def unnamed(reason: str) -> str:
    """Return the bit of an unknown reason, or the text in the capture."""
    return reason.removeprefix(_UNKNOWN)


def reasons_of(throttle: Throttle) -> tuple[str, ...]:
    """Return all reasons: the mask's, then reasons that a capture has only as text."""
    decoded = decode(throttle.mask) if throttle.mask is not None and throttle.mask >= 0 else ()
    return decoded + tuple(name for name in throttle.reasons or () if name not in decoded)


def in_words(reasons: Iterable[str]) -> list[str]:
    """Return the texts of reasons, without idle; the bit of an unknown reason."""
    return [
        CLOCK_EVENTS[reason].words if reason in CLOCK_EVENTS else f"unknown reason {unnamed(reason)}"
        for reason in reasons
        if reason != IDLE
    ]


def in_short_words(reasons: Iterable[str]) -> list[str]:
    """Return the short texts of reasons, without idle; the bit of an unknown reason."""
    return [
        CLOCK_EVENTS[reason].short if reason in CLOCK_EVENTS else unnamed(reason)
        for reason in reasons
        if reason != IDLE
    ]


# CUDA runs GeForce GPUs in P2; from P3 on, clocks are reduced to save power (NVML API, nvmlPstates_t: P0 is
# the maximum performance).
LOAD_STATES = ("P0", "P1", "P2")


def under_load(gpu: Gpu) -> bool:
    """Return whether the GPU was under load: in P0 to P2, running kernels and not reported as idle.

    Returns False if that is unknown, so an idle reading is never a fault.
    """
    if gpu.pstate not in LOAD_STATES or IDLE in reasons_of(gpu.throttle):
        return False
    if gpu.utilization_percent.gpu is not None:
        return gpu.utilization_percent.gpu > 0
    # Reasons as texts may be incomplete: --query-gpu has a column for each, and "idle" may not be queried.
    return gpu.throttle.mask is not None or gpu.throttle.reasons == ()


def idle(gpu: Gpu) -> bool:
    """Return whether the GPU is known to have been idle, or little used in a power-saving P-state.

    This is not the opposite of `under_load`: if nothing is known, both are False. A GPU that is used and
    stays in such a state is throttled, not idle.
    """
    used = gpu.utilization_percent.gpu
    if IDLE in reasons_of(gpu.throttle) or used == 0:
        return True
    saving = gpu.pstate is not None and gpu.pstate not in LOAD_STATES
    return saving and (used is None or used < BUSY_PERCENT)
