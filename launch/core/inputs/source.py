"""What the training step asks of an input, and the input that a spec names."""

from collections.abc import Sequence
from typing import Any, Protocol

from gputopo.launch.core.layers import Rows
from gputopo.launch.core.models import Model
from gputopo.launch.core.randomness import Stream
from gputopo.launch.spec import RunSpec

Tensor = Any
_DROPOUT = 4  # purpose of a random stream


class Source(Protocol):
    """Examples for all towers."""

    @property
    def signature(self) -> Sequence[Any]:
        """The TensorSpecs of what `feed` gives; empty where the graph reads for itself."""

    def feed(self, number: int) -> Sequence[Tensor]:
        """Give what goes into the graph from outside for one step, before it starts.

        Raises StopIteration where there is nothing more.
        """

    def read(self, tower: int, fed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Give a tower's images (float32, in the data format) and labels [batch] (int64), in the graph.

        They are on the tower's device. `fed`: the graph's form of what `feed` gives.
        """

    def close(self) -> None:
        """Stop what runs beside the steps."""


def source_of(model: Model, spec: RunSpec) -> Source:
    """Give the input that a spec names."""
    from gputopo.launch.core.inputs.synthetic import SyntheticSource

    return SyntheticSource(model, spec)


def rows_of(spec: RunSpec) -> list[Rows]:
    """Give each tower's rows of the joint batch."""
    return [
        Rows(tower * spec.batch_size, spec.batch_size, Stream(spec.seed, _DROPOUT))
        for tower in range(len(spec.devices))
    ]
