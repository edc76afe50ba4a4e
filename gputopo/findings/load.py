"""Whether a GPU was at work when it was read: many readings mean something only then."""

from gputopo.reference.clock_events import reasons_of
from gputopo.values.machine import Gpu

# P0 to P2 are the states for work: compute holds GeForce cards in P2, and from P3 on clocks are lowered to
# save power (NVML API, nvmlPstates_t: P0 is the maximum performance).
WORKING_STATES = ("P0", "P1", "P2")

# A GPU that computes less than half of the time may clock down between its kernels. Ours.
BUSY_PERCENT = 50


def at_work(gpu: Gpu) -> bool:
    """Tell whether the GPU was awake: in a working P-state and running kernels, not reported as idle.

    False where that is not known, so an idle reading is never taken for a fault.
    """
    if gpu.pstate not in WORKING_STATES or "gpu_idle" in reasons_of(gpu.throttle):
        return False
    if gpu.utilization_percent.gpu is not None:
        return gpu.utilization_percent.gpu > 0
    # Reasons in words may be a part of them (--query-gpu has a column each), "idle" not among the told ones.
    return gpu.throttle.mask is not None or gpu.throttle.reasons == ()


def busy(gpu: Gpu) -> bool:
    """Tell whether the GPU was at work for at least half of the time, so that its clocks should be up."""
    used = gpu.utilization_percent.gpu
    return at_work(gpu) and used is not None and used >= BUSY_PERCENT


def idle(gpu: Gpu) -> bool:
    """Tell whether the GPU is known to have had nothing to do, or little in a state for saving power.

    No opposite of `at_work`: where nothing is told, both are False. A card that is used and stays in such a
    state is held there, and not idle.
    """
    used = gpu.utilization_percent.gpu
    if "gpu_idle" in reasons_of(gpu.throttle) or used == 0:
        return True
    saving = gpu.pstate is not None and gpu.pstate not in WORKING_STATES
    return saving and (used is None or used < BUSY_PERCENT)
