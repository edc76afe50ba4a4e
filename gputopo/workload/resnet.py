"""ResNets, and the DenseNets for CIFAR-10.

ResNet: K. He et al., "Deep Residual Learning" (v1, 2015) and "Identity Mappings" (v2, 2016).

DenseNet: G. Huang et al., "Densely Connected Convolutional Networks" (2016), without bottlenecks.
v1.5 has the stride of a block in its 3x3 convolution instead of its first 1x1 (fb.resnet.torch). The norms of
v2 that stand before a block have no scale, as in tf_cnn_benchmarks.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from gputopo.workload.layers import PLAIN_NORM, RESIDUAL_NORM, Layers

T = TypeVar("T")

Version = Literal["v1", "v1.5", "v2"]


def imagenet(depths: Sequence[int], version: Version = "v1") -> Callable[[Layers[T], T, int], T]:
    """Return a ResNet of bottleneck blocks, so many in each of the four stages."""

    def build(net: Layers[T], x: T, classes: int) -> T:
        with net.block("stem"):
            x = net.conv(x, 64, 7, 2, padding="SYMMETRIC", norm=RESIDUAL_NORM)
            x = net.max_pool(x, 3, 2, "SAME")
        for stage, (blocks, narrow) in enumerate(zip(depths, (64, 128, 256, 512), strict=True), 1):
            for number in range(blocks):
                stride = 2 if stage > 1 and number == 0 else 1
                with net.block(f"stage{stage}.{number + 1}"):
                    x = _bottleneck(net, x, narrow, stride, version)
        return _head(net, x, classes, version)

    return build


def cifar10(depth: int, version: Version = "v1") -> Callable[[Layers[T], T, int], T]:
    """Return a ResNet for CIFAR-10 with three stages of `depth` blocks of two 3x3 convolutions.

    Where the width doubles the shortcut is a strided copy with channels of zeros (option A of the paper).
    """

    def build(net: Layers[T], x: T, classes: int) -> T:
        with net.block("stem"):
            x = net.conv(x, 16, 3, norm=RESIDUAL_NORM, activation="relu" if version == "v2" else None)
        for stage, filters in enumerate((16, 32, 64), 1):
            for number in range(depth):
                stride = 2 if stage > 1 and number == 0 else 1
                with net.block(f"stage{stage}.{number + 1}"):
                    x = _basic(net, x, filters, stride, version)
        return _head(net, x, classes, version)

    return build


def _head(net: Layers[T], x: T, classes: int, version: Version) -> T:
    with net.block("head"):
        if version == "v2":
            x = net.relu(net.norm(x, PLAIN_NORM))
        return net.dense(net.spatial_mean(x), classes, activation=None, logits=True)


def _bottleneck(net: Layers[T], x: T, narrow: int, stride: int, version: Version) -> T:
    wide = 4 * narrow
    before = net.relu(net.norm(x, PLAIN_NORM)) if version == "v2" else x
    shortcut = _shortcut(net, x, before, wide, stride, version)
    first, second = (1, stride) if version == "v1.5" else (stride, 1)
    y = net.conv(before, narrow, 1, first, norm=RESIDUAL_NORM)
    y = net.conv(y, narrow, 3, second, padding="SYMMETRIC", norm=RESIDUAL_NORM)
    if version == "v2":
        return net.add(shortcut, net.conv(y, wide, 1, bias=False, activation=None))
    return net.relu(net.add(shortcut, net.conv(y, wide, 1, norm=RESIDUAL_NORM, activation=None)))


def _shortcut(net: Layers[T], x: T, before: T, wide: int, stride: int, version: Version) -> T:
    if net.channels(x) == wide:
        return x if stride == 1 else net.average_pool(x, 1, stride)
    if version == "v2":
        return net.conv(before, wide, 1, stride, bias=False, activation=None)
    return net.conv(x, wide, 1, stride, norm=RESIDUAL_NORM, activation=None)


def _basic(net: Layers[T], x: T, filters: int, stride: int, version: Version) -> T:
    shortcut = x
    if net.channels(x) != filters:
        shortcut = net.widen(net.average_pool(x, 1, stride), filters)
    before = net.relu(net.norm(x, PLAIN_NORM)) if version == "v2" else x
    y = net.conv(before, filters, 3, stride, norm=RESIDUAL_NORM)
    if version == "v2":
        return net.add(shortcut, net.conv(y, filters, 3, bias=False, activation=None))
    return net.relu(net.add(shortcut, net.conv(y, filters, 3, norm=RESIDUAL_NORM, activation=None)))


def densenet(layers: int, growth: int) -> Callable[[Layers[T], T, int], T]:
    """Return a DenseNet for CIFAR-10: three dense blocks of `layers` layers, each adding `growth` channels.

    A transition keeps 2 * growth channels, as in tf_cnn_benchmarks: the published parameter counts need that.
    """

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
