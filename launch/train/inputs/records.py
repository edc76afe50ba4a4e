"""TFRecords in a fixed order: fast, or with each record that cannot be used named.

`fast` is TensorFlow's reader, which stops at the first damage with an error that names no file. `careful`
reads the same records in the same order, each with its file and number; where the reading of a file ends
early, the host that reads walks the file's framing (`FileReading`), notes what is wrong where
(`BadRecords`), and continues if possible. A bad record stops the run, or all are left out and counted.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np
import tensorflow as tf

from gputopo.launch.data.examples import wrong_fields, wrong_picture
from gputopo.launch.data.folder import bad_record
from gputopo.launch.data.tfrecords import Framing, walk, wrong_record
from gputopo.launch.train.host_rpc import Answer, ask
from gputopo.values.errors import InputError

Dataset = Any
Tensor = Any
Policy = Literal["stop", "skip"]
_Version = tuple[int, int, int, int]  # differs after a file was changed or replaced
END = -1  # in place of a record's number
FILES_AT_ONCE = 10  # files that are read in parallel, as in tf_cnn_benchmarks
_READ_BYTES = 1 << 20  # size of one read
_TRIES = 1024  # reads of a record between two checks whether the file can be opened
_NAMED = 3  # in the notice
# Bad records come again in each pass. After so many passes without one whole batch hardly anything is good.
_MAX_PASSES = 50


class BadRecord(msgspec.Struct, frozen=True):
    """Record `record` (from 0) of a file is bad."""

    file: str
    record: int
    why: str
    in_order: bool = False  # it has a place in the order of the examples
    host: str | None = None  # that alone looks at it, as the example is one of its own; None: any


class BadRecords:
    """The bad records found so far. `policy`: stop or skip."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._found: dict[tuple[Path, int], BadRecord] = {}
        self._told = 0  # of them, as `news`
        self._again = 0
        self.error: InputError | None = None

    @property
    def skips(self) -> bool:
        """Whether they are left out, and the run goes on."""
        return self.policy == "skip"

    @property
    def count(self) -> int:
        """Number of different records left out."""
        return len(self._found)

    @property
    def took_places(self) -> bool:
        """Whether one has a place in the order of the examples."""
        return any(found.in_order for found in list(self._found.values()))

    @property
    def files(self) -> set[Path]:
        """The files that they are in."""
        return {path for path, _ in list(self._found)}

    @property
    def notices(self) -> tuple[str, ...]:
        """Nothing, or how many records were left out, with the first of them."""
        if not self._found:
            return ()
        named = ", ".join(_named(found) for found in list(self._found.values())[:_NAMED])
        more = ", ..." if self.count > _NAMED else ""
        plural = "record was" if self.count == 1 else "records were"
        return (f"{self.count} bad {plural} left out: {named}{more}.",)

    def note(self, path: Path, record: int, why: str, *, in_order: bool = False) -> None:
        """Count record `record` (from 0) of a file as bad. `in_order`: as of `BadRecord`.

        Raises InputError where one bad record stops the run, or where hardly any record is good.
        """
        if self.policy == "stop":
            raise self._failed(bad_record(path, record, why))
        self._again += (path, record) in self._found
        self._found.setdefault((path, record), BadRecord(str(path), record, why, in_order))
        if self._again > _MAX_PASSES * self.count:
            raise self._failed(
                InputError(
                    f"{path.parent} has no full batch: {self.notices[0]}",
                    "download the files again, or use a smaller --batch-size",
                )
            )

    def add(self, there: Iterable[BadRecord], host: str) -> None:
        """Add what another host found. Most are found by each host, which reads all files."""
        for found in there:
            own = msgspec.structs.replace(found, host=host if found.in_order else None)
            self._found.setdefault((Path(found.file), found.record), own)

    def news(self) -> tuple[BadRecord, ...]:
        """Return those that were found since the last call."""
        fresh = tuple(islice(list(self._found.values()), self._told, None))
        self._told += len(fresh)
        return fresh

    def batch_made(self) -> None:
        """Restart the count of passes: good records were read."""
        self._again = 0

    def _failed(self, error: InputError) -> InputError:
        """Return the first error: TensorFlow may read on after it, and find more."""
        self.error = self.error or error
        return self.error


def _named(found: BadRecord) -> str:
    where = "" if found.host is None else f" on host {found.host}"
    return f"{Path(found.file).name} record {found.record}{where} ({found.why})"


class ReadingReport(msgspec.Struct, frozen=True):
    """Bad records that a host found since its last report, and the error that ended its reading."""

    found: tuple[BadRecord, ...]
    error: tuple[str, str] | None


class FileReading:
    """Where to continue each file. For one file never called from two threads at once."""

    def __init__(self, bad: BadRecords) -> None:
        self._bad = bad
        self._starts: dict[Path, int] = {}
        self._framings: dict[Path, tuple[_Version, Framing]] = {}

    def can_be_opened(self, name: bytes) -> np.bool_:
        """Whether a file can be opened now. If not, `reached` is called next, which notes why."""
        try:
            _path(name).open("rb").close()
        except OSError:
            return np.bool_(False)
        return np.bool_(True)

    def next_start(self, name: bytes) -> np.int64:
        """Return the record to continue at, or END: then the file's next reading begins at 0 again."""
        path = _path(name)
        start = self._starts.setdefault(path, 0)
        if start == END:
            del self._starts[path]
        return np.int64(start)

    def reached(self, name: bytes, number: np.int64) -> np.bool_:
        """Note that the reading of a file ended before record `number`; return False.

        Raises InputError if the file does not end there and a bad record stops the run.
        """
        path, at = _path(name), int(number)
        framing = self._framing(path)
        if at < framing.records:
            self._starts[path] = at + 1
            self._bad.note(path, at, _why(path, at))
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
        why = stored if isinstance(stored, str) else f"its label {stored} is none of {low} to {high}"
        self._bad.note(_path(name), int(number), why)
        return np.bool_(False)

    def wrong_picture(self, name: bytes, number: np.int64, record: bytes) -> np.bool_:
        """Note a record with a label whose picture cannot be made; return False. Raises as above."""
        self._bad.note(_path(name), int(number), wrong_picture(record), in_order=True)
        return np.bool_(False)

    def report(self) -> bytes:
        """Return the Report after a batch."""
        self._bad.batch_made()
        error = self._bad.error
        known = None if error is None else (error.what, error.hint)
        return msgspec.json.encode(ReadingReport(self._bad.news(), known))

    def _framing(self, path: Path) -> Framing:
        """Walk a file once, and again after it has changed."""
        try:
            version = _version(path)
            if path not in self._framings or self._framings[path][0] != version:
                self._framings[path] = version, walk(path)
        except OSError as error:
            return Framing(0, f"the file cannot be read: {error.strerror}")
        return self._framings[path][1]


class Readings:
    """What ops of a careful reading ask in the process that reads: of its newest reading."""

    def __init__(self) -> None:
        self._newest = -1, FileReading(BadRecords("skip"))

    def begin(self, number: int, bad: BadRecords) -> None:
        """Begin a reading. Ops of the one before, which is dropped, get answers that end it."""
        self._newest = number, FileReading(bad)

    def answer(self, question: bytes, number: np.int64, *about: Any) -> Answer:
        """Answer an op of the reading with this number; raises what a question about a reading raises."""
        if question == b"begin":
            self.begin(int(number), BadRecords(cast(Policy, about[0].decode())))
            return np.bool_(True)
        newest, reading = self._newest
        if number != newest:
            return np.int64(END) if question == b"next_start" else np.bool_(False)
        answer: Answer = getattr(reading, question.decode())(*about)
        return answer


@dataclass(frozen=True)
class Care:
    """A careful reading, by its number, and this process's readings; None: another host reads."""

    number: int
    readings: Readings | None

    def begin(self, bad: BadRecords) -> None:
        """Let the process that reads begin; that of another host notes bad records of its own."""
        if self.readings is not None:
            self.readings.begin(self.number, bad)
        else:
            self.ask("begin", bad.policy).numpy()

    def ask(self, question: str, *given: Any, dtype: Any = tf.bool) -> Tensor:
        """Ask about this reading, by an op on the device in scope."""
        answering = None if self.readings is None else self.readings.answer
        return ask(answering, question, np.int64(self.number), *given, dtype=dtype)

    def report(self) -> ReadingReport:
        """Return what was found since the last report."""
        answer: bytes = self.ask("report", dtype=tf.string).numpy()
        return msgspec.json.decode(answer, type=ReadingReport)


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


def digest(name: bytes) -> bytes:
    """Return a digest of a file of this host; nothing for one that cannot be read."""
    try:
        with _path(name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return b""


def _path(name: bytes) -> Path:
    return Path(name.decode())


def _version(path: Path) -> _Version:
    now = path.stat()
    return now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns


def _why(path: Path, record: int) -> str:
    try:
        return wrong_record(path, record)
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
