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
    wanted = [gpu for gpu in machine.gpus if gpu.index in gpus]
    ordinal_of = {gpu.index: by_address.get(gpu.pci_address) for gpu in wanted if gpu.pci_address is not None}
    ordinals = {gpu: ordinal for gpu, ordinal in ordinal_of.items() if ordinal is not None}
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return ordinals, tuple(
        NotMeasured(what=f"gpu:{gpu.index}", reason=_why(gpu.lost, visible))
        for gpu in wanted
        if gpu.index not in ordinals
    )


def _why(lost: bool, visible: str | None) -> str:
    if lost:
        return "the GPU is lost: it does not answer the driver"
    if visible is not None:
        return f"CUDA does not show it to this process: CUDA_VISIBLE_DEVICES is '{visible}'"
    return "CUDA does not show it to this process (compute mode, MIG, a container without it)"


def near_nodes(machine: Machine, gpus: Sequence[int], numa: int | None) -> dict[int, int]:
    """Return each GPU's NUMA node, or `numa` for all GPUs. Skips a GPU whose node is unknown.

    If the machine has only one node, a GPU without a known node (the kernel's -1) uses that node.
    """
    if numa is not None:
        return dict.fromkeys(gpus, numa)
    nodes = [node.index for node in machine.host.numa_nodes or ()]
    reported = {gpu.index: gpu.numa_node for gpu in machine.gpus}
    near: dict[int, int] = {}
    for gpu in gpus:
        node = reported.get(gpu)
        if node is not None and node >= 0:
            near[gpu] = node
        elif len(nodes) == 1:
            near[gpu] = nodes[0]
    return near


def far_nodes(machine: Machine, near: Mapping[int, int]) -> dict[int, int]:
    """Return, for each GPU, the farthest node with CPUs and memory; empty if there is only one node."""
    nodes = [node.index for node in machine.host.numa_nodes or () if node.cpus and node.memory_mib != 0]
    far = {gpu: farthest_node(machine.host, near_node, nodes) for gpu, near_node in near.items()}
    return {gpu: node for gpu, node in far.items() if node is not None}
