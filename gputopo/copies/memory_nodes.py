"""Which memory node is near a GPU, and which is far."""

from collections.abc import Mapping, Sequence

from gputopo.values.machine import Machine


def near_nodes(machine: Machine, gpus: Sequence[int], numa: int | None) -> dict[int, int]:
    """Give each GPU's memory node, or `numa` for all of them; a GPU whose node is not known is left out.

    A machine with one node, and none told for the GPU (the kernel's -1), has only that one to use.
    """
    if numa is not None:
        return dict.fromkeys(gpus, numa)
    nodes = [node.index for node in machine.host.numa_nodes or ()]
    told = {gpu.index: gpu.numa_node for gpu in machine.gpus}
    found: dict[int, int] = {}
    for gpu in gpus:
        node = told.get(gpu)
        if node is not None and node >= 0:
            found[gpu] = node
        elif len(nodes) == 1:
            found[gpu] = nodes[0]
    return found


def far_nodes(machine: Machine, near: Mapping[int, int]) -> dict[int, int]:
    """Give the node farthest from each GPU's own that has CPUs and memory; none where there is only one."""
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
