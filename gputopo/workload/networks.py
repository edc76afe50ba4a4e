"""Networks without branches: each layer takes the output of the one before it."""

import math
from collections.abc import Callable, Sequence
from typing import Generic, Literal, TypeVar

from gputopo.workload.sketch import PLAIN_NORM, RESIDUAL_NORM, Layers, Padding

T = TypeVar("T")


def trivial(net: Layers[T], x: T, classes: int) -> T:
    """Three dense layers with little work, to show the overhead of everything else (tf_cnn_benchmarks)."""
    x = net.flatten(x)
    x = net.dense(x, 1)
    x = net.dense(x, 4096)
    return net.dense(x, classes, activation=None, logits=True)


def lenet(net: Layers[T], x: T, classes: int) -> T:
    """LeNet-5 (Y. LeCun et al., 1998) with the widths of TensorFlow's MNIST tutorial."""
    for filters in (32, 64):
        with net.block(f"conv{filters}"):
            x = net.conv(x, filters, 5)
            x = net.max_pool(x, 2, 2)
    with net.block("dense"):
        x = net.dense(net.flatten(x), 512)
        return net.dense(x, classes, activation=None, logits=True)


def alexnet(net: Layers[T], x: T, classes: int) -> T:
    """AlexNet in one tower (A. Krizhevsky, "One weird trick for parallelizing CNNs", 2014)."""
    with net.block("conv1"):
        x = net.max_pool(net.conv(x, 64, 11, 4, padding="VALID"), 3, 2)
    with net.block("conv2"):
        x = net.max_pool(net.conv(x, 192, 5), 3, 2)
    for number, filters in enumerate((384, 384, 256), 3):
        with net.block(f"conv{number}"):
            x = net.conv(x, filters, 3)
            x = net.max_pool(x, 3, 2) if number == 5 else x
    return _dropped_dense(net, net.flatten(x), (4096, 4096), classes)


def alexnet_cifar10(net: Layers[T], x: T, classes: int) -> T:
    """The network of TensorFlow's CIFAR-10 tutorial, which tf_cnn_benchmarks calls alexnet too."""
    with net.block("conv1"):
        x = net.max_pool(net.conv(x, 64, 5, deviation=0.05), 3, 2, "SAME")
        x = net.local_response(x, 4, 1.0, 0.001 / 9.0, 0.75)
    with net.block("conv2"):
        x = net.local_response(net.conv(x, 64, 5, deviation=0.05), 4, 1.0, 0.001 / 9.0, 0.75)
        x = net.max_pool(x, 3, 2, "SAME")
    with net.block("dense"):
        x = net.dense(net.flatten(x), 384, deviation=0.04)
        x = net.dense(x, 192, deviation=0.04)
        return net.dense(x, classes, activation=None, logits=True)


def overfeat(net: Layers[T], x: T, classes: int) -> T:
    """OverFeat, the fast model (P. Sermanet et al., 2014)."""
    with net.block("conv1"):
        x = net.max_pool(net.conv(x, 96, 11, 4, padding="VALID"), 2, 2)
    with net.block("conv2"):
        x = net.max_pool(net.conv(x, 256, 5, padding="VALID"), 2, 2)
    for number, filters in enumerate((512, 1024, 1024), 3):
        with net.block(f"conv{number}"):
            x = net.conv(x, filters, 3)
            x = net.max_pool(x, 2, 2) if number == 5 else x
    return _dropped_dense(net, net.flatten(x), (3072, 4096), classes)


def vgg(repeats: Sequence[int]) -> Callable[[Layers[T], T, int], T]:
    """Return VGG with these numbers of convolutions in its five blocks (K. Simonyan, A. Zisserman, 2014)."""

    def build(net: Layers[T], x: T, classes: int) -> T:
        for number, (times, filters) in enumerate(zip(repeats, (64, 128, 256, 512, 512), strict=True), 1):
            with net.block(f"conv{number}"):
                for _ in range(times):
                    x = net.conv(x, filters, 3)
                x = net.max_pool(x, 2, 2)
        return _dropped_dense(net, net.flatten(x), (4096, 4096), classes)

    return build


def perceptron(net: Layers[T], x: T, classes: int) -> T:
    """The dense network of kuza55's multi-GPU example: 8000 numbers in, one probability out."""
    x = net.flatten(x)
    x = net.dense(x, 4000, activation="tanh")
    for units in (2000, 500, 300):
        x = net.dense(x, units)
    return net.dense(x, classes, activation=None, logits=True)


def cifar10_cnn(net: Layers[T], x: T, classes: int) -> T:
    """The CIFAR-10 example of Keras, which avolkov1 trained on several GPUs."""
    for filters in (32, 64):
        with net.block(f"conv{filters}"):
            x = net.conv(x, filters, 3)
            x = net.conv(x, filters, 3, padding="VALID")
            x = net.dropout(net.max_pool(x, 2, 2), 0.75)
    with net.block("dense"):
        x = net.dropout(net.dense(net.flatten(x), 512), 0.5)
        return net.dense(x, classes, activation=None, logits=True)


def _dropped_dense(net: Layers[T], x: T, widths: Sequence[int], classes: int) -> T:
    for number, units in enumerate(widths, 6):
        with net.block(f"dense{number}"):
            x = net.dropout(net.dense(x, units), 0.5)
    with net.block("classifier"):
        return net.dense(x, classes, activation=None, logits=True)


Version = Literal["v1", "v1.5", "v2"]


def resnet(depths: Sequence[int], version: Version = "v1") -> Callable[[Layers[T], T, int], T]:
    """Return a ResNet with these numbers of bottleneck blocks in its four stages."""

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


def cifar10_resnet(depth: int, version: Version = "v1") -> Callable[[Layers[T], T, int], T]:
    """Return a ResNet for CIFAR-10 with three stages of `depth` blocks of two 3x3 convolutions.

    If the width doubles, the shortcut is a strided copy with channels of zeros (option A of the paper).
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

    A transition has 2 * growth channels, as in tf_cnn_benchmarks: the published parameter counts require it.
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


Kernel = int | tuple[int, int]


def googlenet(net: Layers[T], x: T, classes: int) -> T:
    """GoogLeNet without auxiliary classifiers and local response normalisation."""
    with net.block("stem"):
        x = net.max_pool(net.conv(x, 64, 7, 2), 3, 2, "SAME")
        x = net.conv(net.conv(x, 64, 1), 192, 3)
        x = net.max_pool(x, 3, 2, "SAME")
    stages: dict[str, tuple[tuple[int, int, int, int, int, int], ...]] = {
        "3": ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
        "4": (
            (192, 96, 208, 16, 48, 64),
            (160, 112, 224, 24, 64, 64),
            (128, 128, 256, 24, 64, 64),
            (112, 144, 288, 32, 64, 64),
            (256, 160, 320, 32, 128, 128),
        ),
        "5": ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
    }
    for stage, modules in stages.items():
        for letter, widths in zip("abcde", modules, strict=False):
            with net.block(f"inception{stage}{letter}"):
                x = _googlenet_module(net, x, widths)
        if stage != "5":
            with net.block(f"pool{stage}"):
                x = net.max_pool(x, 3, 2, "SAME")
    with net.block("head"):
        x = net.flatten(net.average_pool(x, 7, 1))
        return net.dense(x, classes, activation=None, logits=True)


def _googlenet_module(net: Layers[T], x: T, widths: tuple[int, int, int, int, int, int]) -> T:
    one, before_three, three, before_five, five, pooled = widths
    return net.concat(
        [
            net.conv(x, one, 1),
            net.conv(net.conv(x, before_three, 1), three, 3),
            net.conv(net.conv(x, before_five, 1), five, 5),
            net.conv(net.max_pool(x, 3, 1, "SAME"), pooled, 1),
        ]
    )


Chain = tuple[tuple[int, Kernel], ...]
"""Consecutive convolutions: filters and kernel of each."""


class _Normed(Generic[T]):
    """Convolutions of the later Inceptions: each with a norm and a ReLU."""

    def __init__(self, net: Layers[T]) -> None:
        self.net = net

    def conv(self, x: T, filters: int, kernel: Kernel, stride: int = 1, padding: Padding = "SAME") -> T:
        return self.net.conv(x, filters, kernel, stride, padding=padding, norm=PLAIN_NORM)

    def chain(self, x: T, *layers: tuple[int, Kernel]) -> T:
        for filters, kernel in layers:
            x = self.conv(x, filters, kernel)
        return x

    def shrink(self, x: T, filters: int) -> T:
        return self.conv(x, filters, 3, 2, "VALID")

    def mixed(self, x: T, *chains: Chain) -> list[T]:
        """Return the outputs of parallel chains for x."""
        return [self.chain(x, *chain) for chain in chains]

    def pooled(self, x: T, filters: int) -> T:
        """Return a 1x1 convolution of the mean over 3x3 windows."""
        return self.conv(self.net.average_pool(x, 3, 1, "SAME"), filters, 1)


_ACROSS, _DOWN = (1, 7), (7, 1)


def inception3(net: Layers[T], x: T, classes: int) -> T:
    """Inception v3 without the auxiliary classifier."""
    on = _Normed(net)
    with net.block("stem"):
        x = on.conv(x, 32, 3, 2, "VALID")
        x = on.conv(on.conv(x, 32, 3, 1, "VALID"), 64, 3)
        x = net.max_pool(x, 3, 2)
        x = on.conv(on.conv(x, 80, 1, 1, "VALID"), 192, 3, 1, "VALID")
        x = net.max_pool(x, 3, 2)
    for number, pooled in enumerate((32, 64, 64)):
        with net.block(f"mixed35.{number + 1}"):
            parts = on.mixed(x, ((64, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3)))
            x = net.concat([*parts, on.pooled(x, pooled)])
    with net.block("mixed35to17"):
        branch = on.shrink(on.chain(x, (64, 1), (96, 3)), 96)
        x = net.concat([on.shrink(x, 384), branch, net.max_pool(x, 3, 2)])
    for number, n in enumerate((128, 160, 160, 192)):
        with net.block(f"mixed17.{number + 1}"):
            twice = ((n, 1), (n, _DOWN), (n, _ACROSS), (n, _DOWN), (192, _ACROSS))
            parts = on.mixed(x, ((192, 1),), ((n, 1), (n, _ACROSS), (192, _DOWN)), twice)
            x = net.concat([*parts, on.pooled(x, 192)])
    with net.block("mixed17to8"):
        left = on.shrink(on.conv(x, 192, 1), 320)
        right = on.shrink(on.chain(x, (192, 1), (192, _ACROSS), (192, _DOWN)), 192)
        x = net.concat([left, right, net.max_pool(x, 3, 2)])
    for number, pool in enumerate((net.average_pool, net.max_pool)):
        with net.block(f"mixed8.{number + 1}"):
            parts = on.mixed(x, ((320, 1),))
            for before in (((384, 1),), ((448, 1), (384, 3))):
                parts += on.mixed(on.chain(x, *before), ((384, (1, 3)),), ((384, (3, 1)),))
            x = net.concat([*parts, on.conv(pool(x, 3, 1, "SAME"), 192, 1)])
    with net.block("head"):
        x = net.flatten(net.average_pool(x, 8, 1))
        return net.dense(x, classes, activation=None, logits=True)


def inception4(net: Layers[T], x: T, classes: int) -> T:
    """Inception v4."""
    on = _Normed(net)
    with net.block("stem"):
        x = on.conv(x, 32, 3, 2, "VALID")
        x = on.conv(on.conv(x, 32, 3, 1, "VALID"), 64, 3)
        x = net.concat([net.max_pool(x, 3, 2), on.shrink(x, 96)])
        left = on.conv(on.conv(x, 64, 1), 96, 3, 1, "VALID")
        right = on.conv(on.chain(x, (64, 1), (64, _DOWN), (64, _ACROSS)), 96, 3, 1, "VALID")
        x = net.concat([left, right])
        x = net.concat([on.shrink(x, 192), net.max_pool(x, 3, 2)])
    for number in range(4):
        with net.block(f"a{number + 1}"):
            first = on.pooled(x, 96)
            parts = on.mixed(x, ((96, 1),), ((64, 1), (96, 3)), ((64, 1), (96, 3), (96, 3)))
            x = net.concat([first, *parts])
    with net.block("a_to_b"):
        branch = on.shrink(on.chain(x, (192, 1), (224, 3)), 256)
        x = net.concat([net.max_pool(x, 3, 2), on.shrink(x, 384), branch])
    for number in range(7):
        with net.block(f"b{number + 1}"):
            first = on.pooled(x, 128)
            twice = ((192, 1), (192, _ACROSS), (224, _DOWN), (224, _ACROSS), (256, _DOWN))
            x = net.concat(
                [first, *on.mixed(x, ((384, 1),), ((192, 1), (224, _ACROSS), (256, _DOWN)), twice)]
            )
    with net.block("b_to_c"):
        left = on.shrink(on.conv(x, 192, 1), 192)
        right = on.shrink(on.chain(x, (256, 1), (256, _ACROSS), (320, _DOWN)), 320)
        x = net.concat([left, right, net.max_pool(x, 3, 2)])
    for number in range(3):
        with net.block(f"c{number + 1}"):
            parts = [on.pooled(x, 256), on.conv(x, 256, 1)]
            parts += on.mixed(on.conv(x, 384, 1), ((256, (1, 3)),), ((256, (3, 1)),))
            middle = on.chain(x, (384, 1), (448, (1, 3)), (512, (3, 1)))
            x = net.concat([*parts, *on.mixed(middle, ((256, (3, 1)),), ((256, (1, 3)),))])
    with net.block("head"):
        x = net.dropout(net.spatial_mean(x), 0.8)
        return net.dense(x, classes, activation=None, logits=True)
