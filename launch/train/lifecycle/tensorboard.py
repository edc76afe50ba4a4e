"""Scalars of each device and step for TensorBoard, written without the tensorboard package."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

import tensorflow as tf
from tensorflow.core.framework.summary_pb2 import SummaryMetadata

from gputopo.launch.train.lifecycle.folders import DiskError
from gputopo.launch.train.op_errors import disk_reason
from gputopo.launch.train.stepper import Observer, StepOutcome
from gputopo.launch.train.updating import learning_rate
from gputopo.values.run.events import Step
from gputopo.values.run.spec import RunSpec


class Scalars(Observer):
    """Writes a TensorBoard run for each tower (`tower_0`, ...), and one for all together (`all`).

    Tags: images_per_sec (a tower's batch divided by its time for weights and computing; in `all`: the joint
    batch divided by the step time), loss (only in `all` if the towers share one loss, as with a Keras
    method), learning_rate. The x axis is the number of steps that the weights are trained for.
    """

    def __init__(self, spec: RunSpec) -> None:
        """Create the files. Raises DiskError."""
        self._spec = spec
        self._compiled = False
        self._folder = folder = Path(spec.lifecycle.tensorboard or ".")
        with self._disk():
            self._all = tf.summary.create_file_writer(str(folder / "all"))
            self._towers = [
                tf.summary.create_file_writer(str(folder / f"tower_{device.tower}"))
                for device in spec.devices
            ]

    def after(self, step: Step, outcome: StepOutcome) -> None:
        """Write one point of every scalar. Skip the first step, which compiles. Raises DiskError."""
        if not self._compiled:
            self._compiled = True
            return
        with self._disk():
            self._write_points(step, outcome)

    def close(self) -> None:
        """Write the buffered points. Raises DiskError."""
        with self._disk():
            for writer in (self._all, *self._towers):
                writer.close()

    def _write_points(self, event: Step, outcome: StepOutcome) -> None:
        step = event.global_step or 0
        rate = learning_rate(
            self._spec.optimization.schedule, self._spec.learning_rate, tf.constant(step - 1, tf.int64)
        )
        with self._all.as_default(step):
            _write("images_per_sec", event.images / event.seconds)
            _write("loss", outcome.mean_loss)
            _write("learning_rate", float(rate))
        losses = list(outcome.losses) if len(outcome.losses) == len(self._towers) else []
        if outcome.examples is not None:  # a tower without examples has no loss
            losses = [loss if count else None for loss, count in zip(losses, outcome.examples, strict=True)]
        for writer, marks, batch, loss in zip_longest(self._towers, event.marks, self._spec.batches, losses):
            with writer.as_default(step):
                own_s = marks.weights_s + marks.compute_s
                if own_s > 0:
                    _write("images_per_sec", batch / own_s)
                if loss is not None:
                    _write("loss", float(loss))

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Convert TensorFlow's errors to DiskError: a full disk is RESOURCE_EXHAUSTED, like a full memory."""
        try:
            yield
        except tf.errors.OpError as error:
            raise DiskError(
                f"cannot write TensorBoard's scalars in {self._folder}: {disk_reason(error)}",
                "free some space, or use another folder with --tensorboard",
                "tensorboard",
            ) from error


def _write(tag: str, value: float) -> None:
    # tf.summary.scalar would do the same, but needs the tensorboard package, which may not be installed.
    metadata = SummaryMetadata()
    metadata.plugin_data.plugin_name = "scalars"
    with tf.device("/CPU:0"):
        tf.summary.write(tag, tf.constant(value, tf.float32), metadata=metadata)
