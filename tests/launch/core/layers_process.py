"""Asks the core's layers on TensorFlow for what `test_layers` claims; prints the answers as JSON."""

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.core.layers import GraphLayers, Rows
from gputopo.launch.core.randomness import Stream

BATCH, INPUTS, OUTPUTS = 2, 3, 5


def layers(weights: list[Any]) -> GraphLayers:
    return GraphLayers(iter(weights), iter([]), Rows(0, BATCH, Stream(0, 0)))


def pointwise(size: int, stride: int, dtype: tf.DType) -> dict[str, float]:
    """Give the largest differences from TensorFlow's own convolution, as shares of its largest number."""
    draw = np.random.default_rng(size * 10 + stride)
    x = tf.constant(draw.normal(size=(BATCH, size, size, INPUTS)), dtype)
    kernel = tf.constant(draw.normal(size=(1, 1, INPUTS, OUTPUTS)), dtype)

    def ours() -> Any:
        return layers([kernel]).conv(x, OUTPUTS, 1, stride, bias=False, activation=None)

    def theirs() -> Any:
        return tf.nn.conv2d(x, kernel, stride, "SAME")

    found = []
    for convolve in (ours, theirs):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = convolve()
            total = tf.reduce_sum(tf.square(tf.cast(y, tf.float32)))
        found.append([y, *tape.gradient(total, [x, kernel])])
    shares = {}
    for name, mine, other in zip(("output", "of x", "of kernel"), *found, strict=True):
        right = tf.cast(other, tf.float32)
        apart = tf.reduce_max(tf.abs(tf.cast(mine, tf.float32) - right))
        shares[name] = float(apart / tf.reduce_max(tf.abs(right)))
    return shares


def samplings() -> int:
    """Count the pooling ops of two branches that begin with a strided convolution of one tensor, forward."""
    kernels = [tf.ones((1, 1, INPUTS, OUTPUTS))] * 3

    def block(x: Any) -> Any:
        net = layers(kernels)
        shortcut = net.conv(x, OUTPUTS, 1, 2, bias=False)
        other = net.conv(x, OUTPUTS, 1, 2, bias=False)
        return shortcut + other + net.conv(x + 1.0, OUTPUTS, 1, 2, bias=False)

    graph = tf.function(block).get_concrete_function(tf.TensorSpec((BATCH, 8, 8, INPUTS))).graph
    return sum(op.type == "AvgPool" for op in graph.get_operations())


json.dump(
    {
        "differences": {
            f"{size}/{stride}": pointwise(size, stride, tf.float32)
            for size in (1, 7, 8)
            for stride in (1, 2, 3)
        },
        "half": pointwise(7, 2, tf.bfloat16),
        "samplings": samplings(),
    },
    sys.stdout,
)
