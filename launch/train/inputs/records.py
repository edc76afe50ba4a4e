"""TFRecords in a fixed order: fast, or without the records that cannot be used.

`fast` is TensorFlow's reader, which stops at the first damage with an error that does not report the file.
`careful` reads the same records in the same order in Python, each with its file and number. It checks each
record, notes bad ones (`BadRecords`), and continues if possible. Bad records either stop the run, or are
skipped and counted.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from tensorflow.python.lib.io.tf_record import tf_record_random_reader  # has no public name

from gputopo.launch.data.examples import wrong_fields
from gputopo.launch.data.folder import bad_record
from gputopo.launch.data.tfrecords import walk
from gputopo.values.errors import InputError

Dataset = Any
Tensor = Any
Policy = Literal["stop", "skip"]
FILES_AT_ONCE = 10  # files read in parallel, as in tf_cnn_benchmarks
_READ_BYTES = 1 << 20  # size of one read
# Bad records are read again in each pass. After this many passes without a whole batch, few records are good.
_MAX_PASSES = 50


class BadRecords:
    """The bad records found so far. `policy`: stop or skip."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._found: set[tuple[Path, int]] = set()
        self._first = ""
        self._again = 0
        self.error: InputError | None = None

    @property
    def count(self) -> int:
        """Number of different records skipped."""
        return len(self._found)

    @property
    def notices(self) -> tuple[str, ...]:
        """A notice with the number of skipped records and the first one; empty if there is none."""
        if not self._found:
            return ()
        records = "1 bad record was" if self.count == 1 else f"{self.count} bad records were"
        return (f"{records} skipped, the first one {self._first}.",)

    def note(self, path: Path, record: int, why: str) -> None:
        """Count record `record` (from 0) of a file as bad.

        Raises InputError if the policy is to stop, or if too few records are good.
        """
        if self.policy == "stop":
            raise self._failed(bad_record(path, record, why))
        self._again += (path, record) in self._found
        self._first = self._first or f"{path.name} record {record} ({why})"
        self._found.add((path, record))
        if self._again > _MAX_PASSES * self.count:
            raise self._failed(
                InputError(
                    f"{path.parent} has no full batch: {self.notices[0]}",
                    "download the files again, or use a smaller --batch-size",
                )
            )

    def batch_made(self) -> None:
        """Restart the count of passes: good records were read."""
        self._again = 0

    def _failed(self, error: InputError) -> InputError:
        """Return the first error: TensorFlow may continue reading after it and find more."""
        self.error = self.error or error
        return self.error


def fast(paths: Sequence[Path], order: Dataset) -> Dataset:
    """Make a dataset of the records of the files. `order`: a dataset of file numbers."""
    names = tf.constant([str(path) for path in paths])

    def records_of(file: Tensor) -> Dataset:
        return tf.data.TFRecordDataset(names[file], buffer_size=_READ_BYTES)

    return _in_parallel(order, records_of, len(paths))


def careful(paths: Sequence[Path], order: Dataset, bad: BadRecords, labels: tuple[int, int]) -> Dataset:
    """Make a dataset of (file, number of the record in it, record) in the same order, without bad records.

    `labels`: the lowest and the highest valid label, as stored. Images are not decoded. Bad records are noted
    in `bad`, which may raise InputError.
    """
    low, high = labels

    def good(file: np.int64) -> Iterator[tuple[np.int64, int, bytes]]:
        path = paths[int(file)]
        for number, record in _readable(path, bad):
            label = wrong_fields(record)
            if isinstance(label, str):
                bad.note(path, number, label)
            elif not low <= label <= high:
                bad.note(path, number, f"its label {label} is not between {low} and {high}")
            else:
                yield file, number, record

    numbers = tf.TensorSpec((), tf.int64)
    signature = (numbers, numbers, tf.TensorSpec((), tf.string))

    def records_of(file: Tensor) -> Dataset:
        return tf.data.Dataset.from_generator(good, args=(file,), output_signature=signature)

    return _in_parallel(order, records_of, len(paths))


def _readable(path: Path, bad: BadRecords) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a file that TensorFlow can read, with their numbers. The others are noted."""
    try:
        framing = walk(path)  # TensorFlow would retry forever to open a file that cannot be opened
    except OSError as error:
        bad.note(path, 0, f"the file cannot be read: {error.strerror}")
        return
    # Not a dataset: its iterator needs threads of the pool whose threads would wait for it here.
    reader = tf_record_random_reader(str(path))
    offset = 0
    for number in range(framing.records):
        try:
            record, offset = reader.read(offset)
        except tf.errors.DataLossError:
            bad.note(path, number, "its checksum does not match its bytes")
            offset = walk(path, max_records=number + 1).bytes
        else:
            if record:
                yield number, record
            else:
                bad.note(path, number, "it is empty")
    if framing.damage is not None:
        bad.note(path, framing.records, framing.damage)


def _in_parallel(order: Dataset, records_of: Callable[[Tensor], Dataset], files: int) -> Dataset:
    at_once = min(files, FILES_AT_ONCE)
    return order.interleave(records_of, cycle_length=at_once, num_parallel_calls=at_once, deterministic=True)


def with_threads(made: Dataset, threads: int) -> Dataset:
    """Return the dataset with a private thread pool. Its order stays deterministic."""
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    options.deterministic = True
    return made.with_options(options)


def untuned(made: Dataset) -> Dataset:
    """Return the dataset without tf.data's autotuning thread.

    All parameters of gputopo's pipelines are fixed, so there is nothing to tune. The thread sleeps for as
    long as the pipeline has run, up to a minute, and is sometimes not woken when the iterator is dropped
    (TensorFlow 2.21: 8 of 20 iterators, each 2 s old). The program then hangs until the thread wakes up by
    itself.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return made.with_options(options)
