"""The networks that gputopo trains: builder, shapes, training defaults. No TensorFlow."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from gputopo.workload import networks
from gputopo.workload.sketch import Layers, Sketch

Loss = Literal["softmax", "sigmoid"]
DataName = Literal["imagenet", "cifar10", "numbers"]

# tf_cnn_benchmarks has one more class than ImageNet and CIFAR-10, for the background.
IMAGENET_CLASSES = 1001
CIFAR10_CLASSES = 11

Build = Callable[[Layers[Any], Any, int], Any]

# The rate of 0.128 in tf_cnn_benchmarks is for a batch of 256; it is scaled with the batch.
_RESNET_RATE = 0.128
_RESNETS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}
_CIFAR_RESNETS = {"resnet20": 3, "resnet32": 5, "resnet44": 7, "resnet56": 9, "resnet110": 18}
_VGGS = {"vgg11": (1, 1, 2, 2, 2), "vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
# Layers per block, growth, and the parameters (in millions) of the network of that name in the paper (table 2
# of G. Huang et al., 2016). The transitions of tf_cnn_benchmarks have fewer channels.
_DENSENETS = {
    "densenet40_k12": (12, 12, 1.0),
    "densenet100_k12": (32, 12, 7.0),
    "densenet100_k24": (32, 24, 27.2),
}


class Architecture(msgspec.Struct, frozen=True):
    """One network.

    `gpu_batch` and `learning_rate` are the defaults of tf_cnn_benchmarks, or of the Keras example from which
    a network comes. `cpu_batch`: with it, a step of two CPU devices takes about a second on two cores.
    `gain`: variance of the kernels' initial values times fan-in; networks without norms start more stably
    with 1.
    """

    name: str
    build: Build
    input_shape: tuple[int, int, int]  # height, width, channels
    classes: int
    data_name: DataName
    gpu_batch: int
    cpu_batch: int
    learning_rate: float
    gain: float = 2.0
    loss: Loss = "softmax"
    source: str = "tf_cnn_benchmarks"  # the program whose network of this name it is
    note: str = ""  # how it differs from the network in the paper

    def sketch(self) -> Sketch:
        """Count the network from its shapes."""
        drawn = Sketch(self.gain)
        self.build(drawn, self.input_shape, self.classes)
        return drawn


def _imagenet(name: str, build: Build, size: int, batches: tuple[int, int], **more: Any) -> Architecture:
    more = {"learning_rate": 0.005, **more}
    return Architecture(name, build, (size, size, 3), IMAGENET_CLASSES, "imagenet", *batches, **more)


def _cifar10(name: str, build: Build, batches: tuple[int, int], **more: Any) -> Architecture:
    more = {"learning_rate": 0.1, "classes": CIFAR10_CLASSES, **more}
    more |= dict(zip(("gpu_batch", "cpu_batch"), batches, strict=True))
    return Architecture(name, build, (32, 32, 3), data_name="cifar10", **more)


@functools.cache
def known_architectures() -> Mapping[str, Architecture]:
    """Return the networks by name, in the order of the page."""
    architectures = [
        _imagenet("trivial", networks.trivial, 227, (32, 32), gain=1.0),
        _imagenet("lenet", networks.lenet, 28, (32, 32), gain=1.0),
        _imagenet("alexnet", networks.alexnet, 227, (512, 16), gain=1.0),
        _imagenet("overfeat", networks.overfeat, 231, (32, 8), gain=1.0),
        _imagenet("googlenet", networks.googlenet, 224, (32, 8), gain=1.0),
        _imagenet("inception3", networks.inception3, 299, (32, 4)),
        _imagenet("inception4", networks.inception4, 299, (32, 2)),
    ]
    for name, repeats in _VGGS.items():
        architectures.append(_imagenet(name, networks.vgg(repeats), 224, (64, 2), gain=1.0))
    versions: tuple[tuple[str, networks.Version], ...] = (("", "v1"), ("_v1.5", "v1.5"), ("_v2", "v2"))
    for name, depths in _RESNETS.items():
        batches = (64, 8) if name == "resnet50" else (32, 4)
        for ending, version in versions:
            build = networks.resnet(depths, version)
            architectures.append(_imagenet(name + ending, build, 224, batches, learning_rate=_RESNET_RATE))
    architectures.append(_cifar10("alexnet-cifar10", networks.alexnet_cifar10, (128, 64), gain=1.0))
    architectures.append(
        _cifar10("trivial-cifar10", networks.trivial, (32, 32), gain=1.0, learning_rate=0.005)
    )
    for name, depth in _CIFAR_RESNETS.items():
        for ending, version in (versions[0], versions[2]):
            architectures.append(_cifar10(name + ending, networks.cifar10_resnet(depth, version), (128, 64)))
    for name, (layers, growth, millions) in _DENSENETS.items():
        note = (
            f"about a third of the {millions} M parameters in the paper, because each transition layer keeps "
            "only 2 x growth-rate channels"
        )
        architectures.append(_cifar10(name, networks.densenet(layers, growth), (64, 8), note=note))
    examples: dict[str, Any] = {"learning_rate": 1e-4, "gain": 1.0}
    source = "Keras example cifar10_cnn"
    architectures.append(
        _cifar10("cifar10-cnn", networks.cifar10_cnn, (32, 32), classes=10, source=source, **examples)
    )
    shape, source = (1, 1, 8000), "kuza55/keras-extras example"
    architectures.append(
        Architecture(
            "mlp",
            networks.perceptron,
            shape,
            1,
            "numbers",
            2048,
            128,
            loss="sigmoid",
            source=source,
            **examples,
        )
    )
    return {architecture.name: architecture for architecture in architectures}
