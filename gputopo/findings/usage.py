"""Whether a GPU was under load when it was read, and whether another program uses it."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from gputopo.findings.rule import Fault, Rule, Threshold, check, present
from gputopo.reference import LOAD_STATES, throttle_reasons, under_load
from gputopo.values import history
from gputopo.values.finding import Severity
from gputopo.values.machine import Gpu, GpuProcess, Machine

# A GPU that computes less than half of the time may lower its clocks between kernels.
BUSY_PERCENT = Threshold("utilization under load", history.BUSY_PERCENT, "%")

USED_PERCENT = Threshold(
    "utilization by other programs",
    10,
    "%",
    "not measured on hardware: a process below this leaves the GPU to others",
)
USED_SHARE = Threshold(
    "memory used by other programs",
    0.1,
    "of the GPU's memory",
    "not measured on hardware: a process below this leaves memory to others",
)
USED_MIB = Threshold(
    "memory used if no process is visible",
    512,
    "MiB",
    (
        "not measured on hardware: idle GPUs without a display show 0 to 60 MiB, a CUDA context takes "
        "100 to 500"
    ),
)
RESERVED_MIB = Threshold(
    "memory that the driver may count as used",
    1024,
    "MiB",
    (
        "not measured on hardware: the driver reserves 200 to 800 MiB; if total is used + free, that is "
        "counted as used"
    ),
)
CONTEXT_MIB = Threshold(
    "memory of a program that computes",
    64,
    "MiB",
    (
        "not measured on hardware: without persistence the driver loads for each query, and scrubbing "
        "ECC memory shows as up to 100% utilization with no memory used; no CUDA context is smaller"
    ),
)
USED_POWER = Threshold(
    "power if no process is visible",
    0.6,
    "of the power limit",
    (
        "not measured on hardware: an idle L4 or T4 in P0 draws up to 45% of its limit, larger models 10 "
        "to 25%"
    ),
)
DISPLAY_SHARE = Threshold(
    "utilization and memory of a display",
    0.5,
    "of the GPU",
    (
        "not measured on hardware: desktops on GPUs of 8 and 16 GB use 9% of the memory, with a browser "
        "a third"
    ),
)
HUNG_PERCENT = Threshold(
    "utilization of a hung kernel",
    95,
    "%",
    "not measured; chosen because a kernel that never ends counts as load all the time",
)
HUNG_POWER = Threshold(
    "power of a hung kernel",
    0.3,
    "of the power limit",
    "not measured; chosen because kernels that compute draw more, and most idle GPUs 5 to 25%",
)
GPU_BUSY = Rule(
    "gpu.busy",
    "another program runs on the GPU",
    remedy=(
        "Wait for it, stop it, or use other GPUs. Measurements are not meaningful until then. In a "
        "container or without privileges, processes are not listed; use nvidia-smi on the host."
    ),
    severities=("warning", "info"),
    thresholds=(USED_PERCENT, USED_SHARE, USED_MIB, RESERVED_MIB, CONTEXT_MIB, USED_POWER, DISPLAY_SHARE),
)
HUNG_KERNEL = Rule(
    "gpu.hung_kernel",
    "load at idle power: a kernel probably hangs",
    remedy=(
        "Stop the job on the GPU if there is one. If the load stays, reset the GPU (sudo nvidia-smi -r "
        "-i GPU), and if it still stays, reboot."
    ),
    thresholds=(HUNG_PERCENT, HUNG_POWER),
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
    processes = [
        process
        for process in gpu.processes or ()
        if process.kind in ("compute", "mps") and "cuda-mps" not in (process.name or "")
    ]
    shown = _shown(gpu)
    evidence: dict[str, Any] = {
        "processes": [
            {"pid": process.pid, "name": process.name, "memory_mib": process.memory_mib}
            for process in processes
        ],
        "utilization_percent": gpu.utilization_percent.gpu,
    }
    if processes:
        names = [f"{process.name or 'a program'} (pid {process.pid})" for process in processes[:_NAMED]]
        more = f" and {len(processes) - _NAMED} more" if len(processes) > _NAMED else ""
        severity: Severity = "warning" if _is_loaded(gpu, processes) else "info"
        return Use(", ".join(names) + more, severity, evidence)
    if not shown or gpu.mig.mode:
        return None
    evidence |= {
        "memory_used_mib": gpu.memory_mib.used,
        "memory_total_mib": gpu.memory_mib.total,
        "power_w": gpu.power_w.draw,
    }
    hidden = "processes not reported" if gpu.processes is None else "no process listed"
    return Use(f"{', '.join(shown)}, {hidden}", "warning", evidence)


def _is_loaded(gpu: Gpu, processes: list[GpuProcess]) -> bool:
    if (gpu.utilization_percent.gpu or 0) >= USED_PERCENT.value:
        return True
    used, total = sum(process.memory_mib or 0 for process in processes), gpu.memory_mib.total
    return bool(total) and used >= USED_SHARE.value * (total or 0)


def _shown(gpu: Gpu) -> list[str]:
    """Return the load, memory and power of a GPU in words if one of them shows use, else nothing."""
    memory, percent = gpu.memory_mib, gpu.utilization_percent.gpu
    displays, power = drives_display(gpu), gpu.power_w
    draw, limit = power.draw, _power_limit(gpu)
    powered = draw is not None and limit is not None and draw >= USED_POWER.value * limit
    usual = 100 * DISPLAY_SHARE.value if displays else USED_PERCENT.value
    loaded = percent is not None and percent >= usual
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
        *(["drives a display"] if displays else ()),
    ]


def hung_kernel(gpu: Gpu) -> str | None:
    """Return load and power in words if a GPU shows full load at idle power, without access to its memory."""
    draw, limit, load = gpu.power_w.draw, _power_limit(gpu), gpu.utilization_percent
    if draw is None or limit is None or load.gpu is None or drives_display(gpu) or gpu.mig.mode:
        return None
    slowed = {*throttle_reasons(gpu.throttle)} - {
        "applications_clocks_setting"
    } or gpu.pstate not in LOAD_STATES
    hangs = load.gpu >= HUNG_PERCENT.value and draw < HUNG_POWER.value * limit and not load.memory
    return f"{load.gpu}% load at {draw:.0f} of {limit:.0f} W" if hangs and not slowed else None


def _power_limit(gpu: Gpu) -> float | None:
    return gpu.power_w.default_limit or gpu.power_w.enforced_limit or gpu.power_w.limit


def drives_display(gpu: Gpu) -> bool:
    """Return whether a GPU drives a display, or programs draw with it."""
    return bool(gpu.display_active) or any(
        "graphics" in (process.kind or "") for process in gpu.processes or ()
    )


def _unexplained_mib(gpu: Gpu, *, displays: bool) -> float:
    """Return the used memory from which on a program must hold some, without a process that is listed."""
    total, used, free = gpu.memory_mib.total, gpu.memory_mib.used, gpu.memory_mib.free
    allowed = USED_MIB.value
    if total is None or used is None or free is None or total - used <= free:
        allowed += RESERVED_MIB.value
    return max(allowed, DISPLAY_SHARE.value * (total or 0)) if displays else allowed


def busy(gpu: Gpu) -> bool:
    """Return whether the GPU was under load for half of the time or more, so that its clocks should be up."""
    used = gpu.utilization_percent.gpu
    return under_load(gpu) and used is not None and used >= BUSY_PERCENT.value


@check(GPU_BUSY, HUNG_KERNEL)
def used(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that programs use. What draws the screen does not count. A log may be of one's own run."""
    logs = {log.gpu: log for log in machine.series if log.loaded}
    for gpu in present(machine):
        if (log := logs.get(gpu.index)) is None or gpu.processes:
            yield from in_use([gpu])
        else:
            share = log.loaded / max(log.samples, 1)
            says = f"under load in {share:.0%} of {log.samples} samples, {log.peak_percent}% at most"
            evidence = {"loaded": log.loaded, "samples": log.samples, "peak_percent": log.peak_percent}
            yield GPU_BUSY.fault(gpu, f"{says}; the log shows no program", evidence, "info", part="log")


def in_use(gpus: Iterable[Gpu]) -> Iterator[Fault]:
    """Yield a fault for each GPU that other programs use."""
    for gpu in gpus:
        use = use_of(gpu)
        if hung := hung_kernel(gpu):
            evidence = {"power_w": gpu.power_w.draw, "power_limit_w": _power_limit(gpu)}
            says = f"{hung}, without access to its memory: a kernel probably hangs"
            yield HUNG_KERNEL.fault(gpu, says, evidence)
        if use and (use.evidence["processes"] or not hung):
            part = "processes" if use.evidence["processes"] else "no process"
            says = f"used by another program: {use.by}"
            yield GPU_BUSY.fault(gpu, says, use.evidence, use.severity, part=part)
