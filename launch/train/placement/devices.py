"""The worker's TensorFlow devices: made once, before anything else touches TensorFlow."""

import os

import tensorflow as tf

from gputopo.launch.spec.env import ALLOW_GROWTH, GPU_THREAD_COUNT, GPU_THREAD_MODE
from gputopo.launch.spec.host_place import CPUS
from gputopo.launch.spec.rules.numerics import require_numerics
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.placement.checking import short_name
from gputopo.values.errors import HardwareError
from gputopo.values.index_ranges import index_ranges

HOST = "/CPU:0"  # where time is read and losses are added up


def set_up(spec: RunSpec) -> None:
    """Make the logical devices that the spec names, and forbid TensorFlow to place an op on another.

    On the CPU backend as many logical CPU devices as the spec names; they share the cores. Threads are those
    of the spec; without any, CPU devices that run at once divide the cores among their ops, and all else is
    TensorFlow's own choice. GPU memory grows, or is limited. Raises UsageError for numeric settings that
    cannot be (`require_numerics`), HardwareError if TensorFlow sees fewer GPUs than the spec has.
    """
    require_numerics(spec, os.environ)
    tf.config.set_soft_device_placement(False)
    intra_threads = spec.runtime.intra_threads or _threads_of_an_op(spec)
    if intra_threads is not None:
        tf.config.threading.set_intra_op_parallelism_threads(intra_threads)
    if spec.runtime.inter_threads is not None:
        tf.config.threading.set_inter_op_parallelism_threads(spec.runtime.inter_threads)
    if spec.backend == "cpu":
        cpu = tf.config.list_physical_devices("CPU")[0]
        count = 1 + max(int(device.device.rpartition(":")[2]) for device in spec.devices)
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        return
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) < len(spec.devices):
        raise HardwareError(
            f"TensorFlow sees {len(gpus)} of the {len(spec.devices)} planned GPUs",
            "install the GPU build (pip install 'gputopo[cuda]') and see the CUDA lines in worker.log",
        )
    limit = spec.runtime.memory_limit_mib
    for gpu in gpus:
        if limit is None:
            tf.config.experimental.set_memory_growth(gpu, True)
        else:  # TensorFlow refuses both at once
            tf.config.set_logical_device_configuration(
                gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=limit)]
            )


def settings(spec: RunSpec) -> dict[str, str]:
    """Return the settings of the runtime, for the result; what TensorFlow chooses itself is left out."""
    threads = {
        "intra_op_threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "inter_op_threads": tf.config.threading.get_inter_op_parallelism_threads(),
    }
    found = {name: str(count) for name, count in threads.items() if count}
    if spec.backend == "cpu":
        return found
    mode = os.environ.get(GPU_THREAD_MODE, "global")
    count = os.environ.get(GPU_THREAD_COUNT, "")
    limit = spec.runtime.memory_limit_mib
    growth = os.environ.get(ALLOW_GROWTH, "true").lower() in ("true", "1")
    memory = f"{limit} MiB" if limit is not None else "grows" if growth else "all at once"
    if CPUS in os.environ:
        found["cpus"] = index_ranges(os.sched_getaffinity(0))
    return found | {
        "gpu_threads": f"{mode} {count}" if count and mode != "global" else mode,
        "gpu_memory": memory,
    }


def require(device: str) -> None:
    """Raise HardwareError if TensorFlow has no device of that name (`/GPU:0`)."""
    known = [short_name(logical.name) for logical in tf.config.list_logical_devices()]
    if device not in known:
        raise HardwareError(
            f"TensorFlow has no device {device}", f"the devices of this worker are {', '.join(known)}"
        )


def _threads_of_an_op(spec: RunSpec) -> int | None:
    """Return the share of the cores of each CPU device that runs at once; None: TensorFlow's own choice.

    Two towers on two cores take 3 to 7 % less CPU time so (ResNet-20, ResNet-50): no op is cut into parts
    that wait for one another.
    """
    width = concurrent_towers(spec)
    if spec.backend == "gpu" or width < 2:
        return None
    return max(len(os.sched_getaffinity(0)) // width, 1)


def concurrent_towers(spec: RunSpec) -> int:
    """Return how many towers run at once.

    GPUs: all. Logical CPU devices share the cores, so that more towers than cores would only queue inside
    TensorFlow and their times would mean nothing: the largest divisor of the tower count that is at most the
    number of usable cores runs at once, and the next group starts when the one before has its gradients.
    """
    towers = len(spec.devices)
    if spec.backend == "gpu":
        return towers
    cores = len(os.sched_getaffinity(0))
    return max(width for width in range(1, towers + 1) if towers % width == 0 and width <= max(cores, 1))
