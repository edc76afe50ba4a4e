"""What the training step asks of an input, and the input that a spec names."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gputopo.launch.models.layers import Rows
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.randomness import Stream

Tensor = Any
Fact = str | int | float | None
_DROPOUT = 4  # purpose of a random stream


class Shape(Protocol):
    """What an input must know of the model that it feeds; each `Model` has it."""

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width, channels of one image."""

    @property
    def classes(self) -> int:
        """Number of classes; 1: a single yes or no."""


class Source(Protocol):
    """Examples for all towers."""

    @property
    def signature(self) -> Sequence[Any]:
        """The TensorSpecs of what `feed` gives; empty where the graph reads for itself."""

    @property
    def images_per_epoch(self) -> int | None:
        """Images of the data set without those left out so far; None: no data set, or counting takes long."""

    @property
    def waited_s(self) -> float:
        """Seconds that the last `feed` took: making the batch, or waiting for it."""

    @property
    def says(self) -> tuple[str, ...]:
        """What must be said of this input with every result: assumptions, and what was left out so far."""

    def describe(self) -> Mapping[str, Fact]:
        """Give the settings that were chosen, by name, for the result."""

    def go_on(self, number: int, image: int) -> None:
        """Let step `number` begin with that image of a data set, as the runs before took other batches.

        Without it step n begins with image n times the joint batch. Of no effect where there is no data set.
        """

    def feed(self, number: int) -> Sequence[Tensor]:
        """Give what goes into the graph from outside for step `number`, before it starts.

        Raises StopIteration where there is nothing more, InputError for data that cannot be used.
        """

    def read(self, tower: int, fed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Give a tower's images (float32, in the data format) and labels [batch] (int64), in the graph.

        A label of -1 marks a row that is no example, in the last batch of an evaluation. Both are on the
        tower's device. `fed`: the graph's form of what `feed` gives.
        """

    def close(self) -> None:
        """Stop what runs beside the steps. May be called again."""


def source_of(model: Shape, spec: RunSpec) -> Source:
    """Give the input that a spec names. Who made it closes it.

    Raises InputError for a data folder that cannot be used, UsageError for one that is not the model's.
    """
    if spec.data.folder is not None:
        from gputopo.launch.train.inputs.real import real_source

        return real_source(model, spec)
    if spec.data.source == "cpu":
        from gputopo.launch.train.inputs.host import host_source

        return host_source(model, spec)
    if spec.data.source == "python":
        from gputopo.launch.train.inputs.python_made import python_source

        return python_source(model, spec)
    from gputopo.launch.train.inputs.synthetic import SyntheticSource

    return SyntheticSource(model, spec)


def rows_of(spec: RunSpec) -> list[Rows]:
    """Give each tower's rows of the joint batch."""
    return [
        Rows(tower * spec.batch_size, spec.batch_size, Stream(spec.seed, _DROPOUT))
        for tower in range(len(spec.devices))
    ]
