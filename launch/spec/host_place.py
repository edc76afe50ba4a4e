"""Where the host part of a run is: its CPUs, its memory and its threads. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from gputopo.topology.doubts import looks_cut
from gputopo.values.index_ranges import index_ranges, parse_cpus
from gputopo.values.machine import Gpu, Machine

# What the child does before it becomes the program (`gputopo.probes.processes`).
CPUS, MEMORY_NODE = "GPUTOPO_CPUS", "GPUTOPO_MEMORY_NODE"
# Threads of TensorFlow's ops, of ops at once, and of OpenMP. All three count the CPUs of the affinity mask by
# themselves; a quota of CPU time they do not see.
THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
# CPUs for each GPU below which near ones alone are too few: tf_cnn_benchmarks starts kernels with two threads
# for each GPU (--per_gpu_thread_count).
MIN_CPUS_PER_GPU = 2


class Usable(msgspec.Struct, frozen=True):
    """What this process may use: its affinity mask, and CPUs of time each second (None: no quota)."""

    cpus: frozenset[int]
    quota: float | None = None


class HostPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run's host part is: CPUs as a list ("0-9,20-29"), memory, threads; None: as it is without."""

    cpus: str | None = None
    memory_node: int | None = None  # the NUMA node whose memory is preferred
    threads: int | None = None  # of each pool of threads
    says: tuple[str, ...] = ()  # what was chosen or left, and why, as sentences

    def environment(self, parent: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for the child; threads that the user has set stand."""
        found = {}
        if self.cpus is not None:
            found[CPUS] = self.cpus
        if self.memory_node is not None:
            found[MEMORY_NODE] = str(self.memory_node)
        return found | self.thread_variables(parent)

    def thread_variables(self, parent: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of the threads, but for those that the user has set."""
        return {
            name: str(self.threads) for name in THREADS if self.threads is not None and name not in parent
        }


def host_place(machine: Machine, gpus: Sequence[int], usable: Usable | None) -> HostPlace:
    """Return the place of a run on these GPUs. `usable`: None for another machine, which is free.

    The CPUs are those of the GPUs' NUMA nodes. They stay as they are on a machine with one node, where the
    node of a GPU is unknown, and where none or too few of them may be used.
    """
    nodes = {
        node.index: cpus
        for node in machine.host.numa_nodes or ()
        if (cpus := parse_cpus(node.cpus or "")) is not None
    }
    allowed = usable.cpus if usable is not None else frozenset[int]().union(*nodes.values())
    threads, quota_says = _threads(usable)
    found = HostPlace(threads=threads, says=quota_says)
    if len(nodes) < 2:
        return found
    chosen = [gpu for gpu in machine.gpus if gpu.index in gpus]
    near = [_near(gpu, nodes) for gpu in chosen]
    known = [cpus for cpus in near if cpus]
    if len(known) < len(near):
        lacking = index_ranges(gpu.index for gpu, cpus in zip(chosen, near, strict=True) if not cpus)
        return _with(found, f"CPUs are not changed: the NUMA node of GPU {lacking} is unknown")
    wanted = frozenset[int]().union(*known) & allowed
    named = f"GPU{'' if len(chosen) == 1 else 's'} {index_ranges(gpus)}"
    given = f"CPUs {index_ranges(allowed)}, all that this process may use,"
    if not wanted:
        return _with(found, f"{given} are not changed: none of them is near {named}")
    if wanted == allowed:
        narrowed = allowed < frozenset[int]().union(*nodes.values())
        return _with(found, f"{given} are near {named}") if narrowed else found
    if len(wanted) < MIN_CPUS_PER_GPU * len(chosen):
        few = f"only {index_ranges(wanted)} of them near {named}"
        return _with(found, f"{given} are not changed: {few}")
    own = {gpu.numa_node for gpu in chosen}
    node = own.pop() if len(own) == 1 else None
    memory = "" if node is None else f", memory of NUMA node {node} preferred"
    return _with(
        msgspec.structs.replace(found, cpus=index_ranges(wanted), memory_node=node),
        f"runs on CPUs {index_ranges(wanted)}, near {named}{memory} (--no-affinity: on all)",
    )


def _threads(usable: Usable | None) -> tuple[int | None, tuple[str, ...]]:
    """Return the threads that a quota leaves room for; None without a quota that matters."""
    if usable is None or usable.quota is None or usable.quota >= len(usable.cpus):
        return None, ()
    threads = max(round(usable.quota), 1)
    return threads, (f"{threads} threads for a quota of {usable.quota:g} CPUs (cgroup)",)


def _near(gpu: Gpu, nodes: Mapping[int, frozenset[int]]) -> frozenset[int] | None:
    if gpu.numa_node is not None:
        return nodes.get(gpu.numa_node)
    cpus = parse_cpus(gpu.cpu_affinity or "")
    return None if cpus is None or looks_cut(cpus) else cpus


def _with(place: HostPlace, sentence: str) -> HostPlace:
    return msgspec.structs.replace(place, says=(*place.says, sentence))
