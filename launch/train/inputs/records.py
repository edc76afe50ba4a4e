"""TFRecords in a fixed order: fast, or without the records that cannot be used.

`fast` is TensorFlow's reader, which stops at the first damage with an error that names no file. `careful`
reads the same records in the same order, each with its file and number; where the reading of a file ends
early, it walks the file's framing (`FileReading`), notes what is wrong where (`BadRecords`), and continues if
possible. A bad record stops the run, or all are left out and counted.
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
END = -1  # in place of a record's number
FILES_AT_ONCE = 10  # files that are read in parallel, as in tf_cnn_benchmarks
_READ_BYTES = 1 << 20  # size of one read
# Bad records come again in each pass. After so many passes without one whole batch hardly anything is good.
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
        """Number of different records left out."""
        return len(self._found)

    @property
    def notices(self) -> tuple[str, ...]:
        """Nothing, or how many records were left out, and which was the first."""
        if not self._found:
            return ()
        records = "1 bad record was" if self.count == 1 else f"{self.count} bad records were"
        return (f"{records} skipped, the first one {self._first}.",)

    def note(self, path: Path, record: int, why: str) -> None:
        """Count record `record` (from 0) of a file as bad.

        Raises InputError where one bad record stops the run, or where hardly any record is good.
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
        """Return the first error: TensorFlow may read on after it, and find more."""
        self.error = self.error or error
        return self.error


class FileReading:
    """A careful reading: where to continue each file. For one file never called from two threads at once."""

    def __init__(self, bad: BadRecords) -> None:
        self._bad = bad
        self._starts: dict[Path, int] = {}
        self._framings: dict[Path, Framing] = {}

    def ask(self, question: str, *given: Any, dtype: Any = tf.bool) -> Tensor:
        """Call a method of this reading by an op, with strings as bytes."""
        answer = tf.numpy_function(getattr(self, question), list(map(tf.convert_to_tensor, given)), dtype)
        answer.set_shape(())
        return answer

    def next_start(self, name: bytes) -> np.int64:
        """Return the record to continue at, or END: then the file's next reading begins at 0 again."""
        path = _path(name)
        start = self._starts.setdefault(path, 0)
        if start == 0:
            try:
                path.open("rb").close()  # TensorFlow would try again for ever
            except OSError as error:
                self._bad.note(path, 0, f"the file cannot be read: {error.strerror}")
                start = END
        if start == END:
            del self._starts[path]
        return np.int64(start)

    def reached(self, name: bytes, number: np.int64) -> np.bool_:
        """Note that the reading of a file ended before record `number`; return False.

        Raises InputError if the file does not end there and a bad record stops the run.
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
        """Note what is wrong with a record; return False. `low`, `high`: as stored. Raises as above."""
        stored = wrong_fields(record)
        why = stored if isinstance(stored, str) else f"its label {stored} is not between {low} and {high}"
        self._bad.note(_path(name), int(number), why)
        return np.bool_(False)

    def wrong_picture(self, name: bytes, number: np.int64, record: bytes) -> np.bool_:
        """Note a record with a label whose picture cannot be made; return False. Raises as above."""
        self._bad.note(_path(name), int(number), wrong_picture(record))
        return np.bool_(False)


def fast(paths: Sequence[Path], order: Dataset) -> Dataset:
    """Make a dataset of the records of the files whose numbers are in `order`."""
    names = tf.constant([str(path) for path in paths])

    def of(file: Tensor) -> Dataset:
        return tf.data.TFRecordDataset(names[file], buffer_size=_READ_BYTES)

    return _in_parallel(order, of, len(paths))


def careful(paths: Sequence[Path], order: Dataset, care: FileReading) -> Dataset:
    """Make a dataset of the same as (file, number of the record in it, record); bad records are noted."""
    names = tf.constant([str(path) for path in paths])

    def of(file: Tensor) -> Dataset:
        name = names[file]

        # A file is read in one stretch, and in one more after each record that had to be left out.
        def stretch(start: Tensor) -> Dataset:
            records = tf.data.TFRecordDataset(name, buffer_size=_READ_BYTES).skip(start)
            # An empty record, which is no example, marks the end of what could be read.
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
