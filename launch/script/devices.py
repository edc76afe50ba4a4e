"""TensorFlow's devices of a script, before its runtime has begun."""

import os
from typing import Any

from gputopo.launch.spec.env import ALLOW_GROWTH
from gputopo.launch.spec.target import Target
from gputopo.planner.cpu_devices import counted_devices
from gputopo.values.errors import HardwareError

FIRST = "call gputopo.launch.strategy before anything that uses a device: tensors, variables, models, data"


def require_gpus(tf: Any, count: int) -> None:
    """Let the GPUs' memory grow, unless the user has said. Raises HardwareError where they are others.

    Raises RuntimeError if TensorFlow's runtime has begun.
    """
    found = tf.config.list_physical_devices("GPU")
    if len(found) != count:
        raise HardwareError(
            f"TensorFlow sees {len(found)} GPUs, the plan has {count}",
            f"install its GPU build (pip install 'gputopo[cuda]'), and {FIRST}",
        )
    for gpu in found:
        if ALLOW_GROWTH not in os.environ:
            tf.config.experimental.set_memory_growth(gpu, True)


def where_words(target: Target) -> str:
    """Return the devices of a target: `GPUs 0, 1`, or CPU devices with the reason."""
    gpus = target.plan.choice.gpus
    if target.backend == "cpu":
        return f"{counted_devices(target.cpu_devices)} ({target.why_cpu})"
    return f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(map(str, gpus))}"
