"""Densely connected networks for CIFAR-10 (G. Huang et al., 2016) without bottlenecks.

A transition keeps two layers' worth of channels, as tf_cnn_benchmarks builds it: the parameter counts that
were published with it hold only so.
"""

import math
from collections.abc import Callable
from typing import TypeVar

from gputopo.workload.layers import RESIDUAL_NORM, Layers

T = TypeVar("T")


def cifar10(layers: int, growth: int) -> Callable[[Layers[T], T, int], T]:
    """Give three dense blocks of so many layers, each of which adds `growth` channels."""

    def build(net: Layers[T], x: T, classes: int) -> T:
        with net.block("stem"):
            x = net.conv(x, 16, 3, activation=None)
        for block in (1, 2, 3):
            for number in range(layers):
                with net.block(f"block{block}.{number + 1}"):
                    x = _layer(net, x, growth)
            if block < 3:
                with net.block(f"transition{block}"):
                    x = _transition(net, x, 2 * growth)
        with net.block("head"):
            x = net.relu(net.norm(x, RESIDUAL_NORM))
            return net.dense(net.spatial_mean(x), classes, activation=None, logits=True)

    return build


def _layer(net: Layers[T], x: T, growth: int) -> T:
    y = net.relu(net.norm(x, RESIDUAL_NORM))
    y = net.conv(y, growth, 3, activation=None, deviation=math.sqrt(2.0 / 9 / growth))
    return net.concat([x, y])


def _transition(net: Layers[T], x: T, channels: int) -> T:
    y = net.relu(net.norm(x, RESIDUAL_NORM))
    y = net.conv(y, channels, 1, deviation=math.sqrt(2.0 / 9 / channels))
    return net.average_pool(y, 2, 2)
