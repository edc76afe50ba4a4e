"""TFRecords in a fixed order: fast, or with each bad record named.

`fast` is TensorFlow's reader, which stops at the first damage with an error that names no file. `careful`
reads the same records in the same order, each with its file and number; where the reading of a file ends
early it walks the file's framing, notes in `BadRecords` what is wrong where, and continues if possible.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.data.tfrecords import Framing, walk, wrong_record
from gputopo.launch.train.inputs.bad_records import BadRecords

Dataset = Any
Tensor = Any
_Version = tuple[int, int, int, int]  # differs after a file was changed or replaced
# As tf_cnn_benchmarks: files that are read in parallel.
FILES_AT_ONCE = 10
_READ_BYTES = 1 << 20  # size of one read
_TRIES = 1024  # reads of a record between two checks whether the file can be opened
_END = -1


def fast(paths: Sequence[Path], order: Dataset) -> Dataset:
    """Make a dataset of the records of the files whose numbers are in `order`."""
    names = tf.constant([str(path) for path in paths])

    def of(file: Tensor) -> Dataset:
        return tf.data.TFRecordDataset(names[file], buffer_size=_READ_BYTES)

    return _in_parallel(order, of, len(paths))


def careful(paths: Sequence[Path], order: Dataset, bad: BadRecords) -> Dataset:
    """Make a dataset of the same as (file, number of the record in it, record); bad records go to `bad`."""
    names = tf.constant([str(path) for path in paths])
    ends = _Ends(paths, bad)

    def of(file: Tensor) -> Dataset:
        # A file is read in one stretch, and in one more after each record that had to be left out.
        def stretch(start: Tensor) -> Dataset:
            records = tf.data.TFRecordDataset(names[file], buffer_size=_READ_BYTES).skip(start)
            # Damage ends the reading, but a file that cannot be opened would be tried again for ever: so the
            # number of tries is limited.
            tries = tf.data.Dataset.counter().map(can_be_opened).take_while(lambda opens: opens)
            tried = tf.data.Dataset.zip(tries.flat_map(lambda _: tf.data.Dataset.range(_TRIES)), records)
            # An empty record, which is no example, marks the end of what could be read.
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

    return _in_parallel(order, of, len(paths))


class _Ends:
    """Where to continue each file. Called by TensorFlow, for one file never from two threads at once."""

    def __init__(self, paths: Sequence[Path], bad: BadRecords) -> None:
        self._paths = paths
        self._bad = bad
        self._starts: dict[int, int] = {}
        self._framings: dict[int, tuple[_Version, Framing]] = {}

    def can_be_opened(self, file: np.int64) -> np.bool_:
        """Whether a file can be opened now. If not, `reached` is called next, which notes why."""
        try:
            self._paths[int(file)].open("rb").close()
        except OSError:
            return np.bool_(False)
        return np.bool_(True)

    def next_start(self, file: np.int64) -> np.int64:
        """Return the record to continue at, or _END: then the file's next reading begins at 0 again."""
        start = self._starts.setdefault(int(file), 0)
        if start == _END:
            del self._starts[int(file)]
        return np.int64(start)

    def reached(self, file: np.int64, number: np.int64) -> np.bool_:
        """Note that the reading of a file ended before record `number`; return False.

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
        """Walk a file once, and again after it has changed."""
        try:
            version = _version(self._paths[key])
            if key not in self._framings or self._framings[key][0] != version:
                self._framings[key] = version, walk(self._paths[key])
        except OSError as error:
            return Framing(0, f"the file cannot be read: {error.strerror}")
        return self._framings[key][1]


def _version(path: Path) -> _Version:
    now = path.stat()
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns


def _why(path: Path, record: int) -> str:
    try:
        return wrong_record(path, record)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _in_parallel(order: Dataset, of: Any, files: int) -> Dataset:
    at_once = min(files, FILES_AT_ONCE)
    return order.interleave(of, cycle_length=at_once, num_parallel_calls=at_once, deterministic=True)
