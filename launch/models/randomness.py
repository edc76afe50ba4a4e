"""Random numbers that depend on the example alone, not on which tower holds it.

Philox is a counter-based generator: numbers 4n to 4n+3 of a stream come from counter n, so a tower can start
in the middle of a stream and draw just its own rows (J. Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", 2011).
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

Tensor = Any
_PHILOX = 1  # tf.random.Algorithm.PHILOX
_PER_COUNTER = 4  # 32-bit numbers per counter
# Philox4x32-10 as its authors define it.
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_BUMPS = (0x9E3779B9, 0xBB67AE85)


@dataclass(frozen=True)
class Stream:
    """A stream of random numbers: `seed` and `purpose` are its key; `step` (number or scalar) moves it.

    `compiled`: it is drawn in a function that XLA compiles.
    """

    seed: int
    purpose: int
    step: Any = 0
    compiled: bool = False

    def layer(self, number: int) -> "Stream":
        """Return the stream of one layer of this purpose."""
        return replace(self, purpose=self.purpose * 1000 + 1 + number)


def uniform(stream: Stream, shape: tuple[int, ...], *, first_row: int = 0) -> Tensor:
    """Draw float32 in [0, 1) of `shape` [rows, ...]: the rows from `first_row` on of the whole stream."""
    op = _written_out if stream.compiled else tf.raw_ops.StatelessRandomUniformV2
    return _draw(op, stream, shape, first_row)


def normal(stream: Stream, shape: tuple[int, ...], *, first_row: int = 0) -> Tensor:
    """Draw standard normal float32 of `shape` [rows, ...]; rows as in `uniform`."""
    return _draw(tf.raw_ops.StatelessRandomNormalV2, stream, shape, first_row)


def cut_normal(stream: Stream, shape: tuple[int, ...], deviation: float) -> Tensor:
    """Draw what `normal` draws, cut at two deviations, times `deviation`: first values of variables."""
    key, counter = _key_and_counter(stream, 0)
    size = (shape[0], _padded(shape))
    return tf.reshape(_cut_at_two(size, key, counter, deviation)[:, : math.prod(shape[1:])], shape)


def _drawn_and_cut(size: Tensor, key: Tensor, counter: Tensor, deviation: Tensor) -> Tensor:
    drawn = tf.raw_ops.StatelessRandomNormalV2(
        shape=size, key=key, counter=counter, alg=_PHILOX, dtype=tf.float32
    )
    return tf.clip_by_value(drawn, -2.0, 2.0) * deviation


# A function, of any `size`: its ops work in place, where eager ones would allocate (50 MiB in AlexNet).
_cut_at_two = tf.function(
    _drawn_and_cut,
    input_signature=[
        tf.TensorSpec(*spec)
        for spec in (((2,), tf.int64), ((1,), tf.uint64), ((2,), tf.uint64), ((), tf.float32))
    ],
)


def integers(stream: Stream, rows: int, below: int, *, first_row: int = 0) -> Tensor:
    """Draw int64 [rows] in [0, below). 64 bits: TensorFlow keeps no int32 variable on a GPU."""
    return tf.cast(uniform(stream, (rows,), first_row=first_row) * below, tf.int64)


def _draw(op: Any, stream: Stream, shape: tuple[int, ...], first_row: int) -> Tensor:
    """Draw whole rows; a row starts at a counter, so its width is rounded up to four numbers."""
    padded = _padded(shape)
    key, counter = _key_and_counter(stream, first_row * padded // _PER_COUNTER)
    drawn = op(shape=(shape[0], padded), key=key, counter=counter, alg=_PHILOX, dtype=tf.float32)
    return tf.reshape(drawn[:, : math.prod(shape[1:])], shape)


def _padded(shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape[1:]) // _PER_COUNTER) * _PER_COUNTER


def _key_and_counter(stream: Stream, start: int) -> tuple[Tensor, Tensor]:
    # Key and counter are read on the host by the GPU's kernel as well; the scope is not any tower's.
    with tf.name_scope("random_counters/"), tf.device("/CPU:0"):
        high = tf.cast(stream.step, tf.uint64)
        counter = tf.stack([tf.constant(start, tf.uint64), high])
        key = tf.constant([(stream.seed << 32) ^ stream.purpose], tf.uint64)
    return key, counter


def _written_out(*, shape: tuple[int, int], key: Tensor, counter: Tensor, alg: int, dtype: Any) -> Tensor:
    """Draw what StatelessRandomUniformV2 draws, in plain arithmetic.

    XLA's own form of the op gives other numbers for the same key and counter (TensorFlow 2.21), and losses
    with and without XLA could not be compared.
    """
    count = shape[0] * shape[1] // _PER_COUNTER
    position = counter[0] + tf.cast(tf.range(count, dtype=tf.int64), tf.uint64)  # [count]
    step = tf.zeros_like(position) + counter[1]
    words = [_low(position), _high(position), _low(step), _high(step)]
    keys = [_low(key[0]), _high(key[0])]
    for _ in range(_ROUNDS):
        even, odd = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(_high(odd), words[1]), keys[0]),
            _low(odd),
            tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(_high(even), words[3]), keys[1]),
            _low(even),
        ]
        keys = [_low(one + bump) for one, bump in zip(keys, _BUMPS, strict=True)]
    drawn = tf.reshape(tf.stack(words, axis=1), shape)
    # 23 random bits behind the exponent of 1: a float in [1, 2).
    bits = tf.bitwise.bitwise_or(tf.bitwise.bitwise_and(drawn, _word(0x7FFFFF)), _word(127 << 23))
    return tf.bitcast(tf.cast(bits, tf.uint32), dtype) - 1.0


def _word(value: int) -> Tensor:
    return tf.constant(value, tf.uint64)


def _low(value: Tensor) -> Tensor:
    """The lower 32 bits, as uint64: a product of two such numbers does not overflow."""
    return tf.bitwise.bitwise_and(value, _word(0xFFFFFFFF))


def _high(value: Tensor) -> Tensor:
    return tf.bitwise.right_shift(value, _word(32))
