"""The strategy of a script that TF_CONFIG has made one of several workers: replicas on all their devices."""

import os
import sys
from typing import TYPE_CHECKING

from gputopo.launch.hosts import starters
from gputopo.launch.script.devices import FIRST, require_gpus, where_words
from gputopo.launch.spec.target import Target
from gputopo.values.errors import UsageError

if TYPE_CHECKING:
    import tensorflow as tf


def made_with_workers(
    target: Target, claim: starters.Claim, says: str | None, *, asked: int | None = None
) -> "tf.distribute.Strategy":
    """Make MultiWorkerMirroredStrategy on the plan's devices of this host; wait for the other workers.

    NCCL between GPUs, a ring over gRPC between CPUs, of which TensorFlow takes one device of each host.
    `asked`: number of devices. Raises UsageError for several CPU devices, and where TensorFlow's runtime has
    begun, HardwareError where it does not see the GPUs.
    """
    on_gpus = target.backend == "gpu"
    if not on_gpus and asked not in (None, 1):
        raise UsageError(
            f"num_gpus={asked} of several workers needs GPUs: {target.why_cpu}",
            "leave num_gpus out: MultiWorkerMirroredStrategy takes one CPU device of each host",
        )
    os.environ.update(target.plan.environment)
    import tensorflow as tf

    kinds = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=kinds.NCCL if on_gpus else kinds.RING
    )
    try:
        # TensorFlow's own word for workers that are joined too late is a warning, and errors in later ops.
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()])
        if on_gpus:
            require_gpus(tf, len(target.plan.choice.gpus))
    except RuntimeError as error:
        raise UsageError("TensorFlow has made its devices already", FIRST) from error
    for line in lines_of_workers(target, claim, says):
        print(line, file=sys.stderr)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def lines_of_workers(target: Target, claim: starters.Claim, says: str | None = None) -> tuple[str, str]:
    """Return what was chosen for this worker, and why."""
    on_gpus = target.backend == "gpu"
    by = "NCCL" if on_gpus else "a ring over gRPC"
    where = where_words(target) if on_gpus else f"one CPU device ({target.why_cpu})"
    reasons = target.plan.choice.reasons[:2] if on_gpus else ()
    why = "; ".join((f"{claim.source} has {claim.size} workers", *reasons, *([says] if says else [])))
    return (
        f"gputopo: MultiWorkerMirroredStrategy with {by}, worker {claim.rank} of {claim.size} on {where}.",
        f"gputopo: why: {why}.",
    )
