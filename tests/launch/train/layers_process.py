"""Asks the core's layers on TensorFlow for what `test_layers` claims; prints the answers as JSON."""

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from gputopo.launch.models.layers import GraphLayers, Rows, dense
from gputopo.launch.models.randomness import Stream

BATCH, INPUTS, OUTPUTS = 2, 3, 5


def layers(weights: list[Any]) -> GraphLayers:
    return GraphLayers(iter(weights), iter([]), Rows(0, BATCH, Stream(0, 0)))


def pointwise(size: int, stride: int, dtype: tf.DType) -> dict[str, float]:
    """Return the largest differences from TensorFlow's convolution, as shares of its largest number.

    Of the sampled pixels, with a stride of one: without AVX-512 oneDNN's gradient of strided 1 x 1 kernels
    is wrong with channels last whose number is no multiple of 8 (TensorFlow 2.21).
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
    """Give the largest differences of a dense layer from TensorFlow's own product, as `pointwise` does."""
    draw = np.random.default_rng(rows)
    x = tf.constant(draw.normal(size=(rows, width)), tf.float32)
    kernel = tf.constant(draw.normal(size=(width, width)), tf.float32)
    return apart(lambda: dense(x, kernel), lambda: tf.matmul(x, kernel), [x, kernel])


def batched_products(rows: int, width: int) -> int:
    """Count the batched products in the forward pass of a dense layer."""
    shapes = [tf.TensorSpec((rows, width)), tf.TensorSpec((width, width))]
    graph = tf.function(lambda x, kernel: dense(x, kernel)).get_concrete_function(*shapes).graph
    return sum(op.type == "BatchMatMulV2" for op in graph.get_operations())


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


def samplings_run() -> int:
    """Count the pooling ops that an optimized strided convolution runs, gradients and all."""

    @tf.function  # type: ignore[untyped-decorator]
    def gradients(x: Any, kernel: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            total = tf.reduce_sum(tf.square(layers([kernel]).conv(x, OUTPUTS, 1, 2, bias=False)))
        return tape.gradient(total, [x, kernel])

    context.context().enable_run_metadata()
    gradients(tf.ones((BATCH, 8, 8, INPUTS)), tf.ones((1, 1, INPUTS, OUTPUTS)))
    [graphs] = context.context().export_run_metadata().function_graphs
    context.context().disable_run_metadata()
    return sum(node.op.endswith("AvgPool") for node in graphs.post_optimization_graph.node)


json.dump(
    {
        "differences": {
            f"{size}/{stride}": pointwise(size, stride, tf.float32)
            for size in (1, 7, 8)
            for stride in (1, 2, 3)
        },
        "half": pointwise(7, 2, tf.bfloat16),
        "dense": {rows: products(rows, 4096) for rows in (4, 8, 64, 65)},
        "batched": {rows: batched_products(rows, 4096) for rows in (4, 8, 64, 65)},
        "batched small": batched_products(16, 512),
        "samplings": samplings(),
        "samplings run": samplings_run(),
    },
    sys.stdout,
)
