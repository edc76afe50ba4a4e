"""Synthetic images and labels made in Python, as arrays, and the four methods to feed them.

`sync`: made and fed at each step. `queue`: a thread makes them, a bounded queue ahead. `dataset`: a
tf.data pipeline calls the same Python and prefetches. `staged`: the thread also copies them, so that the next
batch is on the devices when a step begins.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.inputs.feeds import (
    FAILURES,
    Batch,
    Batches,
    FedSource,
    Maker,
    OnDemand,
    Prefetched,
    readiness,
    signature_of,
    staged,
)
from gputopo.launch.train.inputs.pipeline import untuned
from gputopo.launch.train.inputs.source import Fact, Shape, own_rows
from gputopo.launch.train.placement.devices import HOST

Array = np.ndarray[Any, Any]
_PURPOSE = 5  # of the random stream; images and labels of other sources have theirs


def python_source(model: Shape, spec: RunSpec) -> FedSource:
    """Make the source with the feed that the spec names."""
    pool = Pool(model, spec)
    ahead = max(spec.data.prefetch, 1)
    facts: dict[str, Fact] = {"data": "synthetic", "source": "python", "feed": spec.data.feed}
    facts |= {"ahead": ahead, "ready_on": HOST}
    batches: Batches
    match spec.data.feed:
        case "sync":
            batches, facts["ahead"] = OnDemand(pool.make), 0
        case "queue":
            batches = Prefetched(pool.make, ahead)
        case "dataset":
            batches = Generated(pool, spec, model.input_shape, ahead)
        case "staged":
            batches = staged(pool, spec, ahead=ahead)
            facts |= readiness(spec, ahead)
    return FedSource(model, spec, pool, batches, facts, made_format=spec.data_format)


class Pool:
    """As many examples as the joint batch has, of which each step's batch is drawn.

    Row r of the joint batch of step n is example (r + n) mod rows, however it is divided among towers.
    Drawing new numbers each step would measure numpy's generator, not the method of feeding.
    """

    def __init__(self, model: Shape, spec: RunSpec) -> None:
        self._towers = own_rows(spec)
        self.rows = spec.joint_batch
        self.notices = _of_several_hosts(spec, model.input_shape)
        height, width, channels = model.input_shape
        self._images = np.empty((self.rows, height, width, channels), np.float32)
        self._labels = np.empty(self.rows, np.int64)
        for row in range(self.rows):
            # A separate counter for each row: rows do not depend on how many there are.
            rng = np.random.Generator(
                np.random.Philox(key=(spec.seed << 32) ^ _PURPOSE, counter=[0, row, 0, 0])
            )
            self._labels[row] = rng.integers(max(model.classes, 2))
            rng.standard_normal(dtype=np.float32, out=self._images[row])
        if spec.data_format == "NCHW":
            self._images = np.ascontiguousarray(self._images.transpose(0, 3, 1, 2))

    def make(self, number: int) -> Batch:
        """Put the arrays of step `number` together."""
        batch: list[Array] = []
        for own in self._towers:
            first = own.first + number
            rows = np.arange(first, first + own.batch) % self.rows
            batch += [self._images[rows], self._labels[rows]]
        return batch

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def _of_several_hosts(spec: RunSpec, input_shape: tuple[int, int, int]) -> tuple[str, ...]:
    """Report what goes over the network: another process cannot call the Python that makes batches here."""
    here = spec.rank or 0
    devices = zip(own_rows(spec), spec.own_devices, strict=True)
    rows = sum(rows.batch for rows, device in devices if device.rank != here)
    if not rows:
        return ()
    sent = rows * (math.prod(input_shape) * np.dtype(np.float32).itemsize + np.dtype(np.int64).itemsize)
    return (
        f"Input: batches are made in Python on rank 0; each step sends {sent / 1e6:.1f} MB of them to other "
        "hosts.",
    )


class Generated:
    """The batches of a maker through a tf.data pipeline."""

    def __init__(self, maker: Maker, spec: RunSpec, input_shape: tuple[int, int, int], ahead: int) -> None:
        height, width, channels = input_shape
        shape = (height, width, channels) if spec.data_format == "NHWC" else (channels, height, width)
        self._signature = tuple(signature_of(spec, shape))
        self._maker = maker
        self._ahead = ahead
        self._iterator: Iterator[Sequence[Any]] | None = None
        self._next = 0
        self._failed: Exception | None = None

    def take(self, number: int) -> Batch:
        """Return the pipeline's next batch; a step out of order restarts it."""
        if self._iterator is None or number != self._next:
            self._iterator = self._started(number)
        self._next = number + 1
        try:
            return next(self._iterator)
        except tf.errors.OpError as error:
            self._iterator = None  # it ends with its generator
            # TensorFlow passes on the text alone of what the generator raised.
            raise self._failed or error from error

    def close(self) -> None:
        """Drop the pipeline: that ends its threads."""
        self._iterator = None

    def _started(self, number: int) -> Iterator[Sequence[Any]]:
        self._failed = None  # of an earlier pipeline

        def batches() -> Iterator[Batch]:
            step = number
            while True:
                try:
                    made = self._maker.make(step)
                except StopIteration:
                    return
                except FAILURES as error:
                    self._failed = error
                    raise
                yield tuple(made)
                step += 1

        with tf.device("/CPU:0"):
            pipeline = tf.data.Dataset.from_generator(batches, output_signature=self._signature)
            return iter(untuned(pipeline.prefetch(self._ahead)))
