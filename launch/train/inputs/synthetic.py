"""Synthetic images and labels: made once on each tower's device, or by the host for each step."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.device_names import host_of
from gputopo.launch.models.layers import Stream, TowerRows, integers, normal
from gputopo.launch.train.inputs.fed import (
    Batch,
    Batches,
    FedSource,
    Maker,
    Prefetched,
    readiness,
    signature_of,
    staged,
)
from gputopo.launch.train.inputs.records import untuned
from gputopo.launch.train.inputs.source import Fact, InputSource, Shape, own_rows
from gputopo.launch.train.placement.devices import HOST
from gputopo.values.run.spec import RunSpec

Tensor = Any
_IMAGES, _LABELS = 2, 3  # purposes of random streams


class SyntheticSource(InputSource):
    """Images of mean 0 and deviation 1 and uniformly drawn labels, stored on the towers' devices."""

    def __init__(self, model: Shape, spec: RunSpec) -> None:
        self._on = ", ".join(device.device for device in spec.own_devices)
        self._examples = {}
        for rows, device in zip(own_rows(spec), spec.own_devices, strict=True):
            made = examples(model, rows, seed=spec.seed, data_format=spec.data_format)
            with tf.device(device.device):
                self._examples[device.tower] = [
                    tf.Variable(tensor, trainable=False, name="input") for tensor in made
                ]

    def describe(self) -> Mapping[str, Fact]:
        """Return where the examples are."""
        return {"data": "synthetic", "source": "gpu", "ready_on": self._on}

    def read(self, tower: int, fed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Read the variables on the tower's device."""
        images, labels = self._examples[tower]
        return images.read_value(), labels.read_value()


def host_source(model: Shape, spec: RunSpec) -> FedSource:
    """Make a source whose thread draws the next batch and copies it to the devices during a step."""
    maker = HostMaker(model, spec)
    ahead = spec.data.prefetch
    facts: dict[str, Fact] = {"data": "synthetic", "source": "cpu", **readiness(spec, ahead)}
    return FedSource(
        model, spec, maker, staged(maker, spec, ahead=ahead), facts, made_format=spec.data_format
    )


class HostMaker(Maker):
    """Draws each tower's examples for a step on its host's CPU, by the same rule as on the devices."""

    def __init__(self, model: Shape, spec: RunSpec) -> None:
        def draw(number: Tensor) -> list[Tensor]:
            drawn: list[Tensor] = []
            for rows, device in zip(own_rows(spec), spec.own_devices, strict=True):
                with tf.device(host_of(device.device)):
                    drawn += examples(model, rows, seed=spec.seed, data_format=spec.data_format, step=number)
            return drawn

        self._draw = tf.function(draw, input_signature=[tf.TensorSpec((), tf.int64)], autograph=False)

    def make(self, number: int) -> Batch:
        """Draw the joint batch."""
        with tf.device("/CPU:0"):
            drawn: Batch = self._draw(tf.constant(number, tf.int64))
            return drawn


def examples(
    model: Shape, rows: TowerRows, *, seed: int, data_format: str, step: Tensor = 0
) -> tuple[Tensor, Tensor]:
    """Make images and labels on the host in scope. Each `step` has different ones.

    Unit scale keeps the loss finite at the default learning rate (pixels of 0..255 give NaN at once).
    Row r of the joint batch has the same numbers, however the batch is divided among towers.
    """
    shape = (rows.batch, *model.input_shape)
    with tf.device("/CPU:0"):
        images = normal(Stream(seed, _IMAGES, step), shape, first_row=rows.first)  # [b, h, w, c]
        if data_format == "NCHW":
            images = tf.transpose(images, (0, 3, 1, 2))  # [b, c, h, w]
        classes = max(model.classes, 2)
        labels = integers(Stream(seed, _LABELS, step), rows.batch, classes, first_row=rows.first)
        return images, labels


Array = np.ndarray[Any, Any]
_PURPOSE = 5  # of the random stream; different from the purposes of other sources


def python_source(model: Shape, spec: RunSpec) -> FedSource:
    """Make the source with the spec's feed, whose batches are made in Python."""
    pool = Pool(model, spec)
    ahead = max(spec.data.prefetch, 1)
    facts: dict[str, Fact] = {"data": "synthetic", "source": "python", "feed": spec.data.feed}
    facts |= {"ahead": ahead, "ready_on": HOST}
    batches: Batches
    match spec.data.feed:
        case "sync":
            batches, facts["ahead"] = Batches(pool.make), 0
        case "queue":
            batches = Prefetched(pool.make, ahead)
        case "dataset":
            batches = Generated(pool, spec, model.input_shape, ahead)
        case "staged":
            batches = staged(pool, spec, ahead=ahead)
            facts |= readiness(spec, ahead)
    return FedSource(model, spec, pool, batches, facts, made_format=spec.data_format)


class Pool(Maker):
    """Examples for one joint batch, from which each step's batch is taken.

    Row r of the joint batch in step n is example (r + n) mod rows, however the batch is divided among towers.
    Drawing new numbers in each step would measure numpy's generator instead of the method of feeding.
    """

    def __init__(self, model: Shape, spec: RunSpec) -> None:
        self._towers = own_rows(spec)
        self.rows = spec.joint_batch
        self._notices = _of_several_hosts(spec, model.input_shape)
        height, width, channels = model.input_shape
        self._images = np.empty((self.rows, height, width, channels), np.float32)
        self._labels = np.empty(self.rows, np.int64)
        for row in range(self.rows):
            # A separate counter for each row: rows do not depend on the number of rows.
            rng = np.random.Generator(
                np.random.Philox(key=(spec.seed << 32) ^ _PURPOSE, counter=[0, row, 0, 0])
            )
            self._labels[row] = rng.integers(max(model.classes, 2))
            rng.standard_normal(dtype=np.float32, out=self._images[row])
        if spec.data_format == "NCHW":
            self._images = np.ascontiguousarray(self._images.transpose(0, 3, 1, 2))

    @property
    def notices(self) -> tuple[str, ...]:
        """A notice of the bytes sent over the network; empty if none are."""
        return self._notices

    def make(self, number: int) -> Batch:
        """Return each tower's examples for step `number`."""
        batch: list[Array] = []
        for tower in self._towers:
            first = tower.first + number
            rows = np.arange(first, first + tower.batch) % self.rows
            batch += [self._images[rows], self._labels[rows]]
        return batch


def _of_several_hosts(spec: RunSpec, input_shape: tuple[int, int, int]) -> tuple[str, ...]:
    """Return a notice of the bytes sent to other hosts, whose processes cannot call Python code here."""
    own_rank = spec.rank or 0
    devices = zip(own_rows(spec), spec.own_devices, strict=True)
    rows = sum(rows.batch for rows, device in devices if device.rank != own_rank)
    if not rows:
        return ()
    sent = rows * (math.prod(input_shape) * np.dtype(np.float32).itemsize + np.dtype(np.int64).itemsize)
    return (
        f"Input: batches are made in Python on rank 0; each step sends {sent / 1e6:.1f} MB of them to other "
        "hosts.",
    )


class Generated(Batches):
    """The batches of a maker through a tf.data pipeline."""

    def __init__(self, maker: Maker, spec: RunSpec, input_shape: tuple[int, int, int], ahead: int) -> None:
        height, width, channels = input_shape
        shape = (height, width, channels) if spec.data_format == "NHWC" else (channels, height, width)
        self._signature = tuple(signature_of(spec, shape))
        super().__init__(maker.make)
        self._ahead = ahead
        self._iterator: Iterator[Sequence[Any]] | None = None
        self._next = 0

    def take(self, number: int) -> Batch:
        """Return the pipeline's next batch. A step out of order restarts the pipeline."""
        if self._iterator is None or number != self._next:
            self._iterator = self._started(number)
        self._next = number + 1
        return next(self._iterator)

    def close(self) -> None:
        """Drop the pipeline, which ends its threads."""
        self._iterator = None

    def _started(self, number: int) -> Iterator[Sequence[Any]]:
        def batches() -> Iterator[Batch]:
            for step in itertools.count(number):
                yield tuple(self._make(step))

        with tf.device("/CPU:0"):
            pipeline = tf.data.Dataset.from_generator(batches, output_signature=self._signature)
            return iter(untuned(pipeline.prefetch(self._ahead)))
