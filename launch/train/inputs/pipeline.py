"""Batches from a tf.data pipeline. After an error the pipeline restarts with a check of each record."""

import itertools
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.data.examples import NO_LABEL
from gputopo.launch.device_names import host_of
from gputopo.launch.models.layers import TowerRows
from gputopo.launch.train.inputs.fed import Batch, Maker
from gputopo.launch.train.inputs.preprocessing import Preprocessing
from gputopo.launch.train.inputs.records import BadRecords, untuned
from gputopo.launch.train.inputs.source import rows_of
from gputopo.values.errors import InputError
from gputopo.values.run.spec import RunSpec

Dataset = Any
Tensor = Any
_FAILED = np.iinfo(np.int64).max  # replaces a label


class Marked:
    """An endless dataset of batches of images and labels, on the device in scope.

    After the last batch or the first failure it continues with elements that `ended` or `failed` recognise.
    """

    def __init__(self, made: Dataset) -> None:
        picture = made.element_spec[0].shape[1:]
        self._taken = tf.Variable(0, trainable=False, dtype=tf.int64)  # batches that did not fail

        def marker(*labels: int) -> Dataset:
            element = tf.zeros((len(labels), *picture)), tf.constant(labels, tf.int64)
            return tf.data.Dataset.from_tensors(element).repeat()

        # After a failure the number of tries is greater than the number of batches, and no try follows.
        tries = tf.data.Dataset.counter().map(lambda number: (number, self._taken.read_value()))
        tries = tries.take_while(lambda number, taken: number == taken)

        def counted(_: Tensor, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            with tf.control_dependencies([self._taken.assign_add(1)]):
                return tf.identity(batch[0]), tf.identity(batch[1])

        whole = tf.data.Dataset.zip(tries, made.concatenate(marker())).map(counted)
        self.dataset: Dataset = whole.ignore_errors(log_warning=True).concatenate(marker(_FAILED))


def ended(labels: np.ndarray[Any, Any]) -> bool:
    """Return whether the labels belong to an element after the end."""
    return not labels.size


def failed(labels: np.ndarray[Any, Any]) -> bool:
    """Return whether the labels belong to an element after a failure."""
    return labels.size == 1 and int(labels[0]) == _FAILED


Part = tuple[Any, Any]  # images and labels of a tower
# AutoGraph is not needed because no pipeline function branches on a tensor; it takes a tenth of the build
# time.
plainly = tf.autograph.experimental.do_not_convert
# Errors that TensorFlow raises for bad data. Other errors, such as out of memory, have other causes.
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

    `batch`: examples in a batch of the pipeline: one tower's, or all of the host's if towers' batches differ.
    """

    towers: tuple[TowerRows, ...]
    joint: int  # rows of a joint batch
    batch: int
    device: str  # the CPU that reads, with a pool of `threads`
    threads: int
    host: str | None = None  # its name and rank for messages; None: this process's host

    @property
    def pulls(self) -> int:
        """Number of this pipeline's batches in each joint batch."""
        return sum(rows.batch for rows in self.towers) // self.batch

    def of(self, placed: Dataset, first_image: int) -> Dataset:
        """Skip other hosts' examples. `placed`: (place, example), from place `first_image` on."""
        first = self.towers[0].first
        end = first + self.pulls * self.batch
        if (first, end) == (0, self.joint):
            return placed

        def is_own(place: Any, _: Any) -> Any:
            row = (place - first_image) % self.joint
            return tf.logical_and(row >= first, row < end)

        return placed.filter(plainly(is_own))


def shares_of(spec: RunSpec, threads: Mapping[int, int]) -> list[Share]:
    """Return each host's share for this process, in the order of ranks. `threads`: each host's, by rank."""
    even = isinstance(spec.batch_size, int)
    shares = []
    for rank, of_host in threads.items():
        on_host = [device.rank == rank for device in spec.devices]
        towers = tuple(itertools.compress(rows_of(spec), on_host))
        batch = towers[0].batch if even else sum(of_tower.batch for of_tower in towers)
        device = host_of(next(itertools.compress(spec.devices, on_host)).device)
        words = f"{spec.servers[rank].host} (rank {rank})" if rank and spec.rank is None else None
        shares.append(Share(towers, spec.joint_batch, batch, device, of_host, words))
    return shares


class Pipeline:
    """A data set as batches, in the order of the joint batches' rows.

    Training is endless, in an order derived from the seed. An evaluation reads the data once. `bad`: the
    records that could not be used. `notices`: remarks on the data that must be reported.
    """

    recipe: Preprocessing
    bad: BadRecords
    notices: tuple[str, ...]

    @property
    def endless(self) -> bool:
        """Whether the data start again at the end, as in training."""
        return self.recipe.training

    def batches(self, first_image: int, share: Share, *, careful: bool) -> Dataset:
        """Make a dataset of a share's images and labels, starting at place `first_image` of the order.

        `careful`: note bad records in `bad`, which stops the run or skips them. Otherwise a bad record raises
        an error, or has a label out of range.
        """
        raise NotImplementedError

    def reaches(self, first_image: int) -> bool:
        """Return whether it can start at an image in the same order as after reading all images before it."""
        return True

    def label_is_good(self, labels: np.ndarray[Any, Any]) -> bool:
        """Return whether a batch's labels are all in range."""
        return True


class PipelineMaker(Maker):
    """Makes joint batches. The towers take the pipeline's next examples in turn, so no two share an image.

    Each host makes the batches for its own towers.
    """

    def __init__(self, pipeline: Pipeline, spec: RunSpec, shares: Sequence[Share]) -> None:
        self._pipeline = pipeline
        self._joint = spec.joint_batch
        self._shares = shares
        self._readers: list[_Reader] | None = None
        self._careful = spec.data.bad_records == "skip"
        self._next = 0
        # The first batch that cannot be made, and why. A prefetching thread also requests later batches.
        self._stopped: tuple[int, Exception] | None = None
        self._restart: tuple[str, ...] = ()
        self._base = 0, 0  # a step, and the image that it starts with

    @property
    def notices(self) -> tuple[str, ...]:
        """Assumptions, and the records skipped so far."""
        return (*self._pipeline.notices, *self._restart, *self._pipeline.bad.notices)

    def start_at(self, number: int, image: int) -> None:
        """Start step `number` with image `image`."""
        self._base = number, image

    def make(self, number: int) -> Batch:
        """Make the batch of a step. A step out of order restarts the pipeline at its first image.

        If the last batch of an evaluation is short, it is filled up with rows that are not examples.
        Raises StopIteration at the end of the data, InputError if a bad record stops the run.
        """
        if self._stopped is not None and number > self._stopped[0]:
            raise self._stopped[1]
        try:
            with tf.device("/CPU:0"):
                return self._made(number)
        except (StopIteration, InputError) as error:
            self._stopped = number, error
            self._readers = None
            cause: BaseException | None = error
            while cause is not None:  # a pipeline in their frames can prevent the interpreter from exiting
                traceback.clear_frames(cause.__traceback__)
                cause = cause.__cause__ or cause.__context__
            raise

    def _made(self, number: int) -> Batch:
        if self._readers is None or number != self._next:
            self._readers = self._started(number)
        try:
            batch = self._pulled(self._readers, number)
        except StopIteration:
            if not self._pipeline.endless:
                raise
            skipped = "".join(f": {notice}" for notice in self._pipeline.bad.notices)
            raise InputError(f"there is no valid record{skipped}", "download the files again") from None
        self._pipeline.bad.batch_made()
        self._next = number + 1
        return batch

    def close(self) -> None:
        """Drop the pipeline, which ends its threads."""
        self._readers = None

    def _pulled(self, readers: Sequence["_Reader"], number: int) -> Batch:
        """Take the next batch of each reader. After an error, read it again with a check of each record.

        Rank 0 then also reads the rows of other hosts, because its files are the same.
        """
        parts = []
        for reader in readers:
            try:
                parts.append(reader.parts(self._pipeline))
            except _OF_DATA as error:
                if self._careful:
                    raise self._pipeline.bad.error or _unread(error) from error
                self._careful = True
                self._readers = self._started(number)
                batch = self._pulled(self._readers, number)
                if reader.share.host is not None:
                    raise _unread(error) from error
                return batch
        ends = not all(parts) if self._pipeline.endless else not any(parts)
        if ends:
            raise StopIteration
        filled = (reader.filled(tower_parts) for reader, tower_parts in zip(readers, parts, strict=True))
        return [tensor for of_host in filled for part in of_host for tensor in part]

    def _started(self, number: int) -> list["_Reader"]:
        step, image = self._base
        first = image + (number - step) * self._joint
        if not self._pipeline.reaches(first):
            self._restart = (
                f"The input continues at image {first} in another order than without the interruption: "
                "reading up to it would take too long.",
            )
        own_device = next(share.device for share in self._shares if share.host is None)
        readers = []
        for share in self._shares:
            away = share.host is not None and not self._careful
            with tf.device(share.device if away else own_device):
                made = plainly(self._pipeline.batches)(first, share, careful=self._careful)
                marked = Marked(made) if away else None
                dataset = made if marked is None else marked.dataset
                readers.append(_Reader(share, iter(untuned(dataset.prefetch(share.pulls))), marked))
        return readers


def _unread(error: Exception) -> InputError:
    first = str(error).splitlines()[0]
    return InputError(f"the input cannot be read: {first}", "see worker.log in the run folder")


@dataclass(frozen=True)
class _Reader:
    """A share, and the iterator that reads it on its host."""

    share: Share
    iterator: Any
    marked: Marked | None  # the iterator's dataset if the host is another one

    def parts(self, pipeline: Pipeline) -> list[Part]:
        """Return images and labels of each tower on the reading host; fewer at the end of the data."""
        pulled: list[Part] = []
        with tf.device(self.share.device):
            for images, labels in itertools.islice(self.iterator, self.share.pulls):
                known = labels.numpy()
                if self.marked is not None and ended(known):
                    break
                if self.marked is not None and failed(known):
                    raise tf.errors.DataLossError(None, None, f"host {self.share.host} cannot read its rows")
                if not pipeline.label_is_good(known):
                    raise tf.errors.InvalidArgumentError(None, None, "a label is out of range")
                pulled.append((images, labels))
            if not pulled or len(self.share.towers) == self.share.pulls:
                return pulled
            ((images, labels),) = pulled
            base = self.share.towers[0].first
            cut = [slice(rows.first - base, rows.first - base + rows.batch) for rows in self.share.towers]
            return [(images[piece], labels[piece]) for piece in cut]

    def filled(self, parts: Sequence[Part]) -> list[Part]:
        """Fill up the last batches of an evaluation with rows that are not examples, with the label -1."""
        filled: list[Part] = []
        picture = self.iterator.element_spec[0].shape[1:]
        with tf.device(self.share.device):
            for rows, part in itertools.zip_longest(self.share.towers, parts):
                images, labels = part or (tf.zeros((0, *picture)), tf.zeros((0,), tf.int64))
                if missing := rows.batch - len(labels):
                    images = tf.pad(images, [[0, missing], [0, 0], [0, 0], [0, 0]])
                    labels = tf.pad(labels, [[0, missing]], constant_values=NO_LABEL)
                filled.append((images, labels))
        return filled
