"""Batches from a tf.data pipeline: fast until an error, then again with a check of each record."""

import itertools
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from gputopo.launch.data.examples import NO_LABEL
from gputopo.launch.models.layers import Rows
from gputopo.launch.spec.device_names import device_name
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.inputs.bad_records import BadRecords
from gputopo.launch.train.inputs.feeds import Batch
from gputopo.launch.train.inputs.source import own_rows, rows_of
from gputopo.values.errors import InputError

Dataset = Any
# No function of a pipeline branches on a tensor: AutoGraph would take a tenth of the building time.
plainly = tf.autograph.experimental.do_not_convert
# What TensorFlow raises for bad data. Other errors, such as out of memory, have other causes.
_OF_DATA = (
    tf.errors.DataLossError,
    tf.errors.FailedPreconditionError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.PermissionDeniedError,
    tf.errors.UnknownError,
)


@dataclass(frozen=True)
class Share:
    """The rows of each joint batch that a host reads: all rows of its towers.

    `joint`: rows of a joint batch. `batch`: examples of a batch of the pipeline, a tower's, or all of the
    host's where the towers' differ. `device`: the CPU that reads. `host`: its words, None: rank 0.
    """

    towers: tuple[Rows, ...]
    joint: int
    batch: int
    device: str
    host: str | None = None

    @property
    def pulls(self) -> int:
        """Batches of the pipeline in each joint batch."""
        return sum(rows.batch for rows in self.towers) // self.batch

    def of(self, placed: Dataset, first_image: int) -> Dataset:
        """Leave other hosts' examples out. `placed`: each with its place, which begins with an image."""
        first = self.towers[0].first
        end = first + self.pulls * self.batch
        if (first, end) == (0, self.joint):
            return placed

        def is_own(place: Any, _: Any) -> Any:
            row = (place - first_image) % self.joint
            return tf.logical_and(row >= first, row < end)

        return placed.filter(plainly(is_own))


def whole(spec: RunSpec) -> Share:
    """Return the share of a host that reads for all."""
    return _share(spec, rows_of(spec), "/CPU:0", None)


def shares_of(spec: RunSpec) -> list[Share]:
    """Return what each host of a run reads, by rank; where each has a process, what this one reads."""
    if not spec.servers:
        return [whole(spec)]
    found = []
    for rank in spec.ranks if spec.rank is None else (spec.rank,):
        own = [device.rank == rank for device in spec.devices]
        words = f"{spec.servers[rank].host} (rank {rank})" if rank and spec.rank is None else None
        towers = itertools.compress(rows_of(spec), own)
        found.append(_share(spec, towers, device_name("CPU", 0, rank), words))
    return found


def _share(spec: RunSpec, towers: Iterable[Rows], device: str, host: str | None) -> Share:
    rows = tuple(towers)
    even = isinstance(spec.batch_size, int)
    batch = rows[0].batch if even else sum(of_tower.batch for of_tower in rows)
    return Share(rows, spec.joint_batch, batch, device, host)


class Pipeline(Protocol):
    """A data set as batches, in the order of the joint batches' rows."""

    @property
    def bad(self) -> BadRecords:
        """The records that could not be used."""

    @property
    def notices(self) -> tuple[str, ...]:
        """What must be reported of the data."""

    @property
    def endless(self) -> bool:
        """Whether it begins again at its end."""

    def batches(self, first_image: int, share: Share, *, careful: bool) -> Dataset:
        """Make a dataset of a share's images and labels, starting with the image at that place of the order.

        `careful`: bad records are named and treated as asked; else they raise, or their labels are out of
        range.
        """

    def reaches(self, first_image: int) -> bool:
        """Whether it can begin at an image as if it had read all before it."""

    def label_is_good(self, labels: np.ndarray[Any, Any]) -> bool:
        """Whether a batch's labels are all in range."""


class PipelineMaker:
    """Makes joint batches: tower after tower takes the pipeline's next examples, so no two share an image."""

    def __init__(self, pipeline: Pipeline, spec: RunSpec) -> None:
        self._pipeline = pipeline
        self._joint = spec.joint_batch
        self._whole = whole(spec)
        self._own_rows = sum(rows.batch for rows in own_rows(spec))
        first = spec.own_devices[0].tower
        self._own = slice(first, first + len(spec.own_devices))  # of all towers
        # Each host reads for itself, but what must be checked record by record, which is done in Python.
        self._shares = shares_of(spec) if pipeline.endless else [self._whole]
        self._readers: list[_Reader] | None = None
        self._careful = spec.data.bad_records == "skip"
        self._next = 0
        # The first batch that cannot be made, and why. A thread that prefetches asks for later ones too.
        self._stopped: tuple[int, Exception] | None = None
        self._failed_on: str | None = None  # the host whose reader failed, None: rank 0
        self._restart: tuple[str, ...] = ()
        self._began = 0
        self._base = 0, 0  # a step, and the image that it begins with

    @property
    def notices(self) -> tuple[str, ...]:
        """What was assumed, and what was left out so far."""
        return (*self._pipeline.notices, *self._restart, *self._pipeline.bad.notices, *self._inexact())

    def start_at(self, number: int, image: int) -> None:
        """Let step `number` begin with that image."""
        self._base = number, image

    def make(self, number: int) -> Batch:
        """Make the batch of a step. A step out of order starts the pipeline at its place.

        The last one of an evaluation may be short: it is filled up with rows that are no examples.
        Raises StopIteration at the end of the data, InputError for a bad record that stops the run.
        """
        if self._stopped is not None and number > self._stopped[0]:
            raise self._stopped[1]
        try:
            with tf.device("/CPU:0"):
                return self._made(number)
        except (StopIteration, InputError) as error:
            self._stopped = number, error
            self._readers = None
            _release(error)
            raise

    def _made(self, number: int) -> Batch:
        if self._readers is None or number != self._next:
            self._readers = self._started(number)
        try:
            batch = self._pulled(self._readers)
        except _OF_DATA as error:
            batch = self._pulled_with_care(number, error)
        except StopIteration:
            if not self._pipeline.endless:
                raise
            found = "".join(f": {notice}" for notice in self._pipeline.bad.notices)
            raise InputError(f"there is not one good record{found}", "download the files again") from None
        self._pipeline.bad.batch_made()
        self._next = number + 1
        return batch

    def close(self) -> None:
        """Drop the pipeline: that ends its threads."""
        self._readers = None

    def _pulled(self, readers: Sequence["_Reader"]) -> Batch:
        parts: list[Sequence[Any]] = []
        for reader in readers:
            try:
                parts += reader.parts(self._pipeline)
            except _OF_DATA as error:
                self._failed_on = reader.share.host
                raise error
        if not parts:
            raise StopIteration
        rows = sum(len(labels) for _, labels in parts)
        if rows < self._own_rows:
            parts = self._filled(parts)
        elif rows > self._own_rows:  # read with care, for all hosts
            parts = parts[self._own]
        return [one for part in parts for one in part]

    def _filled(self, parts: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Fill the last batch of an evaluation up with rows that are no examples: their label is -1."""
        filled: list[Sequence[Any]] = []
        for tower, own in enumerate(self._whole.towers):
            # A tower without an image left gets the shape of the first one, and none of its rows.
            images, labels = parts[tower] if tower < len(parts) else [one[:0] for one in parts[0]]
            missing = own.batch - len(labels)
            images = tf.pad(images, [[0, missing], [0, 0], [0, 0], [0, 0]])
            filled.append((images, tf.pad(labels, [[0, missing]], constant_values=NO_LABEL)))
        return filled

    def _pulled_with_care(self, number: int, error: Exception) -> Batch:
        if self._careful:
            raise self._cause_of(error) from error
        self._careful = True
        self._readers = self._started(number)
        host = self._failed_on
        try:
            batch = self._pulled(self._readers)
        except _OF_DATA as again:
            raise self._cause_of(again) from again
        if host is None:
            return batch
        raise InputError(
            f"host {host} cannot read the data, and rank 0 can: {str(error).splitlines()[0]}",
            "each host reads the folder for itself: compare its files on both",
        ) from error

    def _cause_of(self, error: Exception) -> Exception:
        known = self._pipeline.bad.error
        if known is not None:
            return known
        first = str(error).splitlines()[0]
        return InputError(f"the input cannot be read: {first}", "see worker.log in the run's folder")

    def _inexact(self) -> tuple[str, ...]:
        if self._began == 0 or not self._pipeline.bad.took_places:
            return ()
        return (
            f"The input went on at record {self._began} of the order, where pictures that cannot be decoded "
            "have places too: some examples from before the interruption were used again.",
        )

    def _started(self, number: int) -> list["_Reader"]:
        step, image = self._base
        first = image + (number - step) * self._joint
        self._began = first
        if not self._pipeline.reaches(first):
            self._restart = (
                f"The input continues at image {first} in another order than without the interruption: "
                "reading up to it would take too long.",
            )
        readers = []
        for share in [self._whole] if self._careful else self._shares:
            with tf.device(share.device):
                made = plainly(self._pipeline.batches)(first, share, careful=self._careful)
                readers.append(_Reader(share, iter(untuned(made.prefetch(share.pulls)))))
        return readers


@dataclass(frozen=True)
class _Reader:
    """A share, and the iterator on its host that reads it."""

    share: Share
    iterator: Iterator[Sequence[Any]]

    def parts(self, pipeline: Pipeline) -> list[Sequence[Any]]:
        """Return images and labels of each tower, on the reading host; fewer at the end of the data."""
        found: list[Sequence[Any]] = []
        with tf.device(self.share.device):
            for images, labels in itertools.islice(self.iterator, self.share.pulls):
                if not pipeline.label_is_good(labels.numpy()):
                    raise tf.errors.InvalidArgumentError(None, None, "a label is out of range")
                found.append((images, labels))
            if not found or len(self.share.towers) == self.share.pulls:
                return found
            ((images, labels),) = found
            base = self.share.towers[0].first
            cut = [slice(own.first - base, own.first - base + own.batch) for own in self.share.towers]
            return [(images[own], labels[own]) for own in cut]


def _release(error: BaseException | None) -> None:
    """Clear the frames of an error: a pipeline referenced from them can keep the interpreter from ending."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def with_threads(made: Dataset, threads: int) -> Dataset:
    """Return the dataset with a private thread pool; its order stays deterministic."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.deterministic = True
    return made.with_options(options)


def untuned(made: Dataset) -> Dataset:
    """Return the dataset without tf.data's autotuning thread.

    All numbers of our pipelines are fixed, so there is nothing to tune. That thread sleeps for as long as the
    pipeline has run, up to a minute, and sometimes is not woken when the iterator is dropped (TensorFlow
    2.21: 8 of 20 iterators, each 2 s old): the program then stands still until it wakes by itself.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return made.with_options(options)
