"""CIFAR-10 as batches, all 180 MB of it in memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.data import cifar_files
from gputopo.launch.train.inputs.pipeline import Share, with_threads
from gputopo.launch.train.inputs.preprocessing import ORDER, Recipe, cifar_pictures
from gputopo.launch.train.inputs.reading.bad_records import BadRecords
from gputopo.launch.train.inputs.reading.records import Care
from gputopo.values.errors import InputError

Dataset = Any
Tensor = Any
Bytes = cifar_files.Bytes


@dataclass(frozen=True)
class Cifar10:
    """Training: endless, in an order derived from the seed. Evaluation: once.

    Labels are 0 to 9 as in the files. `images` [n, 32, 32, 3] and `labels` [n]: of good records alone. Rank 0
    reads them; each host gets all of them at the start.
    """

    images: Bytes
    labels: Bytes
    recipe: Recipe
    bad: BadRecords
    notices: tuple[str, ...] = ()

    def batches(self, first_image: int, share: Share, care: Care | None) -> Dataset:
        """Make a dataset of images [batch, h, w, 3] and labels [batch], starting with an image."""
        images = tf.constant(self.images)
        labels = tf.constant(self.labels.astype(np.int64))

        def batch(places: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            return cifar_pictures(self.recipe, tf.gather(images, rows), places[0]), tf.gather(labels, rows)

        order = share.of(self._order(first_image).enumerate(first_image), first_image)
        joined = order.batch(share.batch, drop_remainder=self.endless)
        return with_threads(joined.map(batch, num_parallel_calls=share.threads), share.threads)

    def _order(self, first_image: int) -> Dataset:
        """Make a dataset of the places of the images, starting with one; no epoch before it is generated."""
        count = len(self.labels)
        if not self.recipe.training:
            return tf.data.Dataset.range(first_image, count)

        def epoch(number: Tensor) -> Dataset:
            places = tf.range(count, dtype=tf.int64)
            shuffled = tf.random.experimental.stateless_shuffle(places, self.recipe.key(ORDER, number))
            return tf.data.Dataset.from_tensor_slices(shuffled)

        epochs = tf.data.Dataset.range(first_image // count, tf.int64.max)
        return epochs.flat_map(epoch).skip(first_image % count)

    @property
    def endless(self) -> bool:
        """Whether it begins again at the end, as training does."""
        return self.recipe.training

    @property
    def paths(self) -> tuple[Path, ...]:
        """None: only rank 0 reads files."""
        return ()

    def reaches(self, first_image: int) -> bool:
        """Always: only numbers of pictures are skipped."""
        return True

    def label_is_good(self, labels: np.ndarray[Any, Any]) -> bool:
        """Always: bad records were left out when the files were read."""
        return True


def read(paths: tuple[Path, ...], bad: BadRecords) -> tuple[Bytes, Bytes]:
    """Read files of either version: images [n, 32, 32, 3] and labels [n] of the good records.

    Raises InputError for a file that is not of CIFAR-10, for a bad record where one stops the run, or if
    no good record is left.
    """
    parts = []
    for path in paths:
        try:
            file = cifar_files.read(path)
        except InputError as error:
            if not bad.skips:
                raise
            bad.note(path, 0, error.what.removeprefix(f"{path} "))
            continue
        except OSError as error:
            raise InputError(
                f"{path} cannot be read: {error.strerror}", "check its owner and permissions"
            ) from error
        if file.damage is not None:
            bad.note(path, len(file.labels), file.damage)
        wrong = cifar_files.bad_records(file.labels)
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
