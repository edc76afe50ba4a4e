"""Whether a GPU was under load when it was read, and whether another program uses it."""

from typing import Any

import msgspec

from gputopo.findings.rule import Severity, Threshold
from gputopo.reference.clock_events import IDLE, reasons_of
from gputopo.values import history
from gputopo.values.machine import Gpu, GpuProcess

# CUDA runs GeForce GPUs in P2, and from P3 on clocks are lowered to save power (NVML API, nvmlPstates_t: P0
# is the maximum performance).
LOAD_STATES = ("P0", "P1", "P2")

BUSY_PERCENT = Threshold(
    "utilization under load",
    history.BUSY_PERCENT,
    "%",
    "A GPU that computes less than half of the time may lower its clocks between kernels. Ours",
)

USED_PERCENT = Threshold(
    "utilization by other programs", 10, "%", "A process below this leaves the GPU to others. Ours"
)
USED_SHARE = Threshold(
    "memory used by other programs",
    0.10,
    "of the GPU's memory",
    "A process below this leaves memory to others. Ours",
)
USED_MIB = Threshold(
    "memory used where no process is visible",
    512,
    "MiB",
    "Idle GPUs without a display show 0 to 60 MiB, a CUDA context takes 100 to 500. Ours",
)
RESERVED_MIB = Threshold(
    "memory that the driver may count as used",
    1024,
    "MiB",
    "The driver reserves 200 to 800 MiB; where total is used + free, that is counted as used. Ours",
)
CONTEXT_MIB = Threshold(
    "memory of a program that computes",
    64,
    "MiB",
    "Without persistence the driver loads for each query, and scrubbing ECC memory shows as up to 100% "
    "utilization with no memory used; no CUDA context is smaller. Ours",
)
USED_POWER = Threshold(
    "power where no process is visible",
    0.6,
    "of the power limit",
    "An idle L4 or T4 in P0 draws up to 45% of its limit, larger models 10 to 25%. Ours",
)
DISPLAY_SHARE = Threshold(
    "utilization and memory of a display",
    0.5,
    "of the GPU",
    "Desktops on GPUs of 8 and 16 GB use 9% of the memory, with a browser a third. Ours",
)
USE_THRESHOLDS = (
    USED_PERCENT,
    USED_SHARE,
    USED_MIB,
    RESERVED_MIB,
    CONTEXT_MIB,
    USED_POWER,
    DISPLAY_SHARE,
)
_NAMED = 3


class Use(msgspec.Struct, frozen=True):
    """Who or what uses a GPU. `by`: the processes in words, or what shows the use: "65% load"."""

    by: str
    severity: Severity
    evidence: dict[str, Any]

    @property
    def words(self) -> str:
        """The use in a few words: `in use by python (pid 4321)`, `in use, 65% load, ...`."""
        return f"in use by {self.by}" if self.evidence["processes"] else f"in use, {self.by}"


def use_of(gpu: Gpu) -> Use | None:
    """Return what shows that another program computes on a GPU or holds its memory, None if nothing does.

    That is a compute process or, since in containers none is listed, load, memory or power. What draws the
    screen, an idle MPS server, and in MIG mode all but a process do not count. "info": a process with little
    load and memory.
    """
    processes = [one for one in gpu.processes or () if _computes(one)]
    shown = _shown(gpu)
    evidence: dict[str, Any] = {
        "processes": [{"pid": one.pid, "name": one.name, "memory_mib": one.memory_mib} for one in processes],
        "utilization_percent": gpu.utilization_percent.gpu,
    }
    if processes:
        return Use(_names(processes), "warning" if _is_loaded(gpu, processes) else "info", evidence)
    if not shown or gpu.mig.mode:
        return None
    evidence |= {
        "memory_used_mib": gpu.memory_mib.used,
        "memory_total_mib": gpu.memory_mib.total,
        "power_w": gpu.power_w.draw,
    }
    hidden = "processes not reported" if gpu.processes is None else "no process visible (container)"
    return Use(f"{', '.join(shown)}, {hidden}", "warning", evidence)


def _computes(process: GpuProcess) -> bool:
    return process.kind in ("compute", "mps") and "cuda-mps" not in (process.name or "")


def _is_loaded(gpu: Gpu, processes: list[GpuProcess]) -> bool:
    if (gpu.utilization_percent.gpu or 0) >= USED_PERCENT.value:
        return True
    used, total = sum(process.memory_mib or 0 for process in processes), gpu.memory_mib.total
    return bool(total) and used >= USED_SHARE.value * (total or 0)


def _shown(gpu: Gpu) -> list[str]:
    """Return the load, memory and power of a GPU in words if one of them shows use, else nothing."""
    memory, percent = gpu.memory_mib, gpu.utilization_percent.gpu
    displays = bool(gpu.display_active) or any("graphics" in (one.kind or "") for one in gpu.processes or ())
    draw, limit = (
        gpu.power_w.draw,
        gpu.power_w.default_limit or gpu.power_w.enforced_limit or gpu.power_w.limit,
    )
    powered = draw is not None and limit is not None and draw >= USED_POWER.value * limit
    loaded = percent is not None and percent >= (
        100 * DISPLAY_SHARE.value if displays else USED_PERCENT.value
    )
    holds = memory.used is not None and memory.used >= CONTEXT_MIB.value
    if loaded and not powered and gpu.persistence_mode is False:
        loaded = memory.used is None or holds
    filled = memory.used is not None and memory.used >= _unexplained_mib(gpu, displays=displays)
    if not (loaded or filled or powered):
        return []
    return [
        *([f"{percent}% load"] if percent is not None else ()),
        *([f"{memory.used} of {memory.total} MiB used"] if holds and memory.total else ()),
        *([f"{draw:.0f} of {limit:.0f} W"] if powered and not (loaded or filled) else ()),
    ]


def _unexplained_mib(gpu: Gpu, *, displays: bool) -> float:
    """Return the used memory from which on a program must hold some, without a process that is listed."""
    total, used, free = gpu.memory_mib.total, gpu.memory_mib.used, gpu.memory_mib.free
    allowed = USED_MIB.value
    if total is None or used is None or free is None or total - used <= free:
        allowed += RESERVED_MIB.value
    return max(allowed, DISPLAY_SHARE.value * (total or 0)) if displays else allowed


def _names(processes: list[GpuProcess]) -> str:
    names = [f"{process.name or 'a program'} (pid {process.pid})" for process in processes[:_NAMED]]
    return ", ".join(names) + (f" and {len(processes) - _NAMED} more" if len(processes) > _NAMED else "")


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
