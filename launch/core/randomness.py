"""Random numbers that depend on the example alone, not on which tower holds it.

Philox is a counter-based generator: numbers 4n to 4n+3 of a stream come from counter n, so a tower can start
in the middle of a stream and draw just its own rows (J. Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", 2011).
"""

from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

Tensor = Any
_PHILOX = 1  # tf.random.Algorithm.PHILOX
_PER_COUNTER = 4  # 32-bit numbers that one counter gives


@dataclass(frozen=True)
class Stream:
    """A stream of random numbers: `seed` and `purpose` are its key; `step` (number or scalar) moves it."""

    seed: int
    purpose: int
    step: Any = 0

    def layer(self, number: int) -> "Stream":
        """Give the stream of one layer of this purpose."""
        return replace(self, purpose=self.purpose * 1000 + 1 + number)


def uniform(stream: Stream, shape: tuple[int, ...], *, first_row: int = 0) -> Tensor:
    """Draw float32 in [0, 1) of `shape` [rows, ...]: the rows from `first_row` on of the whole stream."""
    return _draw(tf.raw_ops.StatelessRandomUniformV2, stream, shape, first_row)


def normal(stream: Stream, shape: tuple[int, ...], *, first_row: int = 0) -> Tensor:
    """Draw standard normal float32 of `shape` [rows, ...]; rows as in `uniform`."""
    return _draw(tf.raw_ops.StatelessRandomNormalV2, stream, shape, first_row)


def integers(stream: Stream, rows: int, below: int, *, first_row: int = 0) -> Tensor:
    """Draw int64 [rows] in [0, below). 64 bits: TensorFlow keeps no int32 variable on a GPU."""
    return tf.cast(uniform(stream, (rows,), first_row=first_row) * below, tf.int64)


def _draw(op: Any, stream: Stream, shape: tuple[int, ...], first_row: int) -> Tensor:
    """Draw whole rows; a row starts at a counter, so its width is rounded up to four numbers."""
    width = 1
    for size in shape[1:]:
        width *= size
    padded = -(-width // _PER_COUNTER) * _PER_COUNTER
    start = first_row * padded // _PER_COUNTER
    # Key and counter are read on the host by the GPU's kernel as well; the scope is not any tower's.
    with tf.name_scope("random_counters/"), tf.device("/CPU:0"):
        high = tf.cast(stream.step, tf.uint64)
        counter = tf.stack([tf.constant(start, tf.uint64), high])
        key = tf.constant([(stream.seed << 32) ^ stream.purpose], tf.uint64)
    drawn = op(shape=(shape[0], padded), key=key, counter=counter, alg=_PHILOX, dtype=tf.float32)
    return tf.reshape(drawn[:, :width], shape)
