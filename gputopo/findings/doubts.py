"""Signs that NVLinks or CPU affinities are an artifact of a virtual machine or a job."""

from itertools import combinations
from typing import NamedTuple

from gputopo.reference import expected_of
from gputopo.topology import MAX_CUT_CPUS, looks_cut
from gputopo.values.index_ranges import parse_cpus
from gputopo.values.machine import Machine

# `topo -m` also shows the NVLinks of idle GPUs, so a power state does not explain a board without NVLinks.
MIN_BOARD_GPUS = 2


class Affinity(NamedTuple):
    """Why a GPU's CPU affinity is not the CPUs of its NUMA node."""

    gpu: int
    cpus: str | None
    why: str


def lacks_nvlinks(machine: Machine) -> tuple[str, ...]:
    """Return the models that always have NVLinks, if at least two of their GPUs show none to each other.

    Models are skipped if the number of NVLinks of any pair is unknown; GPUs that report link states are
    skipped.
    """
    links = machine.links_by_pair
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
