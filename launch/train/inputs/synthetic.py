"""Synthetic images and labels, made once on each tower's device."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.models.layers import Rows
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.inputs.source import Fact, Shape, rows_of
from gputopo.launch.train.randomness import Stream, integers, normal

Tensor = Any
_IMAGES, _LABELS = 2, 3  # purposes of random streams


class SyntheticSource:
    """Images of mean 0 and deviation 1, and labels drawn evenly, held on the towers' devices."""

    signature: Sequence[Any] = ()
    images_per_epoch: int | None = None
    waited_s = 0.0
    says: tuple[str, ...] = ()

    def __init__(self, model: Shape, spec: RunSpec) -> None:
        self._on = ", ".join(device.device for device in spec.devices)
        self._held = []
        for rows, device in zip(rows_of(spec), spec.devices, strict=True):
            made = examples(model, rows, seed=spec.seed, data_format=spec.data_format)
            with tf.device(device.device):
                self._held.append([tf.Variable(one, trainable=False, name="input") for one in made])

    def describe(self) -> Mapping[str, Fact]:
        """Say that the examples are made up, and where."""
        return {"data": "synthetic", "source": "gpu", "ready_on": self._on}

    def go_on(self, number: int, image: int) -> None:
        """Nothing: there is no data set."""

    def feed(self, number: int) -> Sequence[Tensor]:
        """Nothing: all is on the devices."""
        return ()

    def read(self, tower: int, fed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Read what the tower's device holds."""
        images, labels = self._held[tower]
        return images.read_value(), labels.read_value()

    def close(self) -> None:
        """Nothing runs beside the steps."""


def examples(
    model: Shape, rows: Rows, *, seed: int, data_format: str, step: Tensor = 0
) -> tuple[Tensor, Tensor]:
    """Make images and labels on the host; other ones for another `step`.

    Unit scale keeps the loss finite at the default learning rate (pixels of 0..255 give NaN at once).
    Row r of the joint batch is the same numbers however the batch is cut into towers.
    """
    shape = (rows.batch, *model.input_shape)
    with tf.device("/CPU:0"):
        images = normal(Stream(seed, _IMAGES, step), shape, first_row=rows.first)  # [b, h, w, c]
        if data_format == "NCHW":
            images = tf.transpose(images, (0, 3, 1, 2))  # [b, c, h, w]
        classes = max(model.classes, 2)
        labels = integers(Stream(seed, _LABELS, step), rows.batch, classes, first_row=rows.first)
        return images, labels
