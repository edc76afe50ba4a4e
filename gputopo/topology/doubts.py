"""Signs that a topology matrix or its affinities are an artifact of a virtual machine, a job or the firmware.

The legend of `nvidia-smi topo -m` defines the classes: SYS crosses NUMA nodes; NODE, PHB, PXB and PIX stay
within one. CPU affinity is the set of CPUs available to the process that printed it, which a container, a
batch job or cpuset reduces.
"""

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import NamedTuple

import msgspec

from gputopo.reference.expectations import expected_of
from gputopo.topology.hops import links_by_pair
from gputopo.values.index_ranges import parse_cpus
from gputopo.values.machine import Hop, Link, Machine

Pairs = tuple[tuple[int, int], ...]

# In older drivers the affinity column of nvidia-smi had a fixed width: at most six single CPUs fit.
MAX_CUT_CPUS = 6
# `topo -m` also shows the NVLinks of idle GPUs, so a power state does not explain a board without NVLinks.
MIN_BOARD_GPUS = 2


class Affinity(NamedTuple):
    """Why a GPU's CPU affinity is not the CPUs of its NUMA node."""

    gpu: int
    cpus: str | None
    why: str


def sys_within_node(machine: Machine) -> Pairs:
    """Return the pairs with class SYS although both GPUs are on the same NUMA node."""
    return _pairs(machine, lambda hop: hop is Hop.SYS, same_node=True)


def near_across_nodes(machine: Machine) -> Pairs:
    """Return the pairs with a class within one NUMA node although the GPUs are on two."""
    return _pairs(machine, lambda hop: hop is not None and hop < Hop.SYS, same_node=False)


def lacks_nvlinks(machine: Machine) -> tuple[str, ...]:
    """Return the models that always have NVLinks, if at least two of their GPUs show none to each other.

    Models are skipped if the number of NVLinks of any pair is unknown; GPUs that report link states are
    skipped.
    """
    links = links_by_pair(machine)
    groups: dict[str, list[int]] = {}
    for gpu in machine.gpus:
        if gpu.lost or gpu.mig.mode or gpu.nvlinks:
            continue
        expected = expected_of(gpu)
        if gpu.name and expected is not None and expected.nvlinks and not expected.nvlink_by_bridge:
            groups.setdefault(gpu.name, []).append(gpu.index)
    return tuple(
        name
        for name, gpus in groups.items()
        if len(gpus) >= MIN_BOARD_GPUS
        and all(
            (link := links.get(pair)) is not None and link.nvlinks == 0
            for pair in combinations(sorted(gpus), 2)
        )
    )


def looks_cut(cpus: frozenset[int]) -> bool:
    """Return whether a CPU list is too small and scattered to be all CPUs of a NUMA node with a GPU.

    It has a single CPU, or a few CPUs without neighbors: the CPUs of a batch job, or the first six that the
    column of older drivers shows (`0,2,4,6,8,10`).
    """
    return 0 < len(cpus) <= MAX_CUT_CPUS and not any(cpu + 1 in cpus for cpu in cpus)


def cut_affinities(machine: Machine) -> tuple[Affinity, ...]:
    """Return the GPUs whose CPU affinity shows the CPUs of a job or container, not of their NUMA node."""
    if machine.host.logical_cpus is not None and machine.host.logical_cpus <= MAX_CUT_CPUS:
        return ()
    known = {gpu.index: parse_cpus(gpu.cpu_affinity or "") for gpu in machine.gpus}
    found = []
    for gpu in machine.gpus:
        cpus = known[gpu.index]
        if gpu.lost:
            continue
        if cpus and looks_cut(cpus):
            found.append(Affinity(gpu.index, gpu.cpu_affinity, "a few scattered CPUs"))
        elif not cpus and any(known.values()) and gpu.numa_node is None and machine.links:
            found.append(Affinity(gpu.index, None, "none, while other GPUs have CPUs"))
    return tuple(found)


def believed_links(machine: Machine) -> Mapping[tuple[int, int], Link]:
    """Return the links by pair; SYS within a NUMA node becomes NODE, the farthest class within a node."""
    links = links_by_pair(machine)
    return links | {
        pair: msgspec.structs.replace(links[pair], hop=Hop.NODE) for pair in sys_within_node(machine)
    }


def _pairs(machine: Machine, fits: Callable[[Hop | None], bool], *, same_node: bool) -> Pairs:
    nodes = {gpu.index: gpu.numa_node for gpu in machine.gpus if not gpu.lost}
    found = []
    for (a, b), link in links_by_pair(machine).items():
        first, second = nodes.get(a), nodes.get(b)
        if first is not None and second is not None and fits(link.hop) and (first == second) is same_node:
            found.append((a, b))
    return tuple(sorted(found))
