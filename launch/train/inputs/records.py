"""Records that cannot be used: the first one stops the run, or all are left out and counted."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import tensorflow as tf

from gputopo.launch.data.folder import bad_record
from gputopo.launch.train.host_rpc import END, Checks, Report, ask
from gputopo.values.errors import InputError

Policy = Literal["stop", "skip"]
_NAMED = 3  # in the notice
# Bad records come again in each pass. After so many passes without one whole batch hardly anything is good.
_MAX_PASSES = 50


class Found(msgspec.Struct, frozen=True):
    """Record `record` (from 0) of a file is bad.

    `in_order`: it has a place in the order of the examples. `host`: that alone looks at it, as the example is
    one of its own; None: any.
    """

    file: str
    record: int
    why: str
    in_order: bool = False
    host: str | None = None


class BadRecords:
    """The bad records found so far. `policy`: stop or skip."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._found: dict[tuple[Path, int], Found] = {}
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
        """Count record `record` (from 0) of a file as bad. `in_order`: as of `Found`.

        Raises InputError where one bad record stops the run, or where hardly any record is good.
        """
        if self.policy == "stop":
            raise self._failed(bad_record(path, record, why))
        self._again += (path, record) in self._found
        self._found.setdefault((path, record), Found(str(path), record, why, in_order))
        if self._again > _MAX_PASSES * self.count:
            raise self._failed(
                InputError(
                    f"{path.parent} has no full batch: {self.notices[0]}",
                    "download the files again, or use a smaller --batch-size",
                )
            )

    def add(self, there: Iterable[Found], host: str) -> None:
        """Add what another host found. Most are found by each host, which reads all files."""
        for found in there:
            own = msgspec.structs.replace(found, host=host if found.in_order else None)
            self._found.setdefault((Path(found.file), found.record), own)

    def news(self) -> tuple[Found, ...]:
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


def _named(found: Found) -> str:
    where = "" if found.host is None else f" on host {found.host}"
    return f"{Path(found.file).name} record {found.record}{where} ({found.why})"


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
