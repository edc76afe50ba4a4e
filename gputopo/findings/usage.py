"""Whether a GPU was under load when it was read, and whether another program uses it."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from gputopo.findings.rule import Fault, Rule, Threshold, by_model, check, each_gpu, present
from gputopo.reference.clock_events import LOAD_STATES, reasons_of, under_load
from gputopo.reference.expectations import expected_of
from gputopo.values import history
from gputopo.values.finding import Severity
from gputopo.values.index_ranges import index_ranges, parse_cpus
from gputopo.values.machine import Gpu, GpuProcess, Machine
from gputopo.values.subject import MACHINE, Subject

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
    "memory used where no process is visible",
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
        "not measured on hardware: the driver reserves 200 to 800 MiB; where total is used + free, that "
        "is counted as used"
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
    "power where no process is visible",
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
USE_THRESHOLDS = (USED_PERCENT, USED_SHARE, USED_MIB, RESERVED_MIB, CONTEXT_MIB, USED_POWER, DISPLAY_SHARE)
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
        one
        for one in gpu.processes or ()
        if one.kind in ("compute", "mps") and "cuda-mps" not in (one.name or "")
    ]
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
    displays, power = _drives_display(gpu), gpu.power_w
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
    if draw is None or limit is None or load.gpu is None or _drives_display(gpu) or gpu.mig.mode:
        return None
    slowed = {*reasons_of(gpu.throttle)} - {"applications_clocks_setting"} or gpu.pstate not in LOAD_STATES
    hangs = load.gpu >= HUNG_PERCENT.value and draw < HUNG_POWER.value * limit and not load.memory
    return f"{load.gpu}% load at {draw:.0f} of {limit:.0f} W" if hangs and not slowed else None


def _power_limit(gpu: Gpu) -> float | None:
    return gpu.power_w.default_limit or gpu.power_w.enforced_limit or gpu.power_w.limit


def _drives_display(gpu: Gpu) -> bool:
    return bool(gpu.display_active) or any("graphics" in (one.kind or "") for one in gpu.processes or ())


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


def busy(gpu: Gpu) -> bool:
    """Return whether the GPU was under load for half of the time or more, so that its clocks should be up."""
    used = gpu.utilization_percent.gpu
    return under_load(gpu) and used is not None and used >= BUSY_PERCENT.value


MEMORY_SHARE = Threshold(
    "memory size difference",
    0.07,
    "below the largest of the model",
    (
        "ECC or a display takes up to 1/16 of the reported memory (NVIDIA's ECC note for GDDR memory); "
        "sizes of one model differ by more (RTX 3080: 10 and 12 GB)"
    ),
)

MIXED_MODELS = Rule(
    "machine.mixed_models",
    "GPUs of different models",
    remedy=(
        "Train on GPUs of one model (gputopo plan --gpus LIST): in synchronous training the slowest sets "
        "the pace, and the smallest memory the batch size."
    ),
    severities=("info",),
)
MIXED_MEMORY = Rule(
    "machine.mixed_memory",
    "GPUs of one model with different memory sizes",
    remedy=(
        "Choose the batch size by the smallest memory. If the sizes should be the same, compare ECC "
        "(nvidia-smi -q -d ECC) and MIG."
    ),
    thresholds=(MEMORY_SHARE,),
)
NO_EXPECTATION = Rule(
    "card.no_expectation",
    "no reference data for this model",
    remedy=(
        "Compare clocks and link with the data sheet: they were compared with GPUs of the same model only."
    ),
    severities=("info",),
)
GPU_BUSY = Rule(
    "gpu.busy",
    "another program runs on the GPU",
    remedy=(
        "Wait for it, end it, or use other GPUs. Measurements are not meaningful until then. No process "
        "is listed in a container (nvidia-smi on the host lists it), or without privileges."
    ),
    severities=("warning", "info"),
    thresholds=(*USE_THRESHOLDS,),
)
HUNG_KERNEL = Rule(
    "gpu.hung_kernel",
    "load at idle power: probably a kernel that hangs",
    remedy=(
        "End the job on the GPU if there is one. If the load stays, reset the GPU (sudo nvidia-smi -r -i "
        "GPU), and if it still stays, reboot."
    ),
    thresholds=(HUNG_PERCENT, HUNG_POWER),
)
COMPUTE_PROHIBITED = Rule(
    "configuration.compute_prohibited",
    "compute mode Prohibited: no CUDA program may use the GPU",
    remedy="Run sudo nvidia-smi -i GPU -c DEFAULT.",
    severities=("error",),
)
COMPUTE_EXCLUSIVE = Rule(
    "configuration.compute_exclusive",
    "compute mode Exclusive: one process at a time may use the GPU",
    remedy="None needed for one training at a time. To share the GPU: sudo nvidia-smi -i GPU -c DEFAULT.",
    severities=("info",),
)
MIG_ON = Rule(
    "configuration.mig_on",
    "MIG mode on: a program gets one instance, without P2P to other GPUs",
    remedy="To train on the whole GPU: sudo nvidia-smi -i GPU -mig 0.",
    severities=("info",),
)
MIG_PENDING = Rule(
    "configuration.mig_pending",
    "MIG mode on from the next reset",
    remedy="Reset the GPU (sudo nvidia-smi -r -i GPU), or set it back: sudo nvidia-smi -i GPU -mig 0.",
    severities=("info",),
)
PERSISTENCE_OFF = Rule(
    "configuration.persistence_off",
    (
        "persistence mode off: the driver initialises the GPU for each program, which takes seconds and "
        "resets its settings"
    ),
    remedy=(
        "Run sudo nvidia-smi -pm 1, again after each boot. nvidia-persistenced does it at boot, if its "
        "service is not started with --no-persistence-mode, as Ubuntu's is."
    ),
    severities=("info",),
)
CUDA_ORDER = Rule(
    "cuda.order_differs",
    "CUDA numbers the GPUs in another order than nvidia-smi",
    remedy="Set CUDA_DEVICE_ORDER=PCI_BUS_ID before a program starts; gputopo run does.",
)
NUMA_BINDING = Rule(
    "numa.binding",
    "CPU affinity of a GPU includes CPUs of another NUMA node",
    remedy=(
        "Bind by node: numactl --cpunodebind=NODE --membind=NODE. Copies from a far node can take three "
        "times as long."
    ),
    severities=("info",),
)
NUMA_UNKNOWN = Rule(
    "numa.unknown",
    "NUMA node unknown",
    remedy=(
        "Compare copies from each node (gputopo bandwidth), or look for a BIOS update that reports the "
        "node to the kernel."
    ),
    severities=("info",),
)


@check(MIXED_MODELS)
def mixed_models(machine: Machine) -> Iterator[Fault]:
    """Report GPUs of different models."""
    groups = by_model(machine)
    if len(groups) > 1:
        models = {group[0].name or "": [gpu.index for gpu in group] for group in groups}
        words = "; ".join(f"{name}: GPU {index_ranges(gpus)}" for name, gpus in models.items())
        memory = {str(gpu.index): gpu.memory_mib.total for gpu in present(machine)}
        evidence = {"models": models, "memory_mib": memory}
        yield MIXED_MODELS.fault(MACHINE, f"GPUs of {len(groups)} models ({words})", evidence)


@check(NO_EXPECTATION)
def no_expectation(machine: Machine) -> Iterator[Fault]:
    """Report models without reference data: not compared is no pass."""
    for group in by_model(machine):
        name = group[0].name
        if expected_of(group[0]) is None:
            evidence = {"name": name, "gpus": [gpu.index for gpu in group]}
            for gpu in group:
                yield NO_EXPECTATION.fault(gpu, f"no reference data for {name}", evidence, part=name or "")


@check(GPU_BUSY, HUNG_KERNEL)
def used(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that programs use. What draws the screen does not count. A log may be of one's own run."""
    logs = {one.gpu: one for one in machine.series if one.loaded}
    for gpu in present(machine):
        if (log := logs.get(gpu.index)) is None or gpu.processes:
            yield from in_use([gpu])
        else:
            share = log.loaded / max(log.samples, 1)
            says = f"under load in {share:.0%} of {log.samples} samples, {log.peak_percent}% at most"
            evidence = {"loaded": log.loaded, "samples": log.samples, "peak_percent": log.peak_percent}
            yield GPU_BUSY.fault(gpu, f"{says}; the log names no program", evidence, "info", part="log")


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


@each_gpu(COMPUTE_PROHIBITED, COMPUTE_EXCLUSIVE, MIG_ON, MIG_PENDING)
def modes(gpu: Gpu) -> Iterator[Fault]:
    """Find compute modes and MIG modes that limit what a program may do."""
    mode = {"compute_mode": gpu.compute_mode}
    if gpu.compute_mode == "prohibited":
        yield COMPUTE_PROHIBITED.fault(gpu, COMPUTE_PROHIBITED.title, mode)
    if gpu.compute_mode in ("exclusive_process", "exclusive_thread"):
        yield COMPUTE_EXCLUSIVE.fault(gpu, COMPUTE_EXCLUSIVE.title, mode)
    if gpu.mig.mode:
        yield MIG_ON.fault(gpu, MIG_ON.title, {"instances": gpu.mig.instances})
    elif gpu.mig.mode is False and gpu.mig.mode_pending:
        yield MIG_PENDING.fault(gpu, "MIG will be on after a reset", {"mode": False, "mode_pending": True})


@each_gpu(PERSISTENCE_OFF)
def persistence(gpu: Gpu) -> Iterator[Fault]:
    """Find GPUs that the driver initialises for each program.

    One that a display server uses stays initialised (docs.nvidia.com/deploy/driver-persistence, Overview).
    """
    if gpu.persistence_mode is False and not _drives_display(gpu):
        yield PERSISTENCE_OFF.fault(gpu, PERSISTENCE_OFF.title, {"persistence_mode": False})


@check(CUDA_ORDER)
def cuda_order(machine: Machine) -> Iterator[Fault]:
    """Report that CUDA numbers the GPUs in another order than nvidia-smi."""
    numbers = {gpu.index: gpu.cuda_index for gpu in machine.gpus}
    # A subset of the GPUs, as in a container or under CUDA_VISIBLE_DEVICES, is no other order.
    seen = [cuda for _, cuda in sorted(numbers.items()) if cuda is not None]
    if seen != sorted(seen):
        moved = {index: cuda for index, cuda in numbers.items() if cuda not in (None, index)}
        words = ", ".join(f"GPU {index} is CUDA device {cuda}" for index, cuda in moved.items())
        says = f"CUDA and TensorFlow number the GPUs in another order than nvidia-smi: {words}"
        yield CUDA_ORDER.fault(
            MACHINE, says, {"cuda_index": {str(index): cuda for index, cuda in numbers.items()}}
        )


@check(NUMA_BINDING, NUMA_UNKNOWN)
def numa(machine: Machine) -> Iterator[Fault]:
    """Find CPU affinities beyond the GPU's NUMA node, and GPUs whose node is unknown."""
    nodes = {node.index: node for node in machine.host.numa_nodes or ()}
    if len(nodes) < 2:
        return
    for gpu in present(machine):
        node = nodes.get(-1 if gpu.numa_node is None else gpu.numa_node)
        affinity = parse_cpus(gpu.cpu_affinity or "")
        near = parse_cpus(node.cpus or "") if node else None
        if node is not None and affinity and near and not affinity <= near:
            beyond = f"CPU affinity {gpu.cpu_affinity} includes {index_ranges(affinity - near)}"
            evidence = {"cpu_affinity": gpu.cpu_affinity, "numa_node": gpu.numa_node, "node_cpus": node.cpus}
            says = f"{beyond}, which are not on its NUMA node {node.index}"
            yield NUMA_BINDING.fault(gpu, says, evidence)
    unknown = [gpu.index for gpu in present(machine) if gpu.numa_node is None and not gpu.cpu_affinity]
    if unknown and any(gpu.numa_node is not None for gpu in present(machine)):
        says = f"NUMA node of GPU {index_ranges(unknown)} unknown; this machine has {len(nodes)} nodes"
        yield NUMA_UNKNOWN.fault(Subject.of_gpus(unknown), says, {"gpus": unknown, "nodes": sorted(nodes)})
