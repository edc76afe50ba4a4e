"""The worker's TensorFlow devices: made once, before anything else touches TensorFlow."""

import os

import tensorflow as tf

from gputopo.errors import HardwareError
from gputopo.launch.core.placement_check import short_name
from gputopo.launch.spec import RunSpec

HOST = "/CPU:0"  # where time is read and losses are added up


def set_up(spec: RunSpec) -> None:
    """Make the logical devices that the spec names, and forbid TensorFlow to place an op elsewhere.

    On the CPU backend as many logical CPU devices as the spec names; they share the cores. Raises
    HardwareError if TensorFlow sees fewer GPUs than the spec has.
    """
    tf.config.set_soft_device_placement(False)
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
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)


def require(device: str) -> None:
    """Raise HardwareError if TensorFlow has no device of that name (`/GPU:0`)."""
    known = [short_name(logical.name) for logical in tf.config.list_logical_devices()]
    if device not in known:
        raise HardwareError(
            f"TensorFlow has no device {device}", f"the devices of this worker are {', '.join(known)}"
        )


def turn_width(spec: RunSpec) -> int:
    """Tell how many towers may run at once.

    GPUs: all. Logical CPU devices share the cores, so that more towers than cores would only queue inside
    TensorFlow and their times would say nothing: the largest divisor of the tower count that is at most the
    number of usable cores runs at once, and the next group starts when the one before has its gradients.
    """
    towers = len(spec.devices)
    if spec.backend == "gpu":
        return towers
    cores = len(os.sched_getaffinity(0))
    return max(width for width in range(1, towers + 1) if towers % width == 0 and width <= max(cores, 1))
