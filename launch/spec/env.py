"""The environment of a child process, made before TensorFlow loads.

Nothing here reads or changes `os.environ`: the parent's environment is an argument.
"""

from collections.abc import Mapping

from gputopo.launch.spec.host_place import CPUS, MEMORY_NODE, HostPlace
from gputopo.values.run.spec import RunSpec, Runtime

# Variables that another host may set here. No prefixes, because CUDA_INJECTION64_PATH and NCCL_NET_PLUGIN
# load a library.
_OF_ANOTHER = (
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "TF_CONFIG",
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)

NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}
BATCH_NORM = "TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT"
ALLOW_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
GPU_THREAD_MODE, GPU_THREAD_COUNT = "TF_GPU_THREAD_MODE", "TF_GPU_THREAD_COUNT"

# Defaults of a worker, unless the user has set them. Without TensorFlow's C++ errors, the last lines would
# not explain a failure. Without growth, TensorFlow allocates all memory of every visible GPU.
_WORKER_DEFAULTS = {
    "TF_CPP_MIN_LOG_LEVEL": "2",
    ALLOW_GROWTH: "true",
}

# The driver stores kernels that it compiles from PTX in ~/.nv/ComputeCache, so that it compiles them once.
# This is the largest size that CUDA accepts (CUDA C++ Programming Guide, CUDA_CACHE_MAXSIZE).
_CUDA_CACHE = {"CUDA_CACHE_MAXSIZE": str(2**32)}

# TensorFlow enables oneDNN by default only on CPUs with AVX-512 VNNI, BF16 or AMX (port::TestCPUFeature).
# Without oneDNN there are no CPU kernels for NCHW. With it, CPU devices train the same on every x86-64
# machine.
_CPU_DEFAULTS = {**_WORKER_DEFAULTS, "TF_ENABLE_ONEDNN_OPTS": "1"}


def worker_env(
    parent: Mapping[str, str],
    spec: RunSpec,
    plan_environment: Mapping[str, str],
    place: HostPlace = HostPlace(),  # noqa: B008 (frozen)
) -> dict[str, str]:
    """Return the environment of the built-in core's worker: the parent's variables plus the run's.

    On the GPU backend, the plan's variables have precedence (CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES). On the
    CPU backend no GPU is visible, so that a rehearsal never touches one. The planner has already applied a
    narrower CUDA_VISIBLE_DEVICES of the parent (`gputopo.planner.available`). In the child, the variable
    counts all GPUs of the machine, so only the plan's value is correct. The user's TensorFlow variables have
    precedence, unless the spec differs from its defaults. `place`: the CPUs, memory and threads of a run on
    GPUs; the place of gputopo's parent run is ignored.
    """
    parent = _without_place(parent)
    if spec.backend == "cpu":
        return {**_CPU_DEFAULTS, **parent, "PYTHONUNBUFFERED": "1", **NO_GPU}
    runtime = spec.runtime
    threads = gpu_threads(runtime, len(spec.devices))
    default = threads == gpu_threads(Runtime(), len(spec.devices))
    asked = {} if default else threads
    if runtime.memory_limit_mib is not None:
        asked[ALLOW_GROWTH] = "false"  # a memory limit and growth exclude each other
    chosen = threads if default and not {GPU_THREAD_MODE, GPU_THREAD_COUNT} & {*parent} else {}
    defaults = {**_WORKER_DEFAULTS, **_CUDA_CACHE, BATCH_NORM: "1", **chosen}
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

    gpu_private: `per_gpu_threads` for each GPU. gpu_shared: the same total number, shared by all GPUs.
    global: no threads for GPUs, so TensorFlow reads no number. As in tf_cnn_benchmarks.
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
    """Return the environment of the user's program: the plan's variables, or no visible GPU without a plan.

    TensorFlow allocates GPU memory as needed, unless the user has set that.
    """
    parent = _without_place(parent)
    return {
        **({} if plan_environment is None else {ALLOW_GROWTH: "true"}),
        **parent,
        **place.environment(parent),
        **(NO_GPU if plan_environment is None else plan_environment),
    }


def allowed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables from another host that may be set here, without control characters."""
    return {name: text for name, text in environment.items() if name in _OF_ANOTHER and text.isprintable()}


def changes(parent: Mapping[str, str], child: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the child has and the parent does not have, or has with another value."""
    return {name: value for name, value in sorted(child.items()) if parent.get(name) != value}


def _without_place(parent: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in parent.items() if name not in (CPUS, MEMORY_NODE)}
