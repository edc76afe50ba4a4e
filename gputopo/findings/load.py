"""Whether a GPU was under load when it was read: many readings mean something only then."""

from gputopo.findings.rule import Threshold
from gputopo.reference.clock_events import IDLE, reasons_of
from gputopo.values import history
from gputopo.values.machine import Gpu

# CUDA runs GeForce GPUs in P2, and from P3 on clocks are lowered to save power (NVML API, nvmlPstates_t: P0
# is the maximum performance).
LOAD_STATES = ("P0", "P1", "P2")

BUSY_PERCENT = Threshold(
    "utilization under load",
    history.BUSY_PERCENT,
    "%",
    "A GPU that computes less than half of the time may lower its clocks between kernels. Ours",
)


def under_load(gpu: Gpu) -> bool:
    """Return whether the GPU was under load: in P0 to P2 and running kernels, not reported as idle.

    False where that is unknown, so an idle reading is never a fault.
    """
    if gpu.pstate not in LOAD_STATES or IDLE in reasons_of(gpu.throttle):
        return False
    if gpu.utilization_percent.gpu is not None:
        return gpu.utilization_percent.gpu > 0
    # Reasons in words may be incomplete (--query-gpu has a column each), with "idle" not among the queried.
    return gpu.throttle.mask is not None or gpu.throttle.reasons == ()


def busy(gpu: Gpu) -> bool:
    """Return whether the GPU was under load for at least half of the time, so that its clocks should be "
    "up."""
    used = gpu.utilization_percent.gpu
    return under_load(gpu) and used is not None and used >= BUSY_PERCENT.value


def idle(gpu: Gpu) -> bool:
    """Return whether the GPU is known to have been idle, or little used in a power-saving P-state.

    Not the opposite of `under_load`: where nothing is known, both are False. A GPU that is used and stays in
    such a state is throttled, and not idle.
    """
    used = gpu.utilization_percent.gpu
    if IDLE in reasons_of(gpu.throttle) or used == 0:
        return True
    saving = gpu.pstate is not None and gpu.pstate not in LOAD_STATES
    return saving and (used is None or used < BUSY_PERCENT.value)
