"""The models as pure functions: named weights in, logits out. TensorFlow loads with this module.

A model lists its variables once; a tower calls `forward` with its own reading of them. Nothing is created
or assigned inside, so placement stays with the caller.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from gputopo import workload
from gputopo.launch.core.randomness import Stream, normal, uniform

Tensor = Any
# Kernels start with variance gain / fan-in. AlexNet takes less than the 2 of He et al. (2015): on random
# images that starts the loss near ln(classes) and keeps the first steps calm, so that rounding alone does
# not tell one mode from another.
_GAIN = 1.0
_CLASSIFIER_GAIN = 0.01


@dataclass(frozen=True)
class VariableSpec:
    """A variable: its name, its shape and the standard deviation of its first values (0: zeros)."""

    name: str
    shape: tuple[int, ...]
    stddev: float

    def initial(self, stream: Stream) -> Tensor:
        """Give the first value: normal, cut at two deviations; the same for the same stream."""
        if self.stddev == 0.0:
            return tf.zeros(self.shape)
        return tf.clip_by_value(normal(stream, self.shape), -2.0, 2.0) * self.stddev


@dataclass(frozen=True)
class Rows:
    """Which examples of the joint batch a tower holds: `batch` rows from row `first`; drawn from `stream`."""

    first: int
    batch: int
    stream: Stream


class Model(Protocol):
    """What the training core asks of a model."""

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width, channels of one image."""

    @property
    def classes(self) -> int:
        """Number of classes."""

    @property
    def variables(self) -> Sequence[VariableSpec]:
        """All trainable variables, in the order of `forward`'s weights."""

    def forward(self, weights: Sequence[Tensor], images: Tensor, rows: Rows, data_format: str) -> Tensor:
        """Give logits [batch, classes] for images in `data_format` ([batch, h, w, c] or [batch, c, h, w])."""


def build(name: str) -> Model:
    """Give the model of that name. Raises UsageError for a name that `gputopo.workload` does not list."""
    return _MODELS[workload.require(name).name]


def parameter_count(model: Model) -> int:
    """Count the trainable numbers."""
    return sum(math.prod(spec.shape) for spec in model.variables)


@dataclass(frozen=True)
class Conv:
    """A convolution with bias and ReLU, then a 3x3 max-pool of stride 2 if `pool`."""

    name: str
    kernel: int
    channels: int
    stride: int = 1
    padding: str = "SAME"
    pool: bool = False


class AlexNet:
    """AlexNet in the one-tower form of tf_cnn_benchmarks: 5 convolutions, 3 dense layers, two dropouts.

    61,842,345 parameters at 1001 classes and 227x227 images. Source of the shapes: A. Krizhevsky, "One weird
    trick for parallelizing convolutional neural networks" (2014), as tf_cnn_benchmarks builds it.
    """

    input_shape = (227, 227, 3)
    classes = 1001
    convolutions = (
        Conv("conv1", 11, 64, stride=4, padding="VALID", pool=True),
        Conv("conv2", 5, 192, pool=True),
        Conv("conv3", 3, 384),
        Conv("conv4", 3, 384),
        Conv("conv5", 3, 256, pool=True),
    )
    dense = (4096, 4096, 1001)
    keep = 0.5

    @property
    def variables(self) -> Sequence[VariableSpec]:
        """Kernels [k, k, in, out] and biases [out] of the convolutions, then dense [in, out] and [out]."""
        specs: list[VariableSpec] = []
        inputs = self.input_shape[2]
        for conv in self.convolutions:
            shape = (conv.kernel, conv.kernel, inputs, conv.channels)
            specs += _kernel_and_bias(conv.name, shape, gain=_GAIN)
            inputs = conv.channels
        inputs *= 6 * 6  # 227 -> 55 -> 27 -> 13 -> 6
        for number, outputs in enumerate(self.dense, 6):
            gain = _CLASSIFIER_GAIN if outputs == self.classes else _GAIN
            specs += _kernel_and_bias(f"dense{number}", (inputs, outputs), gain=gain)
            inputs = outputs
        return specs

    def forward(self, weights: Sequence[Tensor], images: Tensor, rows: Rows, data_format: str) -> Tensor:
        """Give logits [batch, 1001]."""
        x = images
        pairs = list(zip(weights[::2], weights[1::2], strict=True))
        for conv, (kernel, bias) in zip(self.convolutions, pairs, strict=False):
            x = _conv(x, kernel, conv, data_format)  # [b, h, w, c]
            x = tf.nn.relu(tf.nn.bias_add(x, bias, data_format))
            if conv.pool:
                x = tf.nn.max_pool2d(x, 3, 2, "VALID", data_format)
        if data_format == "NCHW":
            x = tf.transpose(x, (0, 2, 3, 1))  # so that dense6 means the same in both formats
        x = tf.reshape(x, (rows.batch, -1))  # [b, 9216]
        *hidden, last = pairs[len(self.convolutions) :]
        for layer, (kernel, bias) in enumerate(hidden):
            x = tf.nn.relu(tf.nn.bias_add(dense(x, kernel), bias))  # [b, 4096]
            x = dropout(x, self.keep, rows, layer)
        return tf.nn.bias_add(dense(x, last[0]), last[1])  # [b, 1001]


class Trivial:
    """Three dense layers of width 1, 4096 and 1001: nearly no work, so that the overhead of the rest shows.

    4,263,877 parameters, as tf_cnn_benchmarks' model of that name.
    """

    input_shape = (227, 227, 3)
    classes = 1001
    dense = (1, 4096, 1001)

    @property
    def variables(self) -> Sequence[VariableSpec]:
        """Kernel [in, out] and bias [out] of each layer."""
        specs: list[VariableSpec] = []
        inputs = math.prod(self.input_shape)
        for number, outputs in enumerate(self.dense, 1):
            specs += _kernel_and_bias(f"dense{number}", (inputs, outputs), gain=1.0)
            inputs = outputs
        return specs

    def forward(self, weights: Sequence[Tensor], images: Tensor, rows: Rows, data_format: str) -> Tensor:
        """Give logits [batch, 1001]."""
        if data_format == "NCHW":
            images = tf.transpose(images, (0, 2, 3, 1))
        x = tf.reshape(images, (rows.batch, -1))  # [b, 154587]
        pairs = list(zip(weights[::2], weights[1::2], strict=True))
        for kernel, bias in pairs[:-1]:
            x = tf.nn.relu(tf.nn.bias_add(dense(x, kernel), bias))
        return tf.nn.bias_add(dense(x, pairs[-1][0]), pairs[-1][1])  # [b, 1001]


_MODELS: dict[str, Model] = {"alexnet": AlexNet(), "trivial": Trivial()}


@tf.custom_gradient  # type: ignore[untyped-decorator]
def dense(x: Tensor, kernel: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]:
    """Multiply x [batch, in] by kernel [in, out].

    The gradient of x goes through a batched product of one matrix: TensorFlow's plain product with a
    transposed [in, out] is five times slower on CPUs (oneDNN, 16 x 9216 x 4096: 57 ms against 11 ms).
    """

    def backward(upstream: Tensor) -> tuple[Tensor, Tensor]:  # [batch, out]
        of_x = tf.raw_ops.BatchMatMulV2(x=upstream[None], y=kernel[None], adj_y=True)[0]  # [batch, in]
        return of_x, tf.matmul(x, upstream, transpose_a=True)  # [in, out]

    return tf.matmul(x, kernel), backward


def dropout(x: Tensor, keep: float, rows: Rows, layer: int) -> Tensor:
    """Drop entries of x [batch, width]; which ones depends on the example's row in the joint batch alone.

    So two towers of 16 drop what one tower of 32 drops, and losses can be compared.
    """
    width = int(x.shape[1])
    mask = uniform(rows.stream.layer(layer), (rows.batch, width), first_row=rows.first) < keep
    return tf.where(mask, x * (1.0 / keep), tf.zeros_like(x))


def _kernel_and_bias(name: str, shape: tuple[int, ...], *, gain: float) -> tuple[VariableSpec, VariableSpec]:
    """Give the two variables of a layer; the kernel's deviation is sqrt(gain / fan-in)."""
    fan_in = math.prod(shape[:-1])
    return (
        VariableSpec(f"{name}/kernel", shape, math.sqrt(gain / fan_in)),
        VariableSpec(f"{name}/bias", shape[-1:], 0.0),
    )


def _conv(x: Tensor, kernel: Tensor, conv: Conv, data_format: str) -> Tensor:
    return tf.nn.conv2d(x, kernel, conv.stride, conv.padding, data_format)
