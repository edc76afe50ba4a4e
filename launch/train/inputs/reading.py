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

from gputopo.launch.train.inputs.bad_records import BadRecords
from gputopo.launch.train.inputs.tfrecords import Framing, walk, wrong_record

Dataset = Any
Tensor = Any
_Seen = tuple[int, int, int, int]  # what differs after a file was changed or replaced
# As tf_cnn_benchmarks: files that are read side by side.
FILES_AT_ONCE = 10
_READ_BYTES = 1 << 20  # a file is read in pieces of this size
_TRIES = 1024  # readings of a record between two looks whether the file can be opened
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
            # After damage the reading is at its end, but a file that cannot be opened is tried again without
            # end: so tries are handed out.
            tries = tf.data.Dataset.counter().map(can_be_opened).take_while(lambda opens: opens)
            tried = tf.data.Dataset.zip(tries.flat_map(lambda _: tf.data.Dataset.range(_TRIES)), records)
            # An empty record, which no example is, stands for the end of what could be read.
            end = tf.data.Dataset.from_tensors((tf.constant(_END, tf.int64), ""))
            return tried.ignore_errors().concatenate(end).enumerate(start).filter(is_example)

        def can_be_opened(_: Tensor) -> Tensor:
            opens = tf.numpy_function(ends.can_be_opened, [file], tf.bool)
            opens.set_shape(())
            return opens

        def is_example(number: Tensor, tried: tuple[Tensor, Tensor]) -> Tensor:
            return tf.cond(
                tf.strings.length(tried[1]) > 0,
                lambda: True,
                lambda: tf.numpy_function(ends.reached, [file, number], tf.bool),
            )

        def next_start(_: Tensor) -> Tensor:
            start = tf.numpy_function(ends.next_start, [file], tf.int64)
            start.set_shape(())
            return start

        starts = tf.data.Dataset.counter().map(next_start).take_while(lambda start: start > _END)
        return starts.flat_map(stretch).map(lambda number, tried: (file, number, tried[1]))

    return _side_by_side(order, of, len(paths))


class _Ends:
    """Where each file goes on. Called by TensorFlow, for one file never from two threads at once."""

    def __init__(self, paths: Sequence[Path], bad: BadRecords) -> None:
        self._paths = paths
        self._bad = bad
        self._starts: dict[int, int] = {}
        self._framings: dict[int, tuple[_Seen, Framing]] = {}

    def can_be_opened(self, file: np.int64) -> np.bool_:
        """Tell whether a file can be opened now. If not, `reached` is called next, which says why."""
        try:
            self._paths[int(file)].open("rb").close()
        except OSError:
            return np.bool_(False)
        return np.bool_(True)

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
        framing = self._framing(key)
        if at < framing.records:
            self._starts[key] = at + 1
            self._bad.note(self._paths[key], at, _why(self._paths[key], at))
        else:
            self._starts[key] = _END
            if framing.damage is not None:
                self._bad.note(self._paths[key], framing.records, framing.damage)
        return np.bool_(False)

    def _framing(self, key: int) -> Framing:
        """Follow a file once, and again after it has changed."""
        try:
            seen = _seen(self._paths[key])
            if key not in self._framings or self._framings[key][0] != seen:
                self._framings[key] = seen, walk(self._paths[key])
        except OSError as error:
            return Framing(0, f"the file cannot be read: {error.strerror}")
        return self._framings[key][1]


def _seen(path: Path) -> _Seen:
    held = path.stat()
    return held.st_dev, held.st_ino, held.st_size, held.st_mtime_ns


def _why(path: Path, record: int) -> str:
    try:
        return wrong_record(path, record)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _side_by_side(order: Dataset, of: Any, files: int) -> Dataset:
    at_once = min(files, FILES_AT_ONCE)
    return order.interleave(of, cycle_length=at_once, num_parallel_calls=at_once, deterministic=True)
