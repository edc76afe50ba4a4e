"""Synthetic images and labels: made once on each tower's device, or by the host for each step."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.models.layers import Rows
from gputopo.launch.models.randomness import Stream, integers, normal
from gputopo.launch.spec.names import host_of
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.inputs.feeds import Batch, FedSource, readiness, staged
from gputopo.launch.train.inputs.source import Fact, Shape, own_rows

Tensor = Any
_IMAGES, _LABELS = 2, 3  # purposes of random streams


class SyntheticSource:
    """Images of mean 0 and deviation 1, and labels drawn evenly, stored on the towers' devices."""

    signature: Sequence[Any] = ()
    images_per_epoch: int | None = None
    waited_s = 0.0
    notices: tuple[str, ...] = ()

    def __init__(self, model: Shape, spec: RunSpec) -> None:
        self._on = ", ".join(device.device for device in spec.own_devices)
        self._examples = {}
        for rows, device in zip(own_rows(spec), spec.own_devices, strict=True):
            made = examples(model, rows, seed=spec.seed, data_format=spec.data_format)
            with tf.device(device.device):
                self._examples[device.tower] = [
                    tf.Variable(one, trainable=False, name="input") for one in made
                ]

    def describe(self) -> Mapping[str, Fact]:
        """Return where the examples are."""
        return {"data": "synthetic", "source": "gpu", "ready_on": self._on}

    def start_at(self, number: int, image: int) -> None:
        """Do nothing: there is no data set."""

    def feed(self, number: int) -> Sequence[Tensor]:
        """Return nothing: all examples are on the devices."""
        return ()

    def read(self, tower: int, fed: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Read the variables on the tower's device."""
        images, labels = self._examples[tower]
        return images.read_value(), labels.read_value()

    def close(self) -> None:
        """Do nothing: nothing runs beside the steps."""


def host_source(model: Shape, spec: RunSpec) -> FedSource:
    """Make the source in which a thread draws the next batch and copies it to the devices during a step."""
    maker = HostMaker(model, spec)
    ahead = spec.data.prefetch
    facts: dict[str, Fact] = {"data": "synthetic", "source": "cpu", **readiness(spec, ahead)}
    return FedSource(
        model, spec, maker, staged(maker, spec, ahead=ahead), facts, made_format=spec.data_format
    )


class HostMaker:
    """Draws each tower's examples of a step on its host's CPU, by the same rule as on the devices."""

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

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def examples(
    model: Shape, rows: Rows, *, seed: int, data_format: str, step: Tensor = 0
) -> tuple[Tensor, Tensor]:
    """Make images and labels on the host in scope; other ones for another `step`.

    Unit scale keeps the loss finite at the default learning rate (pixels of 0..255 give NaN at once).
    Row r of the joint batch is the same numbers however the batch is divided among towers.
    """
    shape = (rows.batch, *model.input_shape)
    with tf.device("/CPU:0"):
        images = normal(Stream(seed, _IMAGES, step), shape, first_row=rows.first)  # [b, h, w, c]
        if data_format == "NCHW":
            images = tf.transpose(images, (0, 3, 1, 2))  # [b, c, h, w]
        classes = max(model.classes, 2)
        labels = integers(Stream(seed, _LABELS, step), rows.batch, classes, first_row=rows.first)
        return images, labels
