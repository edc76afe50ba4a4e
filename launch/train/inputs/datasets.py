"""CIFAR-10 (180 MB, in memory) and ImageNet as batches."""

import contextlib
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from gputopo.launch.data import cifar_files
from gputopo.launch.data.examples import LABELS, parsed, wrong_picture
from gputopo.launch.data.tfrecords import walk
from gputopo.launch.train.inputs import records as read_records
from gputopo.launch.train.inputs.pipeline import Pipeline, Share
from gputopo.launch.train.inputs.preprocessing import (
    ORDER,
    Preprocessing,
    cifar_pictures,
    decode,
    decoded_picture,
    picture,
)
from gputopo.launch.train.inputs.records import BadRecords, with_threads
from gputopo.values.errors import InputError

Dataset = Any
Tensor = Any
Bytes = cifar_files.Bytes


@dataclass(frozen=True)
class Cifar10(Pipeline):
    """CIFAR-10.

    Labels are 0 to 9 as in the files. `images` [n, 32, 32, 3] and `labels` [n] contain only the good records.
    Rank 0 reads them, and each host gets all of them at the start.
    """

    images: Bytes
    labels: Bytes
    recipe: Preprocessing
    bad: BadRecords
    notices: tuple[str, ...] = ()

    def batches(self, first_image: int, share: Share, *, careful: bool) -> Dataset:
        """Make a dataset of images [batch, h, w, 3] and labels [batch], starting at `first_image`."""
        images = tf.constant(self.images)
        labels = tf.constant(self.labels.astype(np.int64))

        def batch(places: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            return cifar_pictures(self.recipe, tf.gather(images, rows), places[0]), tf.gather(labels, rows)

        order = share.of(self._order(first_image).enumerate(first_image), first_image)
        joined = order.batch(share.batch, drop_remainder=self.endless)
        return with_threads(joined.map(batch, num_parallel_calls=share.threads), share.threads)

    def _order(self, first_image: int) -> Dataset:
        """Make a dataset of image numbers in order from `first_image`. Earlier epochs are not generated."""
        count = len(self.labels)
        if not self.recipe.training:
            return tf.data.Dataset.range(first_image, count)

        def epoch(number: Tensor) -> Dataset:
            places = tf.range(count, dtype=tf.int64)
            shuffled = tf.random.experimental.stateless_shuffle(places, self.recipe.key(ORDER, number))
            return tf.data.Dataset.from_tensor_slices(shuffled)

        epochs = tf.data.Dataset.range(first_image // count, tf.int64.max)
        return epochs.flat_map(epoch).skip(first_image % count)


def read(paths: tuple[Path, ...], bad: BadRecords) -> tuple[Bytes, Bytes]:
    """Read files of either version: images [n, 32, 32, 3] and labels [n] of the good records.

    Raises InputError if a file is not from CIFAR-10, if there is a bad record and the policy is to stop, or
    if no good record is left.
    """
    parts = []
    for path in paths:
        try:
            file = cifar_files.read_cifar(path)
        except OSError as error:
            raise InputError(
                f"{path} cannot be read: {error.strerror}", "check its owner and permissions"
            ) from error
        if file.damage is not None:
            bad.note(path, len(file.labels), file.damage)
        wrong = np.flatnonzero(file.labels >= cifar_files.CLASSES).tolist()
        for number in wrong:
            bad.note(path, number, cifar_files.bad_label(file.labels[number]))
        good = np.delete(np.arange(len(file.labels)), wrong)
        parts.append(cifar_files.CifarFile(file.images[good], file.labels[good]))
    if not any(len(part.labels) for part in parts):
        raise InputError(
            f"{paths[0].parent} holds no records", "gputopo make-data writes a small valid folder"
        )
    images, labels = cifar_files.joined(parts)
    return cifar_files.to_pixels(images), labels


Labels = np.ndarray[Any, Any]
# tf_cnn_benchmarks shuffles among 10,000 records. That is 1.1 GB of ImageNet, so the bytes are limited as
# well.
SHUFFLED_RECORDS = 10_000
SHUFFLED_BYTES = 512 << 20
# To start at an image, the records before it are read and skipped: 4 GiB take some seconds. Beyond that, a
# new order with another seed starts instead.
MAX_SKIPPED_BYTES = 4 << 30
_SAMPLED_RECORDS = 64  # for the mean size
_BATCHING = 4  # batches that are assembled in parallel


@dataclass(frozen=True)
class ImageNet(Pipeline):
    """ImageNet, in an evaluation in the files' order.

    `cache`: keep records in memory after the first pass, raw or decoded; None: read them again in each pass.
    """

    paths: tuple[Path, ...]
    recipe: Preprocessing
    classes: int  # the model's classes; with 1000 there is no background and labels start at 0
    cache: Literal["raw", "decoded"] | None
    bad: BadRecords
    notices: tuple[str, ...] = ()

    def batches(self, first_image: int, share: Share, *, careful: bool) -> Dataset:
        """Make a dataset of images [batch, h, w, 3] and labels [batch], starting at `first_image`.

        Each host reads all records in the same order, and decodes only the records of its share.
        """
        files = tf.data.Dataset.range(len(self.paths))
        if self.recipe.training:
            files = files.shuffle(len(self.paths), seed=self._seed(first_image))
        read = self._with_care if careful else self._fast
        examples = read(files, first_image, share)
        parallel = min(_BATCHING, share.threads)
        joined = examples.batch(share.batch, drop_remainder=self.endless, num_parallel_calls=parallel)
        return with_threads(joined, share.threads)

    def reaches(self, first_image: int) -> bool:
        """Return whether the records before an image are few enough to read and skip."""
        return first_image * self._mean_bytes <= MAX_SKIPPED_BYTES

    def label_is_good(self, labels: Labels) -> bool:
        """Return whether all labels are classes of the model."""
        low, high = self._range
        return bool((labels >= low).all() and (labels <= high).all())

    def _fast(self, files: Dataset, first: int, share: Share) -> Dataset:
        records = read_records.fast(self.paths, files)
        if self.cache == "decoded":

            def decoded(record: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                encoded, label, boxes = parsed(record)
                return decode(encoded), label, boxes

            def finished(place: Tensor, image: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
                pixels, label, boxes = image
                return decoded_picture(self.recipe, pixels, boxes, place), label - self._shift

            cached = records.map(decoded, num_parallel_calls=share.threads).cache()
            return self._placed(cached, first, share).map(finished, num_parallel_calls=share.threads)
        records = records.cache() if self.cache == "raw" else records
        return self._placed(records, first, share).map(self._of_record, num_parallel_calls=share.threads)

    def _with_care(self, files: Dataset, first: int, share: Share) -> Dataset:
        """Make the examples without bad records. Decoded images are not cached, as some may not decode.

        Records that are bad without decoding are skipped before the others are numbered, so that starting at
        an image is exact and all hosts have the same order. An image that cannot be decoded has a number; the
        next one of the share replaces it.
        """
        low, high = self._range
        stored = low + self._shift, high + self._shift
        records = read_records.careful(self.paths, files, self.bad, stored)
        records = records if self.cache is None else records.cache()
        return self._placed(records, first, share).interleave(
            lambda place, numbered: self._tried(place, *numbered),
            cycle_length=share.threads,
            num_parallel_calls=share.threads,
            deterministic=True,
        )

    def _placed(self, records: Dataset, first: int, share: Share) -> Dataset:
        """Return the records of a share in order from image `first` on, each with its place in the order."""
        if self.recipe.training:
            buffered = min(SHUFFLED_RECORDS, max(SHUFFLED_BYTES // self._mean_bytes, 1))
            records = records.shuffle(buffered, seed=self._seed(first)).repeat()
        placed = records.enumerate().skip(first) if self.reaches(first) else records.enumerate(first)
        return share.of(placed, first)

    def _seed(self, first: int) -> int:
        return self.recipe.seed if self.reaches(first) else self.recipe.seed + first

    @functools.cached_property
    def _mean_bytes(self) -> int:
        """Mean size in bytes of the first records of the first file that has records.

        It is computed once: the order depends on it, and must not change if files change during a run.
        """
        for path in self.paths:
            with contextlib.suppress(OSError):  # the reader reports it
                sample = walk(path, max_records=_SAMPLED_RECORDS)
                if sample.records:
                    return sample.bytes // sample.records
        return 1

    def _of_record(self, place: Tensor, record: Tensor) -> tuple[Tensor, Tensor]:
        encoded, label, boxes = parsed(record)
        return picture(self.recipe, encoded, boxes, place), label - self._shift

    def _tried(self, place: Tensor, file: Tensor, number: Tensor, record: Tensor) -> Dataset:
        """Make a dataset with one example. It is empty if the image cannot be decoded.

        It is a dataset because datasets can continue after an error; functions cannot.
        """

        def note(file: np.int64, number: np.int64, record: bytes) -> np.bool_:
            self.bad.note(self.paths[int(file)], int(number), wrong_picture(record))
            return np.bool_(False)

        def good(_: Tensor, label: Tensor) -> Tensor:
            return tf.cond(
                label > _UNREAD,
                lambda: True,
                lambda: tf.ensure_shape(tf.numpy_function(note, [file, number, record], tf.bool), ()),
            )

        example = tf.data.Dataset.from_tensors((place, record)).map(self._of_record).ignore_errors()
        nothing = tf.zeros((self.recipe.height, self.recipe.width, 3)), tf.constant(_UNREAD, tf.int64)
        return example.concatenate(tf.data.Dataset.from_tensors(nothing)).take(1).filter(good)

    @property
    def _shift(self) -> int:
        return 1 if self.classes == LABELS[1] else 0

    @property
    def _range(self) -> tuple[int, int]:
        """The lowest and the highest label of the model."""
        return LABELS[0] - self._shift, min(LABELS[1] - self._shift, self.classes - 1)


_UNREAD = np.iinfo(np.int64).min  # replaces the label if there is no example
