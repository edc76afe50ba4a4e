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
    """The properties of a model that an input needs. Each `Model` has them."""

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one image."""

    @property
    def classes(self) -> int:
        """Number of classes; 1 for a single yes-or-no output."""


class InputSource:
    """Examples for all towers."""

    signature: Sequence[Any] = ()  # TensorSpecs of the tensors from `feed`; empty: nothing is fed
    waited_s = 0.0  # seconds that the last `feed` took to make the batch or wait for it

    @property
    def images_per_epoch(self) -> int | None:
        """Images of the data set without the images skipped so far; None: no data set, or not counted."""
        return None

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices that must be reported with every result: assumptions, and bad records skipped so far."""
        return ()

    def describe(self) -> Mapping[str, Fact]:
        """Return the settings of the input by name, for the result."""
        raise NotImplementedError

    def start_at(self, number: int, image: int) -> None:
        """Start step `number` with image `image` of the data set: earlier runs may have had other batches.

        Without this call step n starts with image n times the joint batch. No effect without a data set.
        """

    def feed(self, number: int) -> Sequence[Tensor]:
        """Return the tensors to feed into the graph for step `number`. Called before the step starts.

        Raises StopIteration at the end of the data, InputError if data cannot be used.
        """
        return ()

    def read(self, tower: int, fed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Build a tower's images (float32, in the data format) and labels [batch] (int64) in the graph.

        Both are on the tower's device. In the last batch of an evaluation, a label of -1 marks a row that is
        not an example. `fed`: the graph's tensors for the values from `feed`.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Stop the input's threads. May be called again."""


@contextmanager
def noticing(source: InputSource, emit: Callable[[Event], None]) -> Iterator[InputSource]:
    """Close the source at the end, and emit the notices that it has added since the start."""
    with closing(source):
        before = source.notices
        yield source
        for notice in source.notices:
            if notice not in before:
                emit(Noticed(time_s=time.time(), says=notice))


def rows_of(spec: RunSpec) -> list[TowerRows]:
    """Return each tower's rows of the joint batch."""
    firsts = accumulate(spec.batches, initial=0)
    return [
        TowerRows(first, batch, Stream(spec.seed, _DROPOUT))
        for first, batch in zip(firsts, spec.batches, strict=False)
    ]


def own_rows(spec: RunSpec) -> list[TowerRows]:
    """Return the rows of each tower of this process."""
    rows = rows_of(spec)
    return [rows[device.tower] for device in spec.own_devices]
