"""Asks the core's layers on TensorFlow for what `test_layers` claims; prints the answers as JSON."""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.models import GraphLayers, Stream, TowerRows

BATCH, INPUTS, OUTPUTS = 2, 8, 16


def layers(weights: list[Any]) -> GraphLayers:
    return GraphLayers(iter(weights), iter([]), TowerRows(0, BATCH, Stream(0, 0)))


def pointwise(size: int, stride: int, dtype: tf.DType) -> dict[str, float]:
    """Return the largest differences from the convolution of every stride-th pixel.

    As shares of its largest number. Without AVX-512 oneDNN's gradient of a strided kernel of 1 x 1 is wrong
    where the number of channels is no multiple of 8 (TensorFlow 2.21, channels last): no network has such.
    """
    draw = np.random.default_rng(size * 10 + stride)
    x = tf.constant(draw.normal(size=(BATCH, size, size, INPUTS)), dtype)
    kernel = tf.constant(draw.normal(size=(1, 1, INPUTS, OUTPUTS)), dtype)

    def ours() -> Any:
        return layers([kernel]).conv(x, OUTPUTS, 1, stride, bias=False, activation=None)

    def theirs() -> Any:
        return tf.nn.conv2d(x[:, ::stride, ::stride], kernel, 1, "SAME")

    return apart(ours, theirs, [x, kernel])


def products(rows: int, width: int) -> dict[str, float]:
    """Return the largest differences of a dense layer from TensorFlow's own product, as `pointwise` does."""
    draw = np.random.default_rng(rows)
    x = tf.constant(draw.normal(size=(rows, width)), tf.float32)
    kernel = tf.constant(draw.normal(size=(width, width)), tf.float32)
    bias = tf.zeros(width)

    def ours() -> Any:
        return layers([kernel, bias]).dense(x, width, activation=None)

    return apart(ours, lambda: tf.matmul(x, kernel), [x, kernel])


def apart(ours: Callable[[], Any], theirs: Callable[[], Any], of: list[Any]) -> dict[str, float]:
    found = []
    for compute in (ours, theirs):
        with tf.GradientTape() as tape:
            tape.watch(of)
            y = compute()
            total = tf.reduce_sum(tf.square(tf.cast(y, tf.float32)))
        found.append([y, *tape.gradient(total, of)])
    shares = {}
    for name, mine, other in zip(("output", "of x", "of kernel"), *found, strict=True):
        right = tf.cast(other, tf.float32)
        most = tf.reduce_max(tf.abs(tf.cast(mine, tf.float32) - right))
        shares[name] = float(most / tf.reduce_max(tf.abs(right)))
    return shares


json.dump(
    {
        "differences": {
            f"{size}/{stride}": pointwise(size, stride, tf.float32)
            for size in (1, 7, 8)
            for stride in (1, 2, 3)
        },
        "half": pointwise(7, 2, tf.bfloat16),
        "dense": {rows: products(rows, 1024) for rows in (4, 16)},
    },
    sys.stdout,
)
