"""Files and folders of measurements: detects what each file is, and reads it within limits.

A folder is searched completely, links are not followed, and files without measurements are counted. A file
that was given by its own path must have measurements.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from gputopo.captures import (
    intake,
    limits,
    training_keras,
    training_table,
    training_tensorpack,
    training_tf_cnn,
)
from gputopo.captures.training_paths import facts_of
from gputopo.values.errors import InputError
from gputopo.values.run.measurement import Measurement
from gputopo.values.run.several_runs import EXAMPLES, MANIFEST

MAX_LOG_BYTES = 16 * 2**20  # one training log; a day of steps has less
MAX_FILES = 200_000  # files examined, in all folders together
MAX_MEASUREMENTS = 100_000
LARGE = f"is larger than {MAX_LOG_BYTES >> 20} MiB, more than any log of training"
BINARY = "is a binary file, not a log"
UNKNOWN = "is not a training log, a table of measurements or a result of gputopo"
_HINT = (
    "give logs of tf_cnn_benchmarks, tensorpack, Keras or Horovod, a CSV table with model and "
    "images_per_sec, or run folders of gputopo: gputopo explain report"
)
_LEFT_OUT = frozenset({".git", ".venv", "__pycache__", "node_modules", "autotune"})
# A file of a searched folder with another ending is skipped if it cannot be read: data, pictures, models.
_OF_LOGS = frozenset({"", ".log", ".txt", ".out", ".csv", ".json", ".jsonl"})
_OURS = frozenset({"result.json", "events.jsonl"})  # either file makes a folder a gputopo run


class FoundMeasurements(NamedTuple):
    """The measurements. `unread`: unreadable files, with reasons; `passed`: number of other files."""

    measurements: tuple[Measurement, ...]
    unread: tuple[tuple[str, str], ...] = ()
    passed: int = 0


ReadRun = Callable[[Path], Measurement | None]
ReadJson = Callable[[bytes, str], Sequence[Measurement] | None]


def read_measurements(paths: Iterable[str], *, read_run: ReadRun, read_json: ReadJson) -> FoundMeasurements:
    """Return all measurements of files and folders, in the order given; names in a folder are sorted.

    `read_run` reads a run folder of gputopo, `read_json` a JSON document of gputopo. Raises InputError if a
    path does not exist, or if a file given by its own path has no measurement.
    """
    measured: list[Measurement] = []
    unread: list[tuple[str, str]] = []
    passed = looked_at = 0
    for given in paths:
        path = Path(given)
        for file, named in _files(path):
            looked_at += 1
            if looked_at > MAX_FILES or len(measured) > MAX_MEASUREMENTS:
                raise limits.TooMuchError(
                    f"{given} has more than {MAX_FILES:,} files, or {MAX_MEASUREMENTS:,} measurements",
                    "give folders in it",
                )
            try:
                some = _read_file_or_run(file, read_run, read_json)
            except InputError as error:
                if named:
                    raise
                if file.is_dir() or file.suffix in _OF_LOGS:
                    unread.append((str(file), error.what))
                else:
                    passed += 1
                continue
            if some is None:
                if named:
                    raise InputError(f"{file} {UNKNOWN}", _HINT)
                passed += 1
                continue
            measured += some
    measurements = tuple(replace(run, source=encodable(run.source)) for run in measured)
    return FoundMeasurements(measurements, tuple(unread), passed)


def encodable(path: str) -> str:
    """Return a path as text that any file can store: bytes that are not UTF-8 become `\\xff`."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _files(path: Path) -> Iterator[tuple[Path, bool]]:
    """Iterate over the files and run folders of a path; the flag says whether the path itself was given."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        reason = (
            "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        )
        raise InputError(f"{path} {reason}", "check the path") from error
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not a path: {error}", "check the path") from error
    if not stat.S_ISDIR(mode):
        yield path, True
        return
    for folder, inner, files in os.walk(path):
        inner[:] = sorted(name for name in inner if name not in _LEFT_OUT and not name.startswith("."))
        if _OURS & set(files):
            yield Path(folder), False
            continue
        if MANIFEST in files and EXAMPLES in inner:
            inner.remove(EXAMPLES)
        for name in sorted(files):
            yield Path(folder, name), False


def _read_file_or_run(path: Path, read_run: ReadRun, read_json: ReadJson) -> Sequence[Measurement] | None:
    """Return the measurements of a file or a run folder, or None if it is something else."""
    if path.is_dir() or path.name == "events.jsonl":
        run = read_run(path)
        return () if run is None else (run,)
    data = _content(path)
    if data is None:
        return None
    if data[:1] == b"{" and b'"schema"' in data[:4096]:
        return read_json(data, str(path))
    text = intake.decoded(data)
    if text is None:
        raise InputError(f"{path} {BINARY}", _HINT)
    return parse(text, origin=str(path), digest=hashlib.sha256(data).hexdigest())


def parse(text: str, *, origin: str, digest: str | None = None) -> tuple[Measurement, ...] | None:
    """Return the measurements of a text, or None if it has none. `origin`: its path, which may have facts."""
    if training_table.detect(text):
        return training_table.parse(text, origin=origin)
    facts = facts_of(origin)
    runs: Sequence[Measurement]
    with limits.limited_time(origin):
        if training_tensorpack.detect(text):
            runs = (training_tensorpack.parse(text, origin=origin),)
        elif training_keras.is_horovod(text):
            runs = (training_keras.parse_horovod(text, origin=origin),)
        elif training_keras.is_keras(text):
            runs = (training_keras.parse_keras(text, origin=origin),)
        elif training_tf_cnn.detect(text) or facts:
            runs = training_tf_cnn.parse(text, origin=origin)
        else:
            return None
    if len(runs) == 1:
        return (_with_facts(runs[0], facts, digest),)
    return tuple(
        replace(run, source=f"{origin}#{number}", digest=f"{digest}#{number}" if digest else None)
        for number, run in enumerate(runs, 1)
    )


# Facts of a run in its log have priority over facts in the names of its folders.
_OF_THE_LOG = ("model", "batch_per_gpu", "n_gpus", "variable_update", "data")


def _with_facts(run: Measurement, facts: dict[str, object], digest: str | None) -> Measurement:
    """Return a measurement with the facts in its path, and with the contradictions between path and log."""
    known = {
        name: getattr(run, name)
        for name in _OF_THE_LOG
        if name in facts and getattr(run, name) not in (None, "unknown") and run.version is not None
    }
    against = [
        f"the name says {name} {facts[name]}, the log {value}"
        for name, value in known.items()
        if facts[name] != value
    ]
    stated = {name: value for name in ("gpu", "all_reduce", "xla") if (value := getattr(run, name))}
    return replace(run, **{**facts, **known, **stated}, conditions=tuple(against), digest=digest)


def _content(path: Path) -> bytes | None:
    """Return the bytes of a regular file, or None for a device or a pipe. Raises InputError."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                return None
            if facts.st_size > MAX_LOG_BYTES:
                raise InputError(f"{path} {LARGE}", "give the part with the header, the steps and the total")
            return file.read()
    except OSError as error:
        why = f"cannot read {path}: {error.strerror}"
        raise InputError(why, "change its permissions, or remove it from the list") from error
