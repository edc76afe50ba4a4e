"""TFRecords in a fixed order: fast, or without the records that cannot be used.

`fast` is TensorFlow's reader, which stops at the first damage with an error that does not report the file.
`careful` reads the same records in the same order, each with its file and number. If a file ends early, it
checks the file's framing (`FileReading`), records the damage (`BadRecords`), and continues if possible. Bad
records either stop the run, or are skipped and counted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from gputopo.launch.data.examples import wrong_fields, wrong_picture
from gputopo.launch.data.folder import bad_record
from gputopo.launch.data.tfrecords import Framing, walk, wrong_record
from gputopo.values.errors import InputError

Dataset = Any
Tensor = Any
Policy = Literal["stop", "skip"]
END = -1  # replaces a record's number
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


class FileReading:
    """A careful reading: where to continue each file. Two threads must not use it for one file at once."""

    def __init__(self, bad: BadRecords) -> None:
        self._bad = bad
        self._starts: dict[Path, int] = {}
        self._framings: dict[Path, Framing] = {}

    def ask(self, question: str, *given: Any, dtype: Any = tf.bool) -> Tensor:
        """Return an op that calls a method of this reading, with strings as bytes."""
        answer = tf.numpy_function(getattr(self, question), list(map(tf.convert_to_tensor, given)), dtype)
        answer.set_shape(())
        return answer

    def next_start(self, name: bytes) -> np.int64:
        """Return the record to continue at, or END. After END the file's next reading starts at 0 again."""
        path = _path(name)
        start = self._starts.setdefault(path, 0)
        if start == 0:
            try:
                path.open("rb").close()  # TensorFlow would retry forever
            except OSError as error:
                self._bad.note(path, 0, f"the file cannot be read: {error.strerror}")
                start = END
        if start == END:
            del self._starts[path]
        return np.int64(start)

    def reached(self, name: bytes, number: np.int64) -> np.bool_:
        """Record that the reading of a file ended before record `number`; return False.

        Raises InputError if the file does not end there and the policy is to stop.
        """
        path, at = _path(name), int(number)
        framing = self._framings.get(path) or walk(path)
        self._framings[path] = framing
        if at < framing.records:
            self._starts[path] = at + 1
            self._bad.note(path, at, wrong_record(path, at))
        else:
            self._starts[path] = END
            if framing.damage is not None:
                self._bad.note(path, framing.records, framing.damage)
        return np.bool_(False)

    def wrong_label(
        self, name: bytes, number: np.int64, record: bytes, low: np.int64, high: np.int64
    ) -> np.bool_:
        """Record a bad label; return False. `low`, `high`: valid range as stored. Raises as `reached`."""
        stored = wrong_fields(record)
        why = stored if isinstance(stored, str) else f"its label {stored} is not between {low} and {high}"
        self._bad.note(_path(name), int(number), why)
        return np.bool_(False)

    def wrong_picture(self, name: bytes, number: np.int64, record: bytes) -> np.bool_:
        """Record that a record's image cannot be decoded; return False. Raises as `reached`."""
        self._bad.note(_path(name), int(number), wrong_picture(record))
        return np.bool_(False)


def fast(paths: Sequence[Path], order: Dataset) -> Dataset:
    """Make a dataset of the records of the files. `order`: a dataset of file numbers."""
    names = tf.constant([str(path) for path in paths])

    def of(file: Tensor) -> Dataset:
        return tf.data.TFRecordDataset(names[file], buffer_size=_READ_BYTES)

    return _in_parallel(order, of, len(paths))


def careful(paths: Sequence[Path], order: Dataset, care: FileReading) -> Dataset:
    """Make a dataset of (file, number of the record in it, record) in the same order; record bad records."""
    names = tf.constant([str(path) for path in paths])

    def of(file: Tensor) -> Dataset:
        name = names[file]

        # A file is read in one stretch, plus one stretch after each skipped record.
        def stretch(start: Tensor) -> Dataset:
            records = tf.data.TFRecordDataset(name, buffer_size=_READ_BYTES).skip(start)
            # An empty record, which is not an example, marks the end of the readable part.
            read = records.ignore_errors().concatenate(tf.data.Dataset.from_tensors(""))
            return read.enumerate(start).filter(is_example)

        def is_example(number: Tensor, record: Tensor) -> Tensor:
            return tf.cond(
                tf.strings.length(record) > 0, lambda: True, lambda: care.ask("reached", name, number)
            )

        def next_start(_: Tensor) -> Tensor:
            return care.ask("next_start", name, dtype=tf.int64)

        starts = tf.data.Dataset.counter().map(next_start).take_while(lambda start: start > END)
        return starts.flat_map(stretch).map(lambda number, record: (file, number, record))

    return _in_parallel(order, of, len(paths))


def _in_parallel(order: Dataset, of: Any, files: int) -> Dataset:
    at_once = min(files, FILES_AT_ONCE)
    return order.interleave(of, cycle_length=at_once, num_parallel_calls=at_once, deterministic=True)


def _path(name: bytes) -> Path:
    return Path(name.decode())
