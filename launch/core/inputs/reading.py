"""TFRecords in a fixed order, in two ways: fast, or with care.

The fast way is TensorFlow's own and stops at the first damage with an error that names no file. The careful
way gives the same records in the same order, each with its file and number; where a file breaks off it walks
the file's framing, tells `BadRecords` what is wrong where, and goes on after it if it can.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.core.inputs.bad_records import BadRecords
from gputopo.launch.core.inputs.tfrecords import Framing, walk, wrong_record

Dataset = Any
Tensor = Any
# As tf_cnn_benchmarks: files that are read side by side.
FILES_AT_ONCE = 10
_READ_BYTES = 1 << 20  # a file is read in pieces of this size
_END = -1


def fast(paths: Sequence[Path], order: Dataset) -> Dataset:
    """Give the records of the files whose numbers `order` gives."""
    names = tf.constant([str(path) for path in paths])

    def of(file: Tensor) -> Dataset:
        return tf.data.TFRecordDataset(names[file], buffer_size=_READ_BYTES)

    return _side_by_side(order, of, len(paths))


def careful(paths: Sequence[Path], order: Dataset, bad: BadRecords) -> Dataset:
    """Give the same as (file, number of the record in it, record); tell `bad` what is wrong."""
    names = tf.constant([str(path) for path in paths])
    ends = _Ends(paths, bad)

    def of(file: Tensor) -> Dataset:
        # A file is read in stretches: one, and one more after each record that had to be left out.
        def stretch(start: Tensor) -> Dataset:
            records = tf.data.TFRecordDataset(names[file], buffer_size=_READ_BYTES).skip(start)
            # An empty record, which no example is, stands for the end of what could be read.
            marked = records.ignore_errors().concatenate(tf.data.Dataset.from_tensors(""))
            return marked.enumerate(start).filter(is_example)

        def is_example(number: Tensor, record: Tensor) -> Tensor:
            return tf.cond(
                tf.strings.length(record) > 0,
                lambda: True,
                lambda: tf.numpy_function(ends.reached, [file, number], tf.bool),
            )

        def next_start(_: Tensor) -> Tensor:
            start = tf.numpy_function(ends.next_start, [file], tf.int64)
            start.set_shape(())
            return start

        starts = tf.data.Dataset.counter().map(next_start).take_while(lambda start: start > _END)
        return starts.flat_map(stretch).map(lambda number, record: (file, number, record))

    return _side_by_side(order, of, len(paths))


class _Ends:
    """Where each file goes on. Called by TensorFlow, for one file never from two threads at once."""

    def __init__(self, paths: Sequence[Path], bad: BadRecords) -> None:
        self._paths = paths
        self._bad = bad
        self._starts: dict[int, int] = {}
        self._framings: dict[int, Framing] = {}

    def next_start(self, file: np.int64) -> np.int64:
        """Give the record to go on at, or _END: then the file's next reading begins at 0 again."""
        start = self._starts.setdefault(int(file), 0)
        if start == _END:
            del self._starts[int(file)]
        return np.int64(start)

    def reached(self, file: np.int64, number: np.int64) -> np.bool_:
        """Take note that the reading of a file ended before record `number`; give False.

        Raises InputError if the file does not end there and a bad record stops the run.
        """
        key, at = int(file), int(number)
        if key not in self._framings:
            try:
                self._framings[key] = walk(self._paths[key])
            except OSError as error:
                self._framings[key] = Framing(0, f"the file cannot be read: {error.strerror}")
        framing = self._framings[key]
        if at < framing.records:
            self._starts[key] = at + 1
            self._bad.note(self._paths[key], at, _why(self._paths[key], at))
        else:
            self._starts[key] = _END
            if framing.damage is not None:
                self._bad.note(self._paths[key], framing.records, framing.damage)
        return np.bool_(False)


def _why(path: Path, record: int) -> str:
    try:
        return wrong_record(path, record)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _side_by_side(order: Dataset, of: Any, files: int) -> Dataset:
    at_once = min(files, FILES_AT_ONCE)
    return order.interleave(of, cycle_length=at_once, num_parallel_calls=at_once, deterministic=True)
