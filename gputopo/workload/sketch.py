"""A network followed with shapes only: its variables, and the cost of each block. No TensorFlow.

Definitions (per example, as in the benchmark tables that gputopo is based on):

- multiply-accumulates: one per product of a convolution or a dense layer; biases and norms are not counted;
- feature memory: the float32 outputs of convolutions, norms, pools, dense layers, additions and
  concatenations; ReLU, dropout and reshapes work in place.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, Protocol, TypeVar

import msgspec

T = TypeVar("T")

Padding = Literal["SAME", "VALID", "SYMMETRIC"]
"""SYMMETRIC: (kernel - 1) // 2 zeros before and the rest of kernel - 1 after, for any stride.

The ResNets of the papers use it. TensorFlow's SAME puts fewer zeros before if the stride is 2.
"""

Activation = Literal["relu", "tanh"]


class Norm(msgspec.Struct, frozen=True):
    """Batch normalisation: decay of the moving statistics, epsilon, and whether it has a scale (gamma)."""

    decay: float = 0.999
    epsilon: float = 0.001
    scale: bool = False


# As tf_cnn_benchmarks sets it for its ResNets and DenseNets.
RESIDUAL_NORM = Norm(decay=0.9, epsilon=1e-5, scale=True)
# The default of tf_cnn_benchmarks, for the Inceptions.
PLAIN_NORM = Norm()


class Layers(Protocol[T]):
    """A builder. `T`: the tensor of one example: [height, width, channels], or [width] after flatten.

    The order of the calls is the order of the variables.
    """

    def block(self, name: str) -> AbstractContextManager[None]:
        """Name the layers within the block: costs are summed by block."""

    def conv(
        self,
        x: T,
        filters: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        *,
        padding: Padding = "SAME",
        norm: Norm | None = None,
        bias: bool = True,
        activation: Activation | None = "relu",
        deviation: float | None = None,
    ) -> T:
        """Convolve. A norm replaces the bias. `deviation`: of the kernel's initial values."""

    def dense(
        self,
        x: T,
        units: int,
        *,
        activation: Activation | None = "relu",
        deviation: float | None = None,
        logits: bool = False,
    ) -> T:
        """Multiply by a matrix and add a bias. `logits`: it is the classifier, with small initial values."""

    def norm(self, x: T, norm: Norm) -> T:
        """Normalise over the batch, channel by channel."""

    def relu(self, x: T) -> T:
        """Cut at zero, in place."""

    def max_pool(self, x: T, size: int, stride: int, padding: Padding = "VALID") -> T:
        """Take the largest of each window."""

    def average_pool(self, x: T, size: int, stride: int, padding: Padding = "VALID") -> T:
        """Take the mean of each window; zeros beyond the edge are not included."""

    def spatial_mean(self, x: T) -> T:
        """Take the mean over height and width: [channels]."""

    def local_response(self, x: T, radius: int, bias: float, alpha: float, beta: float) -> T:
        """Normalise over neighbouring channels (A. Krizhevsky et al., 2012)."""

    def dropout(self, x: T, keep: float) -> T:
        """Drop entries while training, each with probability 1 - keep, and scale the others up."""

    def add(self, a: T, b: T) -> T:
        """Add two tensors of one shape."""

    def concat(self, parts: list[T]) -> T:
        """Put tensors of one height and width side by side by channel."""

    def widen(self, x: T, channels: int) -> T:
        """Add channels of zeros, half of them before and half after."""

    def flatten(self, x: T) -> T:
        """Write the numbers of an example in a row: [height * width * channels]."""

    def channels(self, x: T) -> int:
        """Return the channels of x."""


Shape = tuple[int, ...]
"""The shape of one example: (height, width, channels), or (width,) after flatten."""

Role = Literal["kernel", "bias", "beta", "gamma", "moving_mean", "moving_variance"]

# He et al. (2015): variance 2 / fan-in keeps the size of signals through ReLUs.
_HE = 2.0
# Small first logits start the loss near ln(classes) and keep the first steps calm.
_LOGITS = 0.01

Build = Callable[[Layers[Shape], Shape, int], Shape]


class Variable(msgspec.Struct, frozen=True):
    """One variable. `deviation`: of normal initial values; None: all are `start`."""

    name: str
    shape: Shape
    role: Role
    deviation: float = 0.0
    start: float = 0.0

    @property
    def trainable(self) -> bool:
        """Whether training changes it by its gradient; moving statistics are not trained."""
        return self.role not in ("moving_mean", "moving_variance")

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


class BlockCost(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of one block of layers, per example, as a Sketch counts them."""

    name: str
    variables: tuple[int, ...]  # the size of each trainable variable, in order
    multiply_accumulates: int
    features: int  # numbers of the outputs that training keeps

    @property
    def parameters(self) -> int:
        """Trainable numbers."""
        return sum(self.variables)


class BlockCounter(msgspec.Struct):
    """The costs of one block of layers, per example, while they are counted."""

    name: str
    variables: list[int] = []  # the size of each trainable variable, in order
    multiply_accumulates: int = 0
    features: int = 0

    @property
    def cost(self) -> BlockCost:
        """The costs, frozen."""
        return BlockCost(
            name=self.name,
            variables=tuple(self.variables),
            multiply_accumulates=self.multiply_accumulates,
            features=self.features,
        )


class Sketch:
    """A `Layers` that counts. `gain`: variance of the kernels' initial values times fan-in.

    Raises ValueError if a network does not fit its input (a window larger than the image).
    """

    def __init__(self, gain: float = _HE) -> None:
        self.variables: list[Variable] = []
        self.blocks: list[BlockCounter] = []
        self._gain = gain
        self._inside: list[str] = []
        self._counts: dict[str, int] = {}

    @contextmanager
    def block(self, name: str) -> Iterator[None]:
        """Name the layers within the block."""
        self._inside.append(name)
        try:
            yield
        finally:
            self._inside.pop()

    def conv(
        self,
        x: Shape,
        filters: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        *,
        padding: Padding = "SAME",
        norm: Norm | None = None,
        bias: bool = True,
        activation: Activation | None = "relu",
        deviation: float | None = None,
    ) -> Shape:
        """Count kernel, bias or norm, and height x width x kernel products."""
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        name = self._name("conv")
        fan_in = height * width * x[2]
        spread = math.sqrt(self._gain / fan_in) if deviation is None else deviation
        self._variable(f"{name}/kernel", (height, width, x[2], filters), "kernel", spread)
        out = (_span(x[0], height, stride, padding), _span(x[1], width, stride, padding), filters)
        self._cost(out, math.prod(out) * fan_in)
        if norm is not None:
            return self._norm(out, norm, name)
        if bias:
            self._variable(f"{name}/bias", (filters,), "bias")
        return out

    def dense(
        self,
        x: Shape,
        units: int,
        *,
        activation: Activation | None = "relu",
        deviation: float | None = None,
        logits: bool = False,
    ) -> Shape:
        """Count kernel and bias, and in x out products."""
        name = self._name("dense")
        (inputs,) = x
        gain = _LOGITS if logits else self._gain
        spread = math.sqrt(gain / inputs) if deviation is None else deviation
        self._variable(f"{name}/kernel", (inputs, units), "kernel", spread)
        self._variable(f"{name}/bias", (units,), "bias")
        self._cost((units,), inputs * units)
        return (units,)

    def norm(self, x: Shape, norm: Norm) -> Shape:
        """Count beta, gamma if there is one, and the moving statistics."""
        return self._norm(x, norm, self._name("norm"))

    def relu(self, x: Shape) -> Shape:
        """Works in place."""
        return x

    def max_pool(self, x: Shape, size: int, stride: int, padding: Padding = "VALID") -> Shape:
        """Count the output."""
        return self._pool(x, size, stride, padding)

    def average_pool(self, x: Shape, size: int, stride: int, padding: Padding = "VALID") -> Shape:
        """Count the output."""
        return self._pool(x, size, stride, padding)

    def spatial_mean(self, x: Shape) -> Shape:
        """Count the output: it is a pool over everything."""
        self._cost((x[2],))
        return (x[2],)

    def local_response(self, x: Shape, radius: int, bias: float, alpha: float, beta: float) -> Shape:
        """Count the output: it is a norm without variables."""
        self._cost(x)
        return x

    def dropout(self, x: Shape, keep: float) -> Shape:
        """Works in place."""
        return x

    def add(self, a: Shape, b: Shape) -> Shape:
        """Count the sum. Raises ValueError if the shapes differ."""
        if a != b:
            raise ValueError(f"shapes {a} and {b} cannot be added")
        self._cost(a)
        return a

    def concat(self, parts: list[Shape]) -> Shape:
        """Count the result. Raises ValueError if height or width differ."""
        if len({part[:2] for part in parts}) != 1:
            raise ValueError(f"shapes {parts} cannot be put side by side")
        out = (*parts[0][:2], sum(part[2] for part in parts))
        self._cost(out)
        return out

    def widen(self, x: Shape, channels: int) -> Shape:
        """Return the wider shape; the zeros are part of the addition that follows."""
        return (*x[:2], channels)

    def flatten(self, x: Shape) -> Shape:
        """Costs nothing."""
        return (math.prod(x),)

    def channels(self, x: Shape) -> int:
        """Return the channels of x."""
        return x[-1]

    def _pool(self, x: Shape, size: int, stride: int, padding: Padding) -> Shape:
        out = (_span(x[0], size, stride, padding), _span(x[1], size, stride, padding), x[2])
        self._cost(out)
        return out

    def _norm(self, x: Shape, norm: Norm, name: str) -> Shape:
        self._variable(f"{name}/beta", x[-1:], "beta")
        if norm.scale:
            self._variable(f"{name}/gamma", x[-1:], "gamma", start=1.0)
        self._variable(f"{name}/moving_mean", x[-1:], "moving_mean")
        self._variable(f"{name}/moving_variance", x[-1:], "moving_variance", start=1.0)
        self._cost(x)
        return x

    def _name(self, kind: str) -> str:
        number = self._counts.get(kind, 0) + 1
        self._counts[kind] = number
        return "/".join([*self._inside, f"{kind}{number}"])

    def _variable(
        self, name: str, shape: Shape, role: Role, deviation: float = 0.0, start: float = 0.0
    ) -> None:
        variable = Variable(name, shape, role, deviation, start)
        self.variables.append(variable)
        if variable.trainable:
            self._here().variables.append(variable.size)

    def _cost(self, out: Shape, multiply_accumulates: int = 0) -> None:
        block = self._here()
        block.multiply_accumulates += multiply_accumulates
        block.features += math.prod(out)

    def _here(self) -> BlockCounter:
        name = self._inside[0] if self._inside else "net"
        if not self.blocks or self.blocks[-1].name != name:
            self.blocks.append(BlockCounter(name))
        return self.blocks[-1]


def _span(size: int, window: int, stride: int, padding: Padding) -> int:
    """Return how many windows fit along one side."""
    if padding == "SAME":
        return -(-size // stride)
    if padding == "SYMMETRIC":
        size += window - 1
    if size < window:
        raise ValueError(f"a window of {window} does not fit into {size}")
    return (size - window) // stride + 1
