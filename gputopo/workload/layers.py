"""The words in which a network is written: what a builder of any kind offers."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

T = TypeVar("T")

Padding = Literal["SAME", "VALID", "SYMMETRIC"]
"""SYMMETRIC: (kernel - 1) // 2 zeros before and the rest of kernel - 1 after, whatever the stride, as the
ResNets of the papers have it. SAME of TensorFlow puts fewer before where the stride is 2."""

Activation = Literal["relu", "tanh"]


@dataclass(frozen=True)
class Norm:
    """Batch normalisation: decay of the moving statistics, epsilon, and whether it has a scale (gamma)."""

    decay: float = 0.999
    epsilon: float = 0.001
    scale: bool = False


# As tf_cnn_benchmarks sets it for its ResNets and DenseNets.
RESIDUAL_NORM = Norm(decay=0.9, epsilon=1e-5, scale=True)
# Its default, which the Inceptions have.
PLAIN_NORM = Norm()


class Layers(Protocol[T]):
    """A builder. `T` stands for one example's tensor: [height, width, channels], or [width] once flat.

    The order of the calls is the order of the variables.
    """

    def block(self, name: str) -> AbstractContextManager[None]:
        """Name the layers within: costs are summed up by block."""

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
        """Convolve. A norm takes the place of the bias. `deviation`: of the kernel's first values."""

    def dense(
        self,
        x: T,
        units: int,
        *,
        activation: Activation | None = "relu",
        deviation: float | None = None,
        logits: bool = False,
    ) -> T:
        """Multiply by a matrix and add a bias. `logits`: it is the classifier, with small first values."""

    def norm(self, x: T, norm: Norm) -> T:
        """Normalise over the batch, channel by channel."""

    def relu(self, x: T) -> T:
        """Cut at zero, in place."""

    def max_pool(self, x: T, size: int, stride: int, padding: Padding = "VALID") -> T:
        """Take the largest of each window."""

    def average_pool(self, x: T, size: int, stride: int, padding: Padding = "VALID") -> T:
        """Take the mean of each window; zeros beyond the edge do not count."""

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
        """Add channels of zeros, half of them before and half behind."""

    def flatten(self, x: T) -> T:
        """Write the numbers of an example in a row: [height * width * channels]."""

    def channels(self, x: T) -> int:
        """Return the channels of x."""
