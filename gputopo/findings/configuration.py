"""How the GPUs are set up: who uses them, compute mode, persistence, MIG, order, memory nodes."""

from collections.abc import Iterator

from gputopo.findings.fault import Fault, findings_of, numbers, present
from gputopo.findings.finding import Finding, Severity
from gputopo.values.machine import Gpu, GpuProcess, Machine

# A process that computes less and holds less than a tenth of the card leaves room for another. Ours.
BUSY_PERCENT = 10
HELD_SHARE = 0.10


def processes(machine: Machine) -> Iterator[Finding]:
    """Find GPUs on which other programs compute. What draws the screen does not count."""
    faults = []
    for gpu in present(machine):
        working = [process for process in gpu.processes or () if process.kind in ("compute", "mps")]
        if working:
            severity: Severity = "warning" if _takes_much(gpu, working) else "info"
            evidence = {
                "processes": [
                    {"pid": one.pid, "name": one.name, "memory_mib": one.memory_mib} for one in working
                ],
                "utilization_percent": gpu.utilization_percent.gpu,
            }
            faults.append(Fault(gpu, f"another program uses it: {_names(working)}", evidence, severity))
    yield from findings_of(
        "gpu.busy",
        faults,
        "wait for it, end it, or take other GPUs; measurements made beside it tell too little",
        machine,
    )


def modes(machine: Machine) -> Iterator[Finding]:
    """Find compute modes and MIG modes that change what a program may do."""
    gpus = present(machine)
    prohibited = [
        Fault(gpu, "its compute mode is prohibited: no CUDA program may use it", _mode(gpu), "error")
        for gpu in gpus
        if gpu.compute_mode == "prohibited"
    ]
    yield from findings_of(
        "configuration.compute_prohibited", prohibited, "sudo nvidia-smi -i GPU -c DEFAULT", machine
    )
    exclusive = [
        Fault(gpu, "its compute mode is exclusive: only one process at a time may use it", _mode(gpu), "info")
        for gpu in gpus
        if gpu.compute_mode in ("exclusive_process", "exclusive_thread")
    ]
    yield from findings_of(
        "configuration.compute_exclusive",
        exclusive,
        "fine for one training at a time; to share the card: sudo nvidia-smi -i GPU -c DEFAULT",
        machine,
    )
    split = [
        Fault(
            gpu,
            "it is split by MIG: a program sees one part, without P2P to others",
            {"instances": gpu.mig.instances},
            "info",
        )
        for gpu in gpus
        if gpu.mig.mode
    ]
    yield from findings_of(
        "configuration.mig_on",
        split,
        "for training on the whole card: sudo nvidia-smi -i GPU -mig 0",
        machine,
    )


def persistence(machine: Machine) -> Iterator[Finding]:
    """Find cards that forget their settings when nobody uses them."""
    faults = [
        Fault(
            gpu,
            "persistence mode is off: the driver unloads between programs, which then start slowly and lose "
            "settings",
            {"persistence_mode": False},
            "info",
        )
        for gpu in present(machine)
        if gpu.persistence_mode is False
    ]
    yield from findings_of(
        "configuration.persistence_off",
        faults,
        "sudo systemctl enable --now nvidia-persistenced, or sudo nvidia-smi -pm 1",
        machine,
    )


def cuda_order(machine: Machine) -> Iterator[Finding]:
    """Warn where CUDA counts the GPUs in another order than nvidia-smi."""
    moved = {gpu.index: gpu.cuda_index for gpu in machine.gpus if gpu.cuda_index not in (None, gpu.index)}
    # A part of the GPUs, as in a container or under CUDA_VISIBLE_DEVICES, is no other order.
    seen = [
        gpu.cuda_index
        for gpu in sorted(machine.gpus, key=lambda gpu: gpu.index)
        if gpu.cuda_index is not None
    ]
    if moved and seen != sorted(seen):
        yield Finding(
            id="cuda.order_differs",
            severity="warning",
            subject="machine",
            says="CUDA and TensorFlow count the GPUs in another order than nvidia-smi: "
            + ", ".join(f"GPU {index} is CUDA device {cuda}" for index, cuda in moved.items()),
            evidence={"cuda_index": {str(gpu.index): gpu.cuda_index for gpu in machine.gpus}},
            remedy="set CUDA_DEVICE_ORDER=PCI_BUS_ID before a program starts; gputopo run does",
        )


def memory_nodes(machine: Machine) -> Iterator[Finding]:
    """Find CPU lists that lead a process away from the memory node of its GPU."""
    nodes = {node.index: node for node in machine.host.numa_nodes or ()}
    if len(nodes) < 2:
        return
    from gputopo.values.index_ranges import index_ranges, parse_cpus

    faults = []
    for gpu in present(machine):
        node = nodes.get(-1 if gpu.numa_node is None else gpu.numa_node)
        own = parse_cpus(gpu.cpu_affinity or "")
        near = parse_cpus(node.cpus or "") if node else None
        if node is not None and own and near and not own <= near:
            far = index_ranges(own - near)
            evidence = {"cpu_affinity": gpu.cpu_affinity, "numa_node": gpu.numa_node, "node_cpus": node.cpus}
            says = f"the driver names CPUs {far} as near, which are not on its memory node {node.index}"
            faults.append(Fault(gpu, says, evidence, "info"))
    yield from findings_of(
        "numa.binding",
        faults,
        "bind by node instead: numactl --cpunodebind=NODE --membind=NODE; copies from a far node may take "
        "three times as long",
        machine,
    )
    unknown = [gpu.index for gpu in present(machine) if gpu.numa_node is None and not gpu.cpu_affinity]
    placed = [gpu for gpu in present(machine) if gpu.numa_node is not None]
    if unknown and placed:
        yield Finding(
            id="numa.unknown",
            severity="info",
            subject=f"gpus:{numbers(unknown)}" if len(unknown) > 1 else f"gpu:{unknown[0]}",
            says=f"this machine has {len(nodes)} memory nodes, and to which GPU {numbers(unknown)} belongs "
            "is not told",
            evidence={"gpus": unknown, "nodes": sorted(nodes)},
            remedy="nothing is broken: compare copies from each node (gputopo bandwidth), or look for a BIOS "
            "update that tells the kernel",
        )


def _takes_much(gpu: Gpu, working: list[GpuProcess]) -> bool:
    if (gpu.utilization_percent.gpu or 0) >= BUSY_PERCENT:
        return True
    held, total = sum(process.memory_mib or 0 for process in working), gpu.memory_mib.total
    return bool(total) and held >= HELD_SHARE * (total or 0)


def _names(working: list[GpuProcess]) -> str:
    names = [f"{process.name or 'a program'} (pid {process.pid})" for process in working[:3]]
    return ", ".join(names) + (f" and {len(working) - 3} more" if len(working) > 3 else "")


def _mode(gpu: Gpu) -> dict[str, object]:
    return {"compute_mode": gpu.compute_mode}
