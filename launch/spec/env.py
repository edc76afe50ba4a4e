"""The environment of a child process, built by pure functions before TensorFlow loads.

Nothing here reads or changes `os.environ`: the parent's environment comes in as a mapping.
"""

from collections.abc import Mapping, Sequence

import msgspec

from gputopo.topology.doubts import looks_cut
from gputopo.values.index_ranges import index_ranges, parse_cpus
from gputopo.values.machine import Gpu, Machine
from gputopo.values.run.spec import RunSpec, Runtime

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


NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}
BATCH_NORM = "TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"
ALLOW_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
GPU_THREAD_MODE, GPU_THREAD_COUNT = "TF_GPU_THREAD_MODE", "TF_GPU_THREAD_COUNT"

# Defaults of a worker, unless the user has set them. TensorFlow's C++ log below errors would hide the last
# lines that explain a failure; without growth TensorFlow allocates all memory of every visible GPU.
_WORKER_DEFAULTS = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    ALLOW_GROWTH: "true",
}

# The driver keeps the kernels that it compiles from PTX in ~/.nv/ComputeCache, so that it compiles them once.
# The largest size that CUDA accepts (CUDA C++ Programming Guide, CUDA_CACHE_MAXSIZE).
_CUDA_CACHE = {"CUDA_CACHE_MAXSIZE": str(2**32)}

# TensorFlow turns oneDNN on by itself only for CPUs with AVX-512 VNNI, BF16 or AMX (port::TestCPUFeature);
# without it there are no CPU kernels for NCHW. With it CPU devices train alike on every x86-64 machine.
_CPU_DEFAULTS = {**_WORKER_DEFAULTS, "TF_ENABLE_ONEDNN_OPTS": "1"}


def worker_env(
    parent: Mapping[str, str],
    spec: RunSpec,
    plan_environment: Mapping[str, str],
    place: HostPlace = HostPlace(),  # noqa: B008 (frozen)
) -> dict[str, str]:
    """Return the environment of the built-in core's worker: the parent's, and what the run needs.

    On the GPU backend the plan's variables stand (CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES); on the CPU
    backend no GPU is visible, so that a rehearsal never touches one. A narrower CUDA_VISIBLE_DEVICES of the
    parent is respected where the plan is made (`gputopo.planner.available`): in the child the variable counts
    from all GPUs of the machine again, so only the plan's value is right here. TensorFlow's settings that the
    user has in the environment stand, unless the spec asks for others than its defaults. `place`: the CPUs,
    memory and threads of a run on GPUs; those of gputopo's own parent run do not matter.
    """
    parent = _without_place(parent)
    if spec.backend == "cpu":
        return {**_CPU_DEFAULTS, **parent, "PYTHONUNBUFFERED": "1", **NO_GPU}
    runtime = spec.runtime
    threads = gpu_threads(runtime, len(spec.devices))
    default = threads == gpu_threads(Runtime(), len(spec.devices))
    asked = {} if default else threads
    if runtime.memory_limit_mib is not None:
        asked[ALLOW_GROWTH] = "false"  # a limit and growth exclude one another
    own = threads if default and not {GPU_THREAD_MODE, GPU_THREAD_COUNT} & {*parent} else {}
    defaults = {**_WORKER_DEFAULTS, **_CUDA_CACHE, BATCH_NORM: "1", **own}
    return {
        **defaults,
        **parent,
        "PYTHONUNBUFFERED": "1",
        **asked,
        **place.environment(parent),
        **plan_environment,
    }


def gpu_threads(runtime: Runtime, gpus: int) -> dict[str, str]:
    """Return TensorFlow's variables for the threads that launch kernels on GPUs.

    gpu_private: so many for each GPU. gpu_shared: as many for all of them together. global: none of their
    own; TensorFlow reads no number then. As tf_cnn_benchmarks sets them.
    """
    mode, each = runtime.gpu_thread_mode, runtime.per_gpu_threads
    if mode == "global":
        return {GPU_THREAD_MODE: mode}
    return {GPU_THREAD_MODE: mode, GPU_THREAD_COUNT: str(each if mode == "gpu_private" else each * gpus)}


def program_env(
    parent: Mapping[str, str],
    plan_environment: Mapping[str, str] | None,
    place: HostPlace = HostPlace(),  # noqa: B008 (frozen)
) -> dict[str, str]:
    """Return the environment of the user's own program: the plan's variables, or no GPU without one.

    TensorFlow allocates GPU memory as it needs it, unless the user has set that.
    """
    parent = _without_place(parent)
    return {
        **({} if plan_environment is None else {ALLOW_GROWTH: "true"}),
        **parent,
        **place.environment(parent),
        **(NO_GPU if plan_environment is None else plan_environment),
    }


# What another host may set here. No prefixes: CUDA_INJECTION64_PATH and NCCL_NET_PLUGIN load a library.
_OF_ANOTHER = (
    *("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"),
    *("TF_CONFIG", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return those of the variables of another host that may be set here, without control characters."""
    return {name: text for name, text in environment.items() if name in _OF_ANOTHER and text.isprintable()}


def changes(parent: Mapping[str, str], child: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the child that the parent has not, or with another value."""
    return {name: value for name, value in sorted(child.items()) if parent.get(name) != value}


def _without_place(parent: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in parent.items() if name not in (CPUS, MEMORY_NODE)}
