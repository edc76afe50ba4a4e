"""TFRecords in a fixed order: fast, or with each bad record named.

`fast` is TensorFlow's reader, which stops at the first damage with an error that names no file. `careful`
reads the same records in the same order, each with its file and number; where the reading of a file ends
early the host that reads walks the file's framing, notes in `BadRecords` what is wrong where, and continues
if possible.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from gputopo.launch.train.inputs.reading.bad_records import BadRecords
from gputopo.launch.train.inputs.reading.checks import END, Checks, Report, ask

Dataset = Any
Tensor = Any
# As tf_cnn_benchmarks: files that are read in parallel.
FILES_AT_ONCE = 10
_READ_BYTES = 1 << 20  # size of one read
_TRIES = 1024  # reads of a record between two checks whether the file can be opened


@dataclass(frozen=True)
class Care:
    """A careful reading, by its number, and the checks of the process that reads; None: of another host's."""

    number: int
    checks: Checks | None

    def begin(self, bad: BadRecords) -> None:
        """Let the checks begin this reading; those of another host note bad records of their own."""
        if self.checks is not None:
            self.checks.begin(self.number, bad)
        else:
            self.ask("begin", bad.policy).numpy()

    def ask(self, question: str, *given: Any, dtype: Any = tf.bool) -> Tensor:
        """Ask the checks about this reading, by an op on the device in scope."""
        return ask(self.checks, question, np.int64(self.number), *given, dtype=dtype)

    def report(self) -> Report:
        """Return what the checks found since their last report."""
        answer: bytes = self.ask("report", dtype=tf.string).numpy()
        return msgspec.json.decode(answer, type=Report)


def fast(paths: Sequence[Path], order: Dataset) -> Dataset:
    """Make a dataset of the records of the files whose numbers are in `order`."""
    names = tf.constant([str(path) for path in paths])

    def of(file: Tensor) -> Dataset:
        return tf.data.TFRecordDataset(names[file], buffer_size=_READ_BYTES)

    return _in_parallel(order, of, len(paths))


def careful(paths: Sequence[Path], order: Dataset, care: Care) -> Dataset:
    """Make a dataset of the same as (file, number of the record in it, record); bad records are noted."""
    names = tf.constant([str(path) for path in paths])

    def of(file: Tensor) -> Dataset:
        name = names[file]

        # A file is read in one stretch, and in one more after each record that had to be left out.
        def stretch(start: Tensor) -> Dataset:
            records = tf.data.TFRecordDataset(name, buffer_size=_READ_BYTES).skip(start)
            # Damage ends the reading, but a file that cannot be opened would be tried again for ever: so the
            # number of tries is limited.
            tries = tf.data.Dataset.counter().map(can_be_opened).take_while(lambda opens: opens)
            tried = tf.data.Dataset.zip(tries.flat_map(lambda _: tf.data.Dataset.range(_TRIES)), records)
            # An empty record, which is no example, marks the end of what could be read.
            end = tf.data.Dataset.from_tensors((tf.constant(END, tf.int64), ""))
            return tried.ignore_errors().concatenate(end).enumerate(start).filter(is_example)

        def can_be_opened(_: Tensor) -> Tensor:
            return care.ask("can_be_opened", name)

        def is_example(number: Tensor, tried: tuple[Tensor, Tensor]) -> Tensor:
            return tf.cond(
                tf.strings.length(tried[1]) > 0,
                lambda: True,
                lambda: care.ask("reached", name, number),
            )

        def next_start(_: Tensor) -> Tensor:
            return care.ask("next_start", name, dtype=tf.int64)

        starts = tf.data.Dataset.counter().map(next_start).take_while(lambda start: start > END)
        return starts.flat_map(stretch).map(lambda number, tried: (file, number, tried[1]))

    return _in_parallel(order, of, len(paths))


def _in_parallel(order: Dataset, of: Any, files: int) -> Dataset:
    at_once = min(files, FILES_AT_ONCE)
    return order.interleave(of, cycle_length=at_once, num_parallel_calls=at_once, deterministic=True)
