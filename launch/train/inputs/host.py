"""Synthetic images and labels that TensorFlow makes on the host, anew for each step."""

from typing import Any

import tensorflow as tf

from gputopo.launch.spec.run_spec import RunSpec
from gputopo.launch.train.inputs.feeds import Batch, FedSource, readiness, staged
from gputopo.launch.train.inputs.source import Fact, Shape, rows_of
from gputopo.launch.train.inputs.synthetic import examples

Tensor = Any


def host_source(model: Shape, spec: RunSpec) -> FedSource:
    """Give the source: a thread makes the next batch and copies it to the devices while a step runs."""
    maker = HostMaker(model, spec)
    ahead = spec.data.prefetch
    facts: dict[str, Fact] = {"data": "synthetic", "source": "cpu", **readiness(spec, ahead)}
    return FedSource(
        model, spec, maker, staged(maker, spec, ahead=ahead), facts, made_format=spec.data_format
    )


class HostMaker:
    """Draws the images and labels of a step on `/CPU:0`, by the same rule as those of the devices."""

    def __init__(self, model: Shape, spec: RunSpec) -> None:
        def draw(number: Tensor) -> list[Tensor]:
            drawn: list[Tensor] = []
            for rows in rows_of(spec):
                drawn += examples(model, rows, seed=spec.seed, data_format=spec.data_format, step=number)
            return drawn

        self._draw = tf.function(draw, input_signature=[tf.TensorSpec((), tf.int64)], autograph=False)

    def make(self, number: int) -> Batch:
        """Draw the joint batch."""
        with tf.device("/CPU:0"):
            drawn: Batch = self._draw(tf.constant(number, tf.int64))
            return drawn

    def close(self) -> None:
        """Nothing to let go of."""
