"""Signs that a topology matrix or its affinities are an artifact of a virtual machine, a job or the firmware.

The legend of `nvidia-smi topo -m` defines the classes: SYS crosses NUMA nodes; NODE, PHB, PXB and PIX stay
within one. CPU affinity is the set of CPUs available to the process that printed it, which a container, a
batch job or cpuset reduces.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from gputopo.values.machine import Hop, Link, Machine

Pairs = tuple[tuple[int, int], ...]

# In older drivers the affinity column of nvidia-smi had a fixed width: at most six single CPUs fit.
MAX_CUT_CPUS = 6


class ImplausiblePairs(NamedTuple):
    """The pairs of GPUs whose class contradicts their NUMA nodes."""

    far_within_node: Pairs  # SYS, although both GPUs are on one NUMA node
    near_across_nodes: Pairs  # a class within one NUMA node, although they are on two


def implausible_pairs(machine: Machine) -> ImplausiblePairs:
    """Return the pairs whose class contradicts the known NUMA nodes of GPUs that answer."""
    nodes = {gpu.index: gpu.numa_node for gpu in machine.gpus if not gpu.lost and gpu.numa_node is not None}
    far, near = list[tuple[int, int]](), list[tuple[int, int]]()
    for pair, link in sorted(machine.links_by_pair.items()):
        if link.hop is not None and {*pair} <= nodes.keys():
            if nodes[link.a] == nodes[link.b]:
                far += [pair] if link.hop is Hop.SYS else []
            else:
                near += [pair] if link.hop < Hop.SYS else []
    return ImplausiblePairs(tuple(far), tuple(near))


def looks_cut(cpus: frozenset[int]) -> bool:
    """Return whether a CPU list is too small and scattered to be all CPUs of a NUMA node with a GPU.

    It has a single CPU, or a few CPUs without neighbors: the CPUs of a batch job, or the first six that the
    column of older drivers shows (`0,2,4,6,8,10`).
    """
    return 0 < len(cpus) <= MAX_CUT_CPUS and not any(cpu + 1 in cpus for cpu in cpus)


def believed_links(machine: Machine) -> Mapping[tuple[int, int], Link]:
    """Return the links by pair; SYS within a NUMA node becomes NODE, the farthest class within a node."""
    links = machine.links_by_pair
    return links | {
        pair: msgspec.structs.replace(links[pair], hop=Hop.NODE)
        for pair in implausible_pairs(machine).far_within_node
    }
