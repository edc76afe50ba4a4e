"""How the GPUs are set up: models, other processes, compute mode, MIG, persistence, CUDA order, NUMA "
"nodes."""

from collections.abc import Iterable, Iterator

from gputopo.findings.load import USE_THRESHOLDS, use_of
from gputopo.findings.rule import Fault, Finding, Rule, Threshold, by_model, check, present
from gputopo.reference.expectations import expected_gpu
from gputopo.values.index_ranges import index_ranges, parse_cpus
from gputopo.values.machine import Gpu, Machine
from gputopo.values.subject import MACHINE, Subject

MEMORY_SHARE = Threshold(
    "memory size difference",
    0.07,
    "below the largest of the model",
    "ECC or a display takes up to 1/16 of the reported memory (NVIDIA's ECC note for GDDR memory); sizes of "
    "one model differ by more (RTX 3080: 10 and 12 GB)",
)

MIXED_MODELS = Rule(
    "machine.mixed_models",
    title="GPUs of different models",
    remedy="Train on GPUs of one model (gputopo plan --gpus LIST): in synchronous training the slowest sets "
    "the pace, and the smallest memory the batch size.",
    severities=("info",),
)
MIXED_MEMORY = Rule(
    "machine.mixed_memory",
    title="GPUs of one model with different memory sizes",
    remedy="Choose the batch size by the smallest memory. If the sizes should be the same, compare ECC "
    "(nvidia-smi -q -d ECC) and MIG.",
    thresholds=(MEMORY_SHARE,),
)
NO_EXPECTATION = Rule(
    "card.no_expectation",
    title="no reference data for this model",
    remedy="Compare clocks and link with the data sheet: they were compared with GPUs of the same model "
    "only.",
    severities=("info",),
)
GPU_BUSY = Rule(
    "gpu.busy",
    title="another program runs on the GPU",
    remedy="Wait for it, end it, or use other GPUs. Measurements beside it are not meaningful. "
    "In a container, nvidia-smi on the host lists its processes.",
    severities=("warning", "info"),
    thresholds=USE_THRESHOLDS,
)
COMPUTE_PROHIBITED = Rule(
    "configuration.compute_prohibited",
    title="compute mode Prohibited: no CUDA program may use the GPU",
    remedy="Run sudo nvidia-smi -i GPU -c DEFAULT.",
    severities=("error",),
)
COMPUTE_EXCLUSIVE = Rule(
    "configuration.compute_exclusive",
    title="compute mode Exclusive: one process at a time may use the GPU",
    remedy="None needed for one training at a time. To share the GPU: sudo nvidia-smi -i GPU -c DEFAULT.",
    severities=("info",),
)
MIG_ON = Rule(
    "configuration.mig_on",
    title="MIG mode on: a program gets one instance, without P2P to other GPUs",
    remedy="To train on the whole GPU: sudo nvidia-smi -i GPU -mig 0.",
    severities=("info",),
)
MIG_PENDING = Rule(
    "configuration.mig_pending",
    title="MIG mode on from the next reset",
    remedy="Reset the GPU (sudo nvidia-smi -r -i GPU), or set it back: sudo nvidia-smi -i GPU -mig 0.",
    severities=("info",),
)
PERSISTENCE_OFF = Rule(
    "configuration.persistence_off",
    title="persistence mode off: the driver unloads between programs, which start slowly and lose settings",
    remedy="Run sudo systemctl enable --now nvidia-persistenced, or sudo nvidia-smi -pm 1.",
    severities=("info",),
)
CUDA_ORDER = Rule(
    "cuda.order_differs",
    title="CUDA numbers the GPUs in another order than nvidia-smi",
    remedy="Set CUDA_DEVICE_ORDER=PCI_BUS_ID before a program starts; gputopo run does.",
)
NUMA_BINDING = Rule(
    "numa.binding",
    title="CPU affinity of a GPU includes CPUs of another NUMA node",
    remedy="Bind by node: numactl --cpunodebind=NODE --membind=NODE. Copies from a far node can take three "
    "times as long.",
    severities=("info",),
)
NUMA_UNKNOWN = Rule(
    "numa.unknown",
    title="NUMA node unknown",
    remedy="Compare copies from each node (gputopo bandwidth), or look for a BIOS update that reports the "
    "node to the kernel.",
    severities=("info",),
)


@check(MIXED_MODELS)
def mixed_models(machine: Machine) -> Iterator[Finding]:
    """Report GPUs of different models."""
    groups = by_model(machine)
    if len(groups) > 1:
        models = {group[0].name or "": [gpu.index for gpu in group] for group in groups}
        words = "; ".join(f"{name}: GPU {index_ranges(gpus)}" for name, gpus in models.items())
        memory = {str(gpu.index): gpu.memory_mib.total for gpu in present(machine)}
        yield MIXED_MODELS.finding(
            MACHINE, f"GPUs of {len(groups)} models ({words})", {"models": models, "memory_mib": memory}
        )


@check(NO_EXPECTATION)
def no_expectation(machine: Machine) -> Iterator[Fault]:
    """Report models without reference data: not compared is no pass."""
    for group in by_model(machine):
        name = group[0].name
        if expected_gpu(name, group[0].pci_device_id) is None:
            evidence = {"name": name, "gpus": [gpu.index for gpu in group]}
            for gpu in group:
                yield NO_EXPECTATION.fault(gpu, f"no reference data for {name}", evidence, part=name or "")


@check(GPU_BUSY)
def used(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that other programs use. What draws the screen does not count."""
    yield from in_use(present(machine))


def in_use(gpus: Iterable[Gpu]) -> Iterator[Fault]:
    """Yield a fault for each GPU that other programs use."""
    for gpu in gpus:
        use = use_of(gpu)
        if use is not None:
            says = f"used by another program: {use.by}"
            part = "processes" if use.evidence["processes"] else "no process"
            yield GPU_BUSY.fault(gpu, says, use.evidence, use.severity, part=part)


@check(COMPUTE_PROHIBITED, COMPUTE_EXCLUSIVE, MIG_ON, MIG_PENDING)
def modes(machine: Machine) -> Iterator[Fault]:
    """Find compute modes and MIG modes that limit what a program may do."""
    for gpu in present(machine):
        mode: dict[str, object] = {"compute_mode": gpu.compute_mode}
        if gpu.compute_mode == "prohibited":
            yield COMPUTE_PROHIBITED.fault(gpu, COMPUTE_PROHIBITED.title, mode)
        if gpu.compute_mode in ("exclusive_process", "exclusive_thread"):
            yield COMPUTE_EXCLUSIVE.fault(gpu, COMPUTE_EXCLUSIVE.title, mode)
        if gpu.mig.mode:
            yield MIG_ON.fault(gpu, MIG_ON.title, {"instances": gpu.mig.instances})
        elif gpu.mig.mode is False and gpu.mig.mode_pending:
            yield MIG_PENDING.fault(
                gpu, "MIG will be on after a reset", {"mode": False, "mode_pending": True}
            )


@check(PERSISTENCE_OFF)
def persistence(machine: Machine) -> Iterator[Fault]:
    """Find GPUs that lose their settings between programs."""
    for gpu in present(machine):
        if gpu.persistence_mode is False:
            yield PERSISTENCE_OFF.fault(gpu, PERSISTENCE_OFF.title, {"persistence_mode": False})


@check(CUDA_ORDER)
def cuda_order(machine: Machine) -> Iterator[Finding]:
    """Report that CUDA numbers the GPUs in another order than nvidia-smi."""
    moved = {gpu.index: gpu.cuda_index for gpu in machine.gpus if gpu.cuda_index not in (None, gpu.index)}
    # A subset of the GPUs, as in a container or under CUDA_VISIBLE_DEVICES, is no other order.
    seen = [
        gpu.cuda_index
        for gpu in sorted(machine.gpus, key=lambda gpu: gpu.index)
        if gpu.cuda_index is not None
    ]
    if moved and seen != sorted(seen):
        yield CUDA_ORDER.finding(
            MACHINE,
            "CUDA and TensorFlow number the GPUs in another order than nvidia-smi: "
            + ", ".join(f"GPU {index} is CUDA device {cuda}" for index, cuda in moved.items()),
            {"cuda_index": {str(gpu.index): gpu.cuda_index for gpu in machine.gpus}},
        )


@check(NUMA_BINDING, NUMA_UNKNOWN)
def numa(machine: Machine) -> Iterator[Fault | Finding]:
    """Find CPU affinities beyond the GPU's NUMA node, and GPUs whose node is unknown."""
    nodes = {node.index: node for node in machine.host.numa_nodes or ()}
    if len(nodes) < 2:
        return
    for gpu in present(machine):
        node = nodes.get(-1 if gpu.numa_node is None else gpu.numa_node)
        affinity = parse_cpus(gpu.cpu_affinity or "")
        near = parse_cpus(node.cpus or "") if node else None
        if node is not None and affinity and near and not affinity <= near:
            yield NUMA_BINDING.fault(
                gpu,
                f"CPU affinity {gpu.cpu_affinity} includes {index_ranges(affinity - near)}, which are not "
                f"on its NUMA node {node.index}",
                {"cpu_affinity": gpu.cpu_affinity, "numa_node": gpu.numa_node, "node_cpus": node.cpus},
            )
    unknown = [gpu.index for gpu in present(machine) if gpu.numa_node is None and not gpu.cpu_affinity]
    if unknown and any(gpu.numa_node is not None for gpu in present(machine)):
        yield NUMA_UNKNOWN.finding(
            Subject.of_gpus(unknown),
            f"NUMA node of GPU {index_ranges(unknown)} unknown; this machine has {len(nodes)} nodes",
            {"gpus": unknown, "nodes": sorted(nodes)},
        )
