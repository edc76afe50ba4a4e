"""The CPUs, memory and threads of a run's process on the host."""

from collections.abc import Mapping, Sequence

import msgspec

from gputopo.topology import looks_cut
from gputopo.values.index_ranges import index_ranges, parse_cpus
from gputopo.values.machine import Gpu, Machine

# Variables for the child before it executes the program (`gputopo.probes.processes`).
CPUS, MEMORY_NODE = "GPUTOPO_CPUS", "GPUTOPO_MEMORY_NODE"
# Threads within TensorFlow's ops, between ops, and of OpenMP. By default all three count the CPUs of the
# affinity mask; they do not see a quota of CPU time.
THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
# With fewer near CPUs for each GPU, all CPUs are used: tf_cnn_benchmarks launches kernels with two threads
# for each GPU (--per_gpu_thread_count).
MIN_CPUS_PER_GPU = 2


class Usable(msgspec.Struct, frozen=True):
    """The CPUs this process may use: the affinity mask, and a quota in CPUs (None: no quota)."""

    cpus: frozenset[int]
    quota: float | None = None


class HostPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs ("0-9,20-29"), memory and threads of a run on the host; None leaves the default."""

    cpus: str | None = None
    memory_node: int | None = None  # the preferred NUMA node for memory
    threads: int | None = None  # of each thread pool
    says: tuple[str, ...] = ()  # what was chosen or not changed, and why, as sentences

    def environment(self, parent: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for the child, except thread numbers that the user has set."""
        places = {CPUS: self.cpus, MEMORY_NODE: self.memory_node}
        known = {name: str(value) for name, value in places.items() if value is not None}
        return known | self.thread_variables(parent)

    def thread_variables(self, parent: Mapping[str, str]) -> dict[str, str]:
        """Return the thread variables that the user has not set."""
        return {
            name: str(self.threads) for name in THREADS if self.threads is not None and name not in parent
        }


def place_near_gpus(machine: Machine, gpus: Sequence[int], usable: Usable | None) -> HostPlace:
    """Return the place of a run on these GPUs. `usable`: None for another machine, where all CPUs are free.

    It has the CPUs of the GPUs' NUMA nodes. The CPUs do not change on a machine with one node, or if the node
    of a GPU is unknown. They also do not change if none or too few of the near CPUs may be used.
    """
    nodes = {
        node.index: cpus
        for node in machine.host.numa_nodes or ()
        if (cpus := parse_cpus(node.cpus or "")) is not None
    }
    allowed = usable.cpus if usable is not None else frozenset[int]().union(*nodes.values())
    place = HostPlace()
    if usable is not None and usable.quota is not None and usable.quota < len(usable.cpus):
        threads = max(round(usable.quota), 1)
        says = f"{threads} threads for a quota of {usable.quota:g} CPUs (cgroup)"
        place = HostPlace(threads=threads, says=(says,))
    if len(nodes) < 2:
        return place
    chosen = [gpu for gpu in machine.gpus if gpu.index in gpus]
    near = [_near(gpu, nodes) for gpu in chosen]
    known = [cpus for cpus in near if cpus]
    if len(known) < len(near):
        lacking = index_ranges(gpu.index for gpu, cpus in zip(chosen, near, strict=True) if not cpus)
        return _with(place, f"CPUs are not changed: the NUMA node of GPU {lacking} is unknown")
    wanted = frozenset[int]().union(*known) & allowed
    named = f"GPU{'' if len(chosen) == 1 else 's'} {index_ranges(gpus)}"
    given = f"CPUs {index_ranges(allowed)}, all that this process may use,"
    if not wanted:
        return _with(place, f"{given} are not changed: none of them is near {named}")
    if wanted == allowed:
        narrowed = allowed < frozenset[int]().union(*nodes.values())
        return _with(place, f"{given} are near {named}") if narrowed else place
    if len(wanted) < MIN_CPUS_PER_GPU * len(chosen):
        few = f"only {index_ranges(wanted)} of them near {named}"
        return _with(place, f"{given} are not changed: {few}")
    nodes_used = {gpu.numa_node for gpu in chosen}
    node = nodes_used.pop() if len(nodes_used) == 1 else None
    memory = "" if node is None else f", memory of NUMA node {node} preferred"
    return _with(
        msgspec.structs.replace(place, cpus=index_ranges(wanted), memory_node=node),
        f"runs on CPUs {index_ranges(wanted)}, near {named}{memory} (--no-affinity: on all)",
    )


def _near(gpu: Gpu, nodes: Mapping[int, frozenset[int]]) -> frozenset[int] | None:
    if gpu.numa_node is not None:
        return nodes.get(gpu.numa_node)
    cpus = parse_cpus(gpu.cpu_affinity or "")
    return None if cpus is None or looks_cut(cpus) else cpus


def _with(place: HostPlace, sentence: str) -> HostPlace:
    return msgspec.structs.replace(place, says=(*place.says, sentence))
