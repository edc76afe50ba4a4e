"""The reasons in a driver's clock event mask (throttle reasons): their bits, names and texts."""

import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gputopo.values.fields import rows_of
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
CLOCK_EVENT_BITS = {name: event.bit for name, event in CLOCK_EVENTS.items()}
IDLE = "gpu_idle"
_NAMES = {bit: name for name, bit in CLOCK_EVENT_BITS.items()}
_UNKNOWN = "unknown_"


@functools.lru_cache(maxsize=1024)
def decode_clock_events(mask: int) -> tuple[str, ...]:
    """Return the names of the bits in a clock event mask, low bit first; unknown bits as `unknown_0x800`."""
    bits = (1 << place for place in range(mask.bit_length()) if mask >> place & 1)
    return tuple(_NAMES.get(bit, f"{_UNKNOWN}{bit:#x}") for bit in bits)


def throttle_reasons(throttle: Throttle) -> tuple[str, ...]:
    """Return all reasons: the mask's, then reasons that a capture has only as text."""
    decoded = decode_clock_events(throttle.mask) if throttle.mask is not None and throttle.mask >= 0 else ()
    return decoded + tuple(name for name in throttle.reasons or () if name not in decoded)


def clock_event_words(reasons: Iterable[str], *, short: bool = False) -> list[str]:
    """Return the texts of reasons, without idle; the bit of an unknown reason. `short`: for columns."""
    words = []
    for reason in reasons:
        event = CLOCK_EVENTS.get(reason)
        if event is not None and reason != IDLE:
            words.append(event.short if short else event.words)
        elif event is None:
            name = reason.removeprefix(_UNKNOWN)  # the bit, or the text in the capture
            words.append(name if short else f"unknown reason {name}")
    return words


# CUDA runs GeForce GPUs in P2; from P3 on, clocks are reduced to save power (NVML API, nvmlPstates_t: P0 is
# the maximum performance).
LOAD_STATES = ("P0", "P1", "P2")


def under_load(gpu: Gpu) -> bool:
    """Return whether the GPU was under load: in P0 to P2, running kernels and not reported as idle.

    Returns False if that is unknown, so an idle reading is never a fault.
    """
    if gpu.pstate not in LOAD_STATES or IDLE in throttle_reasons(gpu.throttle):
        return False
    if gpu.utilization_percent.gpu is not None:
        return gpu.utilization_percent.gpu > 0
    # Reasons as texts may be incomplete: --query-gpu has a column for each, and "idle" may not be queried.
    return gpu.throttle.mask is not None or gpu.throttle.reasons == ()
