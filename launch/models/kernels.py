"""Whether this machine's TensorFlow has kernels for the type and layout of a run, found by trying them.

On CPUs that depends on oneDNN and on the processor: TensorFlow 2.21 has no float16 convolution with channels
first for one without AVX512-FP16, and a bfloat16 one for processors with AVX-512 alone.
"""

from typing import Any

import tensorflow as tf

from gputopo.launch.models.layers import TYPES, GraphLayers, Rows
from gputopo.launch.models.randomness import Stream
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values.errors import HardwareError

Tensor = Any
_IMAGES = (2, 8, 8, 8)  # [batch, height, width, channels]
_FILTERS = 8


def require_kernels(spec: RunSpec) -> None:
    """Try a convolution, a norm and a pool forward and backward on every device of this process.

    Raises HardwareError with the reason and the nearest that works. Nothing is tried where TensorFlow has
    kernels for every machine: float32 in the backend's own layout, and what XLA compiles.
    """
    usual = "NHWC" if spec.backend == "cpu" else "NCHW"
    if spec.precision.xla or (spec.precision.compute == "fp32" and spec.data_format == usual):
        return
    for device in dict.fromkeys(one.device for one in spec.own_devices):
        try:
            _try(spec, device)
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError, tf.errors.NotFoundError) as why:
            raise HardwareError(
                f"{device} cannot compute in {spec.precision.compute} with --data-format {spec.data_format}: "
                f"TensorFlow has no kernels for it on this {spec.backend.upper()}",
                _nearest(spec),
            ) from why


def _nearest(spec: RunSpec) -> str:
    if spec.data_format == "NCHW" and spec.backend == "cpu":
        return "use --data-format NHWC, or --xla, which brings its own kernels"
    return "use --precision fp32, or --xla, which brings its own kernels"


def _try(spec: RunSpec, device: str) -> None:
    channels = _IMAGES[-1]
    with tf.device("/CPU:0"):
        kernel = tf.ones((3, 3, channels, _FILTERS))
        beta, mean, variance = tf.zeros((_FILTERS,)), tf.zeros((_FILTERS,)), tf.ones((_FILTERS,))
    shape = _IMAGES if spec.data_format == "NHWC" else (_IMAGES[0], channels, *_IMAGES[1:3])

    def both() -> Tensor:
        from gputopo.workload.sketch import Norm

        with tf.device(device), tf.GradientTape() as tape:
            images = tf.zeros(shape, TYPES[spec.precision.compute])
            weights = [tf.identity(kernel), tf.identity(beta)]
            tape.watch(weights)
            rows = Rows(0, _IMAGES[0], Stream(0, 0))
            layers = GraphLayers(iter(weights), iter([mean, variance]), rows, spec.data_format)
            x = layers.conv(images, _FILTERS, 3, norm=Norm())
            x = layers.average_pool(layers.max_pool(x, 2, 2), 2, 2)
            loss = tf.reduce_sum(tf.cast(x, tf.float32))
            gradients = tape.gradient(loss, weights)
            with tf.device("/CPU:0"):
                return [tf.identity(gradient) for gradient in gradients]

    tf.compat.v1.wrap_function(both, [])()
