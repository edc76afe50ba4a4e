"""Which CUDA device is which GPU of the machine, by PCI address, and which GPUs CUDA does not show."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from gputopo.values.bandwidth import NotMeasured
from gputopo.values.errors import UsageError
from gputopo.values.machine import Machine


class Device(Protocol):
    """What is needed of a CUDA device; `gputopo.probes.cuda.door.CudaDevice` is one."""

    @property
    def ordinal(self) -> int:
        """Its number in this process."""
        ...

    @property
    def pci_address(self) -> str | None:
        """Its address as `Gpu.pci_address` has it."""
        ...


class Matched(NamedTuple):
    """GPU index -> CUDA ordinal, and the GPUs that were wanted and that CUDA does not show."""

    ordinals: dict[int, int]
    not_measured: tuple[NotMeasured, ...]


def selected_gpus(machine: Machine, gpus: Sequence[int] | None) -> tuple[int, ...]:
    """Return the indices to measure. Raises UsageError for one that the machine does not have."""
    known = [gpu.index for gpu in machine.gpus]
    if gpus is None:
        return tuple(known)
    for gpu in gpus:
        if gpu not in known:
            there = ", ".join(map(str, known)) or "none"
            raise UsageError(f"there is no GPU {gpu} in this machine", f"choose among its GPUs: {there}")
    return tuple(sorted(set(gpus)))


def match(
    machine: Machine, gpus: Sequence[int], devices: Sequence[Device], environment: Mapping[str, str]
) -> Matched:
    """Find the CUDA device of each GPU by PCI address. Of a card that is split (MIG) the first counts."""
    by_address: dict[str, int] = {}
    for device in devices:
        if device.pci_address is not None:
            by_address.setdefault(device.pci_address, device.ordinal)
    ordinals: dict[int, int] = {}
    missing: list[NotMeasured] = []
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    for gpu in machine.gpus:
        if gpu.index not in gpus:
            continue
        ordinal = by_address.get(gpu.pci_address or "")
        if ordinal is not None:
            ordinals[gpu.index] = ordinal
        else:
            missing.append(NotMeasured(what=f"gpu:{gpu.index}", reason=_why(gpu.lost, visible)))
    return Matched(ordinals, tuple(missing))


def _why(lost: bool, visible: str | None) -> str:
    if lost:
        return "the GPU is lost: it does not answer the driver"
    if visible is not None:
        return f"CUDA does not show it to this process: CUDA_VISIBLE_DEVICES is '{visible}'"
    return "CUDA does not show it to this process (compute mode, MIG, a container without it)"


def near_nodes(machine: Machine, gpus: Sequence[int], numa: int | None) -> dict[int, int]:
    """Return each GPU's NUMA node, or `numa` for all of them; a GPU whose node is unknown is left out.

    A machine with one node, and none known for the GPU (the kernel's -1), has only that one to use.
    """
    if numa is not None:
        return dict.fromkeys(gpus, numa)
    nodes = [node.index for node in machine.host.numa_nodes or ()]
    reported = {gpu.index: gpu.numa_node for gpu in machine.gpus}
    found: dict[int, int] = {}
    for gpu in gpus:
        node = reported.get(gpu)
        if node is not None and node >= 0:
            found[gpu] = node
        elif len(nodes) == 1:
            found[gpu] = nodes[0]
    return found


def far_nodes(machine: Machine, near: Mapping[int, int]) -> dict[int, int]:
    """Return the node farthest from each GPU's own that has CPUs and memory; none where there is only one."""
    usable = {
        node.index: node.distances or ()
        for node in machine.host.numa_nodes or ()
        if node.cpus and node.memory_mib != 0
    }
    found: dict[int, int] = {}
    for gpu, own in near.items():
        others = [(_distance(usable.get(own, ()), node), -node) for node in usable if node != own]
        if others:
            found[gpu] = -max(others)[1]
    return found


def _distance(distances: Sequence[int], node: int) -> int:
    return distances[node] if node < len(distances) else 0
