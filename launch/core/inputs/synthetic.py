"""Synthetic images and labels, made once on each tower's device."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.core.inputs.source import rows_of
from gputopo.launch.core.layers import Rows
from gputopo.launch.core.models import Model
from gputopo.launch.core.randomness import Stream, integers, normal
from gputopo.launch.spec import RunSpec

Tensor = Any
_IMAGES, _LABELS = 2, 3  # purposes of random streams


class SyntheticSource:
    """Images of mean 0 and deviation 1, and labels drawn evenly, held on the towers' devices."""

    signature: Sequence[Any] = ()

    def __init__(self, model: Model, spec: RunSpec) -> None:
        self._held = []
        for rows, device in zip(rows_of(spec), spec.devices, strict=True):
            made = examples(model, rows, seed=spec.seed, data_format=spec.data_format)
            with tf.device(device.device):
                self._held.append([tf.Variable(one, trainable=False, name="input") for one in made])

    def feed(self, number: int) -> Sequence[Tensor]:
        """Nothing: all is on the devices."""
        return ()

    def read(self, tower: int, fed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Read what the tower's device holds."""
        images, labels = self._held[tower]
        return images.read_value(), labels.read_value()

    def close(self) -> None:
        """Nothing runs beside the steps."""


def examples(model: Model, rows: Rows, *, seed: int, data_format: str) -> tuple[Tensor, Tensor]:
    """Make images and labels on the host.

    Unit scale keeps the loss finite at the default learning rate (pixels of 0..255 give NaN at once).
    Row r of the joint batch is the same numbers however the batch is cut into towers.
    """
    shape = (rows.batch, *model.input_shape)
    with tf.device("/CPU:0"):
        images = normal(Stream(seed, _IMAGES), shape, first_row=rows.first)  # [b, h, w, c]
        if data_format == "NCHW":
            images = tf.transpose(images, (0, 3, 1, 2))  # [b, c, h, w]
        labels = integers(Stream(seed, _LABELS), rows.batch, max(model.classes, 2), first_row=rows.first)
        return images, labels
