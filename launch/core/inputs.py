"""Synthetic images and labels, made once on each tower's device."""

from typing import Any

import tensorflow as tf

from gputopo.launch.core.layers import Rows
from gputopo.launch.core.models import Model
from gputopo.launch.core.randomness import Stream, integers, normal

_IMAGES, _LABELS = 2, 3  # purposes of random streams


class SyntheticInput:
    """Images of mean 0 and deviation 1, and labels drawn evenly, held on one device.

    Unit scale keeps the loss finite at the default learning rate (pixels of 0..255 give NaN at once).
    Row r of the joint batch is the same numbers however the batch is cut into towers.
    """

    def __init__(self, model: Model, rows: Rows, device: str, *, seed: int, data_format: str) -> None:
        shape = (rows.batch, *model.input_shape)
        with tf.device("/CPU:0"):
            images = normal(Stream(seed, _IMAGES), shape, first_row=rows.first)  # [b, h, w, c]
            if data_format == "NCHW":
                images = tf.transpose(images, (0, 3, 1, 2))  # [b, c, h, w]
            labels = integers(Stream(seed, _LABELS), rows.batch, max(model.classes, 2), first_row=rows.first)
        with tf.device(device):
            self._images = tf.Variable(images, trainable=False, name="images")
            self._labels = tf.Variable(labels, trainable=False, name="labels")

    def read(self) -> tuple[Any, Any]:
        """Give images (in the data format asked for) and labels [batch]."""
        return self._images.read_value(), self._labels.read_value()
