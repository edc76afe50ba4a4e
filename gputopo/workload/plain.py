"""Networks without branches: each layer takes the output of the one before it."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from gputopo.workload.layers import Layers

T = TypeVar("T")


def trivial(net: Layers[T], x: T, classes: int) -> T:
    """Three dense layers with next to no work, so that the overhead of the rest shows (tf_cnn_benchmarks)."""
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
    """Return VGG with so many convolutions in each of its five blocks (K. Simonyan, A. Zisserman, 2014)."""

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
