"""The interface between an input and a training step."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import accumulate
from typing import Any, Protocol

from gputopo.launch.models.layers import Stream, TowerRows
from gputopo.values.run.events import Event, Noticed
from gputopo.values.run.spec import RunSpec

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


class InputSource:
    """Examples for all towers."""

    signature: Sequence[Any] = ()  # the TensorSpecs of what `feed` returns; empty: the graph reads for itself
    waited_s = 0.0  # seconds that the last `feed` took: making the batch, or waiting for it

    @property
    def images_per_epoch(self) -> int | None:
        """Images of the data set without those left out so far; None: no data set, or counting takes long."""
        return None

    @property
    def notices(self) -> tuple[str, ...]:
        """What must be reported with every result: assumptions, and bad records left out so far."""
        return ()

    def describe(self) -> Mapping[str, Fact]:
        """Return the settings by name, for the result."""
        raise NotImplementedError

    def start_at(self, number: int, image: int) -> None:
        """Let step `number` begin with that image of a data set, as earlier runs used other batches.

        Without it step n begins with image n times the joint batch. No effect where there is no data set.
        """

    def feed(self, number: int) -> Sequence[Tensor]:
        """Return the tensors to feed into the graph for step `number`, before the step starts.

        Raises StopIteration at the end of the data, InputError for data that cannot be used.
        """
        return ()

    def read(self, tower: int, fed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Build a tower's images (float32, in the data format) and labels [batch] (int64), in the graph.

        A label of -1 marks a row that is no example, in the last batch of an evaluation. Both are on the
        tower's device. `fed`: the graph's form of what `feed` returns.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Stop the threads that run beside the steps. May be called again."""


@contextmanager
def noticing(source: InputSource, emit: Callable[[Event], None]) -> Iterator[InputSource]:
    """Close the source at the end, and emit the notices that it has added since the beginning."""
    with closing(source):
        before = source.notices
        yield source
        for notice in source.notices:
            if notice not in before:
                emit(Noticed(time_s=time.time(), says=notice))


def rows_of(spec: RunSpec) -> list[TowerRows]:
    """Each tower's rows of the joint batch."""
    firsts = accumulate(spec.batches, initial=0)
    return [
        TowerRows(first, batch, Stream(spec.seed, _DROPOUT))
        for first, batch in zip(firsts, spec.batches, strict=False)
    ]


def own_rows(spec: RunSpec) -> list[TowerRows]:
    """Return the rows of each tower of this process."""
    rows = rows_of(spec)
    return [rows[device.tower] for device in spec.own_devices]
