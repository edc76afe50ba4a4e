"""The `Layers` that build a network from tensors. Importing this module loads TensorFlow."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import tensorflow as tf

from gputopo.workload import Activation, Norm, Padding

Tensor = Any
_PHILOX = 1  # tf.random.Algorithm.PHILOX
_PER_COUNTER = 4  # 32-bit numbers per counter


@dataclass(frozen=True)
class Stream:
    """A stream of random numbers: its key is `seed` and `purpose`; each `step` has different numbers.

    XLA draws other numbers for the same key (TensorFlow 2.21), so dropout differs with and without it.
    """

    seed: int
    purpose: int
    step: Any = 0

    def layer(self, number: int) -> "Stream":
        """Return the stream for one layer."""
        return replace(self, purpose=self.purpose * 1000 + 1 + number)


def uniform(stream: Stream, shape: tuple[int, ...], *, first_row: int = 0) -> Tensor:
    """Draw float32 in [0, 1) of `shape` [rows, ...]: the rows of the stream from `first_row` on."""
    return _draw(tf.raw_ops.StatelessRandomUniformV2, stream, shape, first_row)


def normal(stream: Stream, shape: tuple[int, ...], *, first_row: int = 0) -> Tensor:
    """Draw standard normal float32 of `shape` [rows, ...], with rows as in `uniform`."""
    return _draw(tf.raw_ops.StatelessRandomNormalV2, stream, shape, first_row)


def cut_normal(stream: Stream, shape: tuple[int, ...], deviation: float) -> Tensor:
    """Draw initial values of a variable: `normal` numbers, clipped at two deviations, times `deviation`."""
    key, counter = _key_and_counter(stream, 0)
    size = (shape[0], _padded(shape))
    return tf.reshape(_cut_at_two(size, key, counter, deviation)[:, : math.prod(shape[1:])], shape)


# A tf.function for any `size`: its ops work in place; eager ops would allocate memory (50 MiB in AlexNet).
@tf.function(  # type: ignore[untyped-decorator]
    input_signature=[
        tf.TensorSpec(*spec)
        for spec in (((2,), tf.int64), ((1,), tf.uint64), ((2,), tf.uint64), ((), tf.float32))
    ],
    autograph=False,
)
def _cut_at_two(size: Tensor, key: Tensor, counter: Tensor, deviation: Tensor) -> Tensor:
    drawn = tf.raw_ops.StatelessRandomNormalV2(
        shape=size, key=key, counter=counter, alg=_PHILOX, dtype=tf.float32
    )
    return tf.clip_by_value(drawn, -2.0, 2.0) * deviation


def integers(stream: Stream, rows: int, below: int, *, first_row: int = 0) -> Tensor:
    """Draw int64 [rows] in [0, below). Not int32: TensorFlow does not keep int32 variables on a GPU."""
    return tf.cast(uniform(stream, (rows,), first_row=first_row) * below, tf.int64)


def _draw(op: Any, stream: Stream, shape: tuple[int, ...], first_row: int) -> Tensor:
    """Draw whole rows. Each row starts at a new counter, so its width is rounded up to a multiple of four."""
    padded = _padded(shape)
    key, counter = _key_and_counter(stream, first_row * padded // _PER_COUNTER)
    drawn = op(shape=(shape[0], padded), key=key, counter=counter, alg=_PHILOX, dtype=tf.float32)
    return tf.reshape(drawn[:, : math.prod(shape[1:])], shape)


def _padded(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape[1:]) // _PER_COUNTER) * _PER_COUNTER


def _key_and_counter(stream: Stream, start: int) -> tuple[Tensor, Tensor]:
    # The GPU's kernel also reads key and counter on the host, so they do not belong to a tower's scope.
    with tf.name_scope("random_counters/"), tf.device("/CPU:0"):
        high = tf.cast(stream.step, tf.uint64)
        counter = tf.stack([tf.constant(start, tf.uint64), high])
        key = tf.constant([(stream.seed << 32) ^ stream.purpose], tf.uint64)
    return key, counter


DataFormat = Literal["NCHW", "NHWC"]
TYPES = {"fp32": tf.float32, "bf16": tf.bfloat16, "fp16": tf.float16}


@dataclass(frozen=True)
class TowerRows:
    """The examples of the joint batch that a tower holds: `batch` rows from row `first`.

    `stream`: the random numbers for these rows.
    """

    first: int
    batch: int
    stream: Stream


@dataclass
class GraphLayers:
    """Builds a network's layers from tensors [batch, ...]. Images are in `data_format`.

    `weights` (trained variables) and `state` (mean and variance of each norm) are float32 and are used in the
    order of the network's calls. A layer casts its weights to the type of its x and computes in that type;
    norms keep weights and statistics in float32. The statistics after this batch are appended to `new_state`.
    Without `training`, norms use the moving statistics and dropout does nothing.
    """

    weights: Iterator[Tensor]
    state: Iterator[Tensor]
    rows: TowerRows
    data_format: DataFormat = "NHWC"
    training: bool = True
    new_state: list[Tensor] = field(default_factory=list)
    _dropouts: int = 0

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        """Put the ops within under a name."""
        with tf.name_scope(name):
            yield

    def conv(
        self,
        x: Tensor,
        filters: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        *,
        padding: Padding = "SAME",
        norm: Norm | None = None,
        bias: bool = True,
        activation: Activation | None = "relu",
        deviation: float | None = None,
    ) -> Tensor:
        """Convolve. A norm replaces the bias."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        around = "SAME" if padding == "SYMMETRIC" and stride == 1 else padding  # the same with stride 1
        if around == "SYMMETRIC":  # oneDNN has no gradient for explicit padding in the op itself
            none, (up, left) = [0, 0], ((height - 1) // 2, (width - 1) // 2)
            sides = [[up, height - 1 - up], [left, width - 1 - left]]
            x = tf.pad(x, [none, *sides, none] if self._last else [none, none, *sides])
            around = "VALID"
        x = tf.nn.conv2d(x, self._weight(x), stride, around, self.data_format)
        if norm is not None:
            x = self.norm(x, norm)
        elif bias:
            x = tf.nn.bias_add(x, self._weight(x), self.data_format)
        return _activated(x, activation)

    def dense(
        self,
        x: Tensor,
        units: int,
        *,
        activation: Activation | None = "relu",
        deviation: float | None = None,
        logits: bool = False,
    ) -> Tensor:
        """Multiply [batch, in] by a matrix and add a bias."""
        x = dense(x, self._weight(x))
        return _activated(tf.nn.bias_add(x, self._weight(x)), activation)

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        """Normalise each channel over batch, height and width; update the moving statistics.

        The op itself updates them: separate ops would cost six more small ops for each norm and step.
        """
        beta = tf.cast(next(self.weights), tf.float32)
        gamma = tf.cast(next(self.weights), tf.float32) if norm.scale else tf.ones_like(beta)
        mean, variance = next(self.state), next(self.state)
        fused = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=gamma,
            offset=beta,
            mean=mean,
            variance=variance,
            epsilon=norm.epsilon,
            exponential_avg_factor=1.0 - norm.decay if self.training else 1.0,
            data_format=self.data_format,
            is_training=self.training,
        )
        self.new_state += [fused.batch_mean, fused.batch_variance] if self.training else [mean, variance]
        return fused.y

    def relu(self, x: Tensor) -> Tensor:
        """Cut at zero."""
        return tf.nn.relu(x)

    def max_pool(self, x: Tensor, size: int, stride: int, padding: Padding = "VALID") -> Tensor:
        """Take the maximum of each window."""
        return tf.nn.max_pool2d(x, size, stride, padding, self.data_format)

    def average_pool(self, x: Tensor, size: int, stride: int, padding: Padding = "VALID") -> Tensor:
        """Take the mean of each window. A window of size 1 is a strided copy and faster than slicing."""
        return tf.nn.avg_pool2d(x, size, stride, padding, self.data_format)

    def spatial_mean(self, x: Tensor) -> Tensor:
        """Take the mean over height and width: [batch, channels]."""
        return tf.reduce_mean(x, (1, 2) if self._last else (2, 3))

    def local_response(self, x: Tensor, radius: int, bias: float, alpha: float, beta: float) -> Tensor:
        """Normalise over neighbouring channels. TensorFlow's op takes channels last.

        Always in float32: there is no kernel for bfloat16, and squares easily exceed the range of float16.
        """
        wide = tf.cast(self._to_last(x), tf.float32)
        normal = tf.nn.local_response_normalization(wide, radius, bias, alpha, beta)
        return self._to_format(tf.cast(normal, x.dtype))

    def dropout(self, x: Tensor, keep: float) -> Tensor:
        """Drop entries while training: the choice depends only on the example's row in the joint batch."""
        self._dropouts += 1
        if not self.training:
            return x
        if len(x.shape) == 2:
            return dropout(x, keep, self.rows, self._dropouts - 1)
        x = self._to_last(x)
        flat = tf.reshape(x, (self.rows.batch, math.prod(x.shape[1:])))
        flat = dropout(flat, keep, self.rows, self._dropouts - 1)
        return self._to_format(tf.reshape(flat, (self.rows.batch, *x.shape[1:])))

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Add two tensors of one shape."""
        return a + b

    def concat(self, parts: list[Tensor]) -> Tensor:
        """Concatenate tensors by channel."""
        return tf.concat(parts, 3 if self._last else 1)

    def widen(self, x: Tensor, channels: int) -> Tensor:
        """Add channels of zeros, half before and half after the channels of x."""
        missing = channels - self.channels(x)
        sides = [missing // 2, missing - missing // 2]
        none = [0, 0]
        return tf.pad(x, [none, none, none, sides] if self._last else [none, sides, none, none])

    def flatten(self, x: Tensor) -> Tensor:
        """Flatten each example to a row, which is the same in both data formats."""
        return tf.reshape(self._to_last(x), (self.rows.batch, math.prod(x.shape[1:])))

    def channels(self, x: Tensor) -> int:
        """Return the number of channels of x."""
        return int(x.shape[1] if len(x.shape) == 4 and not self._last else x.shape[-1])

    def _weight(self, x: Tensor) -> Tensor:
        """Return the next weights in the type of x."""
        return tf.cast(next(self.weights), x.dtype)

    @property
    def _last(self) -> bool:
        return self.data_format == "NHWC"

    def _to_last(self, x: Tensor) -> Tensor:
        return x if self._last or len(x.shape) != 4 else tf.transpose(x, (0, 2, 3, 1))

    def _to_format(self, x: Tensor) -> Tensor:
        return x if self._last else tf.transpose(x, (0, 3, 1, 2))


def _activated(x: Tensor, activation: Activation | None) -> Tensor:
    if activation is None:
        return x
    return tf.nn.relu(x) if activation == "relu" else tf.tanh(x)


def dense(x: Tensor, kernel: Tensor) -> Tensor:
    """Multiply x [batch, in] by kernel [in, out].

    The gradient of x is computed as a batched product with a batch of one: TensorFlow's plain product with a
    transposed [in, out] is two to five times slower on CPUs with AVX-512 (oneDNN, 16 x 9216 x 4096: 57 ms
    instead of 11 ms).
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def product(x: Tensor, kernel: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]:
        def backward(upstream: Tensor) -> tuple[Tensor, Tensor]:  # [batch, out]
            of_x = tf.raw_ops.BatchMatMulV2(x=upstream[None], y=kernel[None], adj_y=True)[0]  # [batch, in]
            return of_x, tf.matmul(x, upstream, transpose_a=True)  # [in, out]

        return tf.matmul(x, kernel), backward

    return product(x, kernel)


def dropout(x: Tensor, keep: float, rows: TowerRows, layer: int) -> Tensor:
    """Drop entries of x [batch, width]; the choice depends only on the example's row in the joint batch.

    So two towers of 16 drop the same entries as one tower of 32, and losses can be compared.
    """
    width = int(x.shape[1])
    mask = uniform(rows.stream.layer(layer), (rows.batch, width), first_row=rows.first) < keep
    return tf.where(mask, x * tf.constant(1.0 / keep, x.dtype), tf.zeros_like(x))
