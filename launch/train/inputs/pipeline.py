"""Batches from a tf.data pipeline: fast until an error, then again with a check of each record."""

import itertools
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from gputopo.launch.data.examples import NO_LABEL
from gputopo.launch.models.layers import TowerRows
from gputopo.launch.spec.names import device_name
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.host_rpc import ask_host
from gputopo.launch.train.inputs.records import BadRecords, Care, Readings, digest
from gputopo.launch.train.inputs.source import Batch, Maker, rows_of
from gputopo.values.errors import InputError

Dataset = Any
Tensor = Any
_FAILED = np.iinfo(np.int64).max  # in place of a label


class Marked:
    """A dataset of batches of images and labels that goes on for ever, on the device in scope.

    After the last batch, or the first failure, come elements that `ended` and `failed` recognise.
    """

    def __init__(self, made: Dataset) -> None:
        picture = made.element_spec[0].shape[1:]
        self._taken = tf.Variable(0, trainable=False, dtype=tf.int64)  # batches that did not fail

        def marker(*labels: int) -> Dataset:
            one = tf.zeros((len(labels), *picture)), tf.constant(labels, tf.int64)
            return tf.data.Dataset.from_tensors(one).repeat()

        # After a failure there is one try more than there are batches, and no other.
        tries = tf.data.Dataset.counter().map(lambda number: (number, self._taken.read_value()))
        tries = tries.take_while(lambda number, taken: number == taken)
        whole = tf.data.Dataset.zip(tries, made.concatenate(marker())).map(self._counted)
        self.dataset: Dataset = whole.ignore_errors(log_warning=True).concatenate(marker(_FAILED))

    def _counted(self, _: Tensor, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        with tf.control_dependencies([self._taken.assign_add(1)]):
            return tf.identity(batch[0]), tf.identity(batch[1])


def ended(labels: np.ndarray[Any, Any]) -> bool:
    """Whether the labels are those of an element after the end."""
    return not labels.size


def failed(labels: np.ndarray[Any, Any]) -> bool:
    """Whether the labels are those of an element after a failure."""
    return labels.size == 1 and int(labels[0]) == _FAILED


Part = tuple[Any, Any]  # images and labels of a tower
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

    `batch`: examples of a batch of the pipeline, a tower's, or all of the host's where the towers' differ.
    """

    towers: tuple[TowerRows, ...]
    joint: int  # rows of a joint batch
    batch: int
    device: str  # the CPU that reads, with `threads` of its own
    threads: int
    host: str | None = None  # its words, None: rank 0

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


def shares_of(spec: RunSpec, threads: Mapping[int, int]) -> list[Share]:
    """Return what each host reads for this process, in the order of ranks. `threads`: of each, by rank."""
    even = isinstance(spec.batch_size, int)
    found = []
    for rank, of_host in threads.items():
        own = [device.rank == rank for device in spec.devices]
        towers = tuple(itertools.compress(rows_of(spec), own))
        batch = towers[0].batch if even else sum(of_tower.batch for of_tower in towers)
        device = device_name("CPU", 0, rank) if spec.servers else "/CPU:0"
        words = f"{spec.servers[rank].host} (rank {rank})" if rank and spec.rank is None else None
        found.append(Share(towers, spec.joint_batch, batch, device, of_host, words))
    return found


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

    @property
    def paths(self) -> Sequence[Path]:
        """The files that each host reads for itself."""

    def batches(self, first_image: int, share: Share, care: Care | None) -> Dataset:
        """Make a dataset of a share's images and labels, starting with the image at that place of the order.

        `care`: bad records are named and treated as asked; None: they raise, or their labels are out of
        range.
        """

    def reaches(self, first_image: int) -> bool:
        """Whether it can begin at an image as if it had read all before it."""

    def label_is_good(self, labels: np.ndarray[Any, Any]) -> bool:
        """Whether a batch's labels are all in range."""


class PipelineMaker(Maker):
    """Makes joint batches: tower after tower takes the pipeline's next examples, so no two share an image.

    Each host makes those of its own towers.
    """

    def __init__(self, pipeline: Pipeline, spec: RunSpec, shares: Sequence[Share]) -> None:
        self._pipeline = pipeline
        self._joint = spec.joint_batch
        self._shares = shares
        self._others = [share for share in shares if share.host is not None]
        self._readers: list[_Reader] | None = None
        self._careful = spec.data.bad_records == "skip"
        self._readings = Readings()
        self._compared: set[Path] = set()  # files with bad records, which are the same on all hosts
        self._next = 0
        # The first batch that cannot be made, and why. A thread that prefetches asks for later ones too.
        self._stopped: tuple[int, Exception] | None = None
        self._failed: _Reader | None = None
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
            self._readers = self._failed = None
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
        parts = []
        for reader in readers:
            try:
                parts.append(reader.parts(self._pipeline))
            except _OF_DATA:
                self._failed = reader
                raise
        ends = not all(parts) if self._pipeline.endless else not any(parts)
        if ends:
            raise StopIteration
        self._take_reports(readers)
        filled = (reader.filled(own) for reader, own in zip(readers, parts, strict=True))
        return [one for of_host in filled for part in of_host for one in part]

    def _pulled_with_care(self, number: int, error: Exception) -> Batch:
        if self._careful:
            raise self._cause_of(error) from error
        self._careful = True
        self._readers = self._started(number)
        try:
            return self._pulled(self._readers)
        except _OF_DATA as again:
            raise self._cause_of(again) from again

    def _cause_of(self, error: Exception) -> Exception:
        failed = self._failed
        known = self._pipeline.bad.error
        if known is None and failed is not None and failed.share.host is not None and failed.care is not None:
            with tf.device(failed.share.device):
                there = failed.care.report().error
            known = None if there is None else InputError(f"host {failed.share.host}: {there[0]}", there[1])
        if known is not None:
            return known
        first = str(error).splitlines()[0]
        return InputError(f"the input cannot be read: {first}", "see worker.log in the run folder")

    def _take_reports(self, readers: Sequence["_Reader"]) -> None:
        """Add the bad records that other hosts found. Raises InputError if a file differs between hosts."""
        for reader in readers:
            if reader.share.host is not None and reader.care is not None:
                with tf.device(reader.share.device):
                    self._pipeline.bad.add(reader.care.report().found, reader.share.host)
        if self._others:
            for path in sorted(self._pipeline.bad.files.intersection(self._pipeline.paths) - self._compared):
                self._require_same(path)
                self._compared.add(path)

    def _require_same(self, path: Path) -> None:
        """Raise InputError if a file with a bad record is another one on another host.

        Which row is which would differ as well: only records that are good have a number.
        """
        own = digest(str(path).encode())
        for share in self._others:
            if ask_host(share.device, "digest", str(path), dtype=tf.string) != own:
                raise InputError(
                    f"{path} has a bad record, and is not the same file on host {share.host} as on rank 0",
                    "copy it from the host where it is sound",
                )

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
        for share in self._shares:
            with tf.device(share.device):
                care = self._care(share) if self._careful else None
                made = plainly(self._pipeline.batches)(first, share, care)
                marked = None if share.host is None else Marked(made)
                dataset = made if marked is None else marked.dataset
                iterator = iter(untuned(dataset.prefetch(share.pulls)))
                readers.append(_Reader(share, iterator, care, marked))
        return readers

    def _care(self, share: Share) -> Care:
        care = Care(time.monotonic_ns(), self._readings if share.host is None else None)
        care.begin(self._pipeline.bad)
        return care


@dataclass(frozen=True)
class _Reader:
    """A share, and the iterator on its host that reads it."""

    share: Share
    iterator: Any
    care: Care | None  # None: it is read fast
    marked: Marked | None  # of another host, what the iterator reads

    def parts(self, pipeline: Pipeline) -> list[Part]:
        """Return images and labels of each tower, on the reading host; fewer at the end of the data."""
        found: list[Part] = []
        with tf.device(self.share.device):
            for images, labels in itertools.islice(self.iterator, self.share.pulls):
                known = labels.numpy()
                if self.marked is not None and ended(known):
                    break
                if self.marked is not None and failed(known):
                    raise tf.errors.DataLossError(None, None, f"host {self.share.host} cannot read its rows")
                if not pipeline.label_is_good(known):
                    raise tf.errors.InvalidArgumentError(None, None, "a label is out of range")
                found.append((images, labels))
            if not found or len(self.share.towers) == self.share.pulls:
                return found
            ((images, labels),) = found
            base = self.share.towers[0].first
            cut = [slice(own.first - base, own.first - base + own.batch) for own in self.share.towers]
            return [(images[own], labels[own]) for own in cut]

    def filled(self, parts: Sequence[Part]) -> list[Part]:
        """Fill the last batches of an evaluation up with rows that are no examples: their label is -1."""
        filled: list[Part] = []
        picture = self.iterator.element_spec[0].shape[1:]
        with tf.device(self.share.device):
            for own, part in itertools.zip_longest(self.share.towers, parts):
                images, labels = part or (tf.zeros((0, *picture)), tf.zeros((0,), tf.int64))
                if missing := own.batch - len(labels):
                    images = tf.pad(images, [[0, missing], [0, 0], [0, 0], [0, 0]])
                    labels = tf.pad(labels, [[0, missing]], constant_values=NO_LABEL)
                filled.append((images, labels))
        return filled


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
