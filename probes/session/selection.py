"""The GPUs that a session measures, with their CUDA ordinals and their near and far NUMA nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from gputopo.probes.session.host_memory import farthest_node
from gputopo.values.bandwidth import NotMeasured
from gputopo.values.errors import UsageError
from gputopo.values.machine import Machine


def selected_gpus(machine: Machine, gpus: Sequence[int] | None) -> tuple[int, ...]:
    """Return the indices of the GPUs to measure. Raises UsageError for a GPU that does not exist."""
    known = [gpu.index for gpu in machine.gpus]
    if gpus is None:
        return tuple(known)
    for gpu in gpus:
        if gpu not in known:
            gpus_there = ", ".join(map(str, known)) or "none"
            raise UsageError(f"there is no GPU {gpu} in this machine", f"choose among its GPUs: {gpus_there}")
    return tuple(sorted(set(gpus)))


def match(
    machine: Machine, gpus: Sequence[int], devices: Sequence[Any], environment: Mapping[str, str]
) -> tuple[dict[int, int], tuple[NotMeasured, ...]]:
    """Return the CUDA ordinal of each GPU, by PCI address, and the GPUs that CUDA does not show.

    For a card that is split (MIG), the first device is used.
    """
    by_address: dict[str | None, int] = {}
    for device in devices:
        by_address.setdefault(device.pci_address, device.ordinal)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    reason = "CUDA does not show it to this process (compute mode, MIG, a container without it)"
    if visible is not None:
        reason = f"CUDA does not show it to this process: CUDA_VISIBLE_DEVICES is '{visible}'"
    ordinals: dict[int, int] = {}
    hidden: list[NotMeasured] = []
    for gpu in machine.gpus:
        if gpu.index not in gpus:
            continue
        if gpu.pci_address is not None and gpu.pci_address in by_address:
            ordinals[gpu.index] = by_address[gpu.pci_address]
        else:
            why = "the GPU is lost: it does not answer the driver" if gpu.lost else reason
            hidden.append(NotMeasured(what=f"gpu:{gpu.index}", reason=why))
    return ordinals, tuple(hidden)


def near_nodes(machine: Machine, gpus: Sequence[int], numa: int | None) -> dict[int, int]:
    """Return each GPU's NUMA node, or `numa` for all GPUs. Skips a GPU whose node is unknown.

    If the machine has only one node, a GPU without a known node (the kernel's -1) uses that node.
    """
    if numa is not None:
        return dict.fromkeys(gpus, numa)
    nodes = [node.index for node in machine.host.numa_nodes or ()]
    only = nodes[0] if len(nodes) == 1 else -1
    reported = {gpu.index: gpu.numa_node for gpu in machine.gpus if (gpu.numa_node or 0) >= 0}
    near = {gpu: only if (node := reported.get(gpu)) is None else node for gpu in gpus}
    return {gpu: node for gpu, node in near.items() if node >= 0}


def far_nodes(machine: Machine, near: Mapping[int, int]) -> dict[int, int]:
    """Return, for each GPU, the farthest node with CPUs and memory; empty if there is only one node."""
    nodes = [node.index for node in machine.host.numa_nodes or () if node.cpus and node.memory_mib != 0]
    far = {gpu: farthest_node(machine.host, near_node, nodes) for gpu, near_node in near.items()}
    return {gpu: node for gpu, node in far.items() if node is not None}
