"""Takes a small step on each device before training, to check that this TensorFlow can compute there."""

import traceback
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from gputopo.launch.models.layers import TYPES, GraphLayers, Stream, TowerRows
from gputopo.launch.train.op_errors import first_line, gpu_remedy
from gputopo.values.errors import HardwareError
from gputopo.values.run.spec import DataFormat, PrecisionName, RunSpec

Tensor = Any
_IMAGES = (2, 8, 8, 8)  # [batch, height, width, channels]
_FILTERS = 8
# The layout for which TensorFlow has kernels on every machine.
_USUAL: Mapping[str, DataFormat] = {"cpu": "NHWC", "gpu": "NCHW"}
# Errors that TensorFlow raises if a kernel is missing, or the GPU, its driver or cuDNN cannot run it.
_CANNOT = (
    *(tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, tf.errors.NotFoundError),
    *(tf.errors.InternalError, tf.errors.UnknownError, tf.errors.FailedPreconditionError),
)


def require_gpus(spec: RunSpec) -> None:
    """Take a small step in float32 on every GPU of this process.

    Raises HardwareError with the reason if this TensorFlow cannot use a GPU. CPU devices need no such step.
    """
    for device in spec.own_devices if spec.backend == "gpu" else ():
        try:
            try_step(device.device, "fp32", _USUAL["gpu"])
        except _CANNOT as why:
            traceback.print_exc()  # into worker.log
            reason = first_line(str(why)) or type(why).__name__
            what = f"{device.name} cannot compute with this TensorFlow: {reason}"
            raise HardwareError(what, gpu_remedy(reason)) from why


def require_kernels(spec: RunSpec) -> None:
    """Take a small step on every device of this process, on GPUs in float32 first.

    Raises HardwareError with the reason and the nearest options that work. The second step is skipped if
    TensorFlow has kernels on every machine: for float32 in the backend's own layout, and with XLA.
    """
    require_gpus(spec)
    compute = spec.precision.compute
    if spec.precision.xla or (compute == "fp32" and spec.data_format == _USUAL[spec.backend]):
        return
    is_nchw_on_cpu = spec.data_format == "NCHW" and spec.backend == "cpu"
    nearest = "--data-format NHWC" if is_nchw_on_cpu else "--precision fp32"
    for device in dict.fromkeys(device.device for device in spec.own_devices):
        try:
            try_step(device, compute, spec.data_format)
        except _CANNOT as why:
            raise HardwareError(
                f"{device} cannot compute in {compute} with --data-format {spec.data_format}: "
                f"TensorFlow has no kernels for it on this {spec.backend.upper()}",
                f"use {nearest}, or --xla, which brings its own kernels",
            ) from why


def try_step(device: str, compute: PrecisionName, data_format: DataFormat) -> None:
    """Take a step with a convolution, a norm and pools: forward, backward and an update."""
    channels = _IMAGES[-1]
    with tf.device("/CPU:0"):
        kernel = tf.ones((3, 3, channels, _FILTERS))
        beta, mean, variance = tf.zeros((_FILTERS,)), tf.zeros((_FILTERS,)), tf.ones((_FILTERS,))
    shape = _IMAGES if data_format == "NHWC" else (_IMAGES[0], channels, *_IMAGES[1:3])

    def both() -> Tensor:
        from gputopo.workload import Norm

        with tf.device(device), tf.GradientTape() as tape:
            images = tf.zeros(shape, TYPES[compute])
            weights = [tf.identity(kernel), tf.identity(beta)]
            tape.watch(weights)
            rows = TowerRows(0, _IMAGES[0], Stream(0, 0))
            layers = GraphLayers(iter(weights), iter([mean, variance]), rows, data_format)
            x = layers.conv(images, _FILTERS, 3, norm=Norm())
            x = layers.average_pool(layers.max_pool(x, 2, 2), 2, 2)
            loss = tf.reduce_sum(tf.cast(x, tf.float32))
            gradients = tape.gradient(loss, weights)
            updated = [weight - change for weight, change in zip(weights, gradients, strict=True)]
            with tf.device("/CPU:0"):
                return [tf.identity(weight) for weight in updated]

    tf.compat.v1.wrap_function(both, [])()
