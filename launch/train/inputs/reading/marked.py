"""A dataset whose end and whose failure are elements: rank 0 iterates it on another host.

Where an op fails on another host, others fail with it that rank 0 has under way there, such as those of a
training step (TensorFlow 2.21). The end of a dataset is such a failure too.
"""

from typing import Any

import numpy as np
import tensorflow as tf

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
