"""What a host does in Python for rank 0: where a damaged file goes on, why a record is bad, files, a trace.

Ops of TensorFlow call it. An op finds a Python function in its own process alone, by a token.
So the server of another host registers its `Checks` before it serves, and what rank 0 puts on that host calls
them there.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import psutil
import tensorflow as tf

from gputopo.launch.data.examples import wrong_fields, wrong_picture
from gputopo.launch.data.folder import Subset, listed
from gputopo.launch.data.tfrecords import Framing, walk, wrong_record
from gputopo.launch.train.inputs.records import BadRecords, Found, Policy
from gputopo.launch.train.lifecycle.profile import HostProfile

Tensor = Any
Answer = np.bool_ | np.int64 | bytes
_Version = tuple[int, int, int, int]  # differs after a file was changed or replaced
_TOKEN = "pyfunc_0"  # of the first function that a process registers
END = -1


class Report(msgspec.Struct, frozen=True):
    """Bad records that a host found since its last report, and the error that ended its reading."""

    found: tuple[Found, ...]
    error: tuple[str, str] | None


class Reading:
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
        return msgspec.json.encode(Report(self._bad.news(), known))

    def _framing(self, path: Path) -> Framing:
        """Walk a file once, and again after it has changed."""
        try:
            version = _version(path)
            if path not in self._framings or self._framings[path][0] != version:
                self._framings[path] = version, walk(path)
        except OSError as error:
            return Framing(0, f"the file cannot be read: {error.strerror}")
        return self._framings[path][1]


class Checks:
    """The answers of a process, for ops of the newest reading, and for such as ask about the host."""

    def __init__(self) -> None:
        self._newest = -1, Reading(BadRecords("skip"))
        profile = HostProfile()
        self._of_host: dict[bytes, Callable[..., Answer]] = {
            b"begin": self._begin,
            b"files": _files,
            b"digest": digest,
            b"free_bytes": lambda: np.int64(psutil.virtual_memory().available),
            b"trace": profile.begin,
            b"traced": profile.end,
        }

    def begin(self, number: int, bad: BadRecords) -> None:
        """Begin a reading. Ops of the one before, which is dropped, get answers that end it."""
        self._newest = number, Reading(bad)

    def answer(self, question: bytes, *given: Any) -> Answer:
        """Answer an op; raises what a question about a reading raises."""
        if question in self._of_host:
            return self._of_host[question](*given)
        number, reading = self._newest
        asked, *about = given
        if asked != number:
            return np.int64(END) if question == b"next_start" else np.bool_(False)
        of_reading: dict[bytes, Callable[..., Answer]] = {
            b"can_be_opened": reading.can_be_opened,
            b"next_start": reading.next_start,
            b"reached": reading.reached,
            b"wrong_label": reading.wrong_label,
            b"wrong_picture": reading.wrong_picture,
            b"report": reading.report,
        }
        return of_reading[question](*about)

    def _begin(self, number: np.int64, policy: bytes) -> Answer:
        self.begin(int(number), BadRecords(cast(Policy, policy.decode())))
        return np.bool_(True)


def register(checks: Checks) -> Any:
    """Let ops that another process puts on this one's devices call these checks, while the returned is kept.

    They must be the first Python function that this process gives TensorFlow.
    """
    with tf.Graph().as_default() as kept:
        op = tf.numpy_function(checks.answer, [""], tf.bool).op
    assert op.get_attr("token") == _TOKEN.encode(), "another function was registered first"
    return kept


def ask(checks: Checks | None, question: str, *given: Any, dtype: Any) -> Tensor:
    """Ask by an op on the device in scope. `checks`: of this process; None: of the server on that device."""
    arguments = [tf.constant(question), *map(tf.convert_to_tensor, given)]
    if checks is None:
        (answer,) = tf.raw_ops.PyFunc(input=arguments, token=_TOKEN, Tout=[dtype])
    else:
        answer = tf.numpy_function(checks.answer, arguments, dtype)
    answer.set_shape(())
    return answer


def digest(name: bytes) -> bytes:
    """Return a digest of a file of this host; nothing for one that cannot be read."""
    try:
        with _path(name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return b""


def _files(folder: bytes, name: bytes, subset: bytes) -> bytes:
    return msgspec.json.encode(listed(_path(folder), name.decode(), cast(Subset, subset.decode())))


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
