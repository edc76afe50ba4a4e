"""Run folders and JSON documents of gputopo as measurements, also of runs that were killed."""

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from gputopo.measurements.from_ours import of_result
from gputopo.measurements.study import Study
from gputopo.runs.history import fingerprint
from gputopo.runs.repeats import Repeats
from gputopo.runs.summary import summarise
from gputopo.values import schema
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine
from gputopo.values.run.events import read_events
from gputopo.values.run.measurement import Measurement
from gputopo.values.run.result import Result

MAX_DOCUMENT_BYTES = 64 * 2**20  # of a result or a machine; those of 16 GPUs have 100 KiB
MAX_EVENTS_BYTES = 1024 * 2**20  # of the events of one run, which are read line by line
_GIVE = "give the folder of a run, its result.json, or what gputopo report --json wrote"


class RunFolders:
    """Reads run folders; `machines` are those of the runs so far, by the name in their measurements."""

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}

    def run(self, path: Path) -> Measurement | None:
        """Return the run of a folder, or of its events file. Raises InputError where neither can be read."""
        folder = path if path.is_dir() else path.parent
        result, digest = _result(folder)
        if result is None or not (result.spec or result.devices):
            return None
        machine = _machine(folder)
        name = None if machine is None else machine_name(machine)
        if machine is not None and name is not None:
            self.machines[name] = machine
        return of_result(
            result,
            source=str(folder),
            machine=name,
            cpu=machine.host.cpu_model if machine else None,
            gpus={gpu.index: gpu.name for gpu in machine.gpus if gpu.name} if machine else {},
            time_s=_time(folder),
            digest=digest,
        )

    def document(self, data: bytes, origin: str) -> Sequence[Measurement]:
        """Return the measurements of a JSON document: a result, repeats, a study. Raises InputError."""
        kind = schema.schema_of(data)
        digest = hashlib.sha256(data).hexdigest()
        if kind == "gputopo.result/1":
            return (of_result(schema.decode(data, Result, origin=origin), source=origin, digest=digest),)
        if kind == "gputopo.repeats/1":
            runs = schema.decode(data, Repeats, origin=origin).runs
            return tuple(of_result(run, source=f"{origin}#{n}") for n, run in enumerate(runs, 1))
        if kind == "gputopo.study/1":
            return _of_study(schema.decode(data, Study, origin=origin))
        return ()


def machine_name(machine: Machine) -> str | None:
    """Return a name of a machine by its hardware: `6x GeForce GTX 1070 (3f2a9c)`; None: it is not known."""
    known = fingerprint(machine)
    if known is None:
        return None
    counts = Counter((gpu.name or "GPU").removeprefix("NVIDIA ") for gpu in machine.gpus)
    words = " + ".join(f"{count}x {name}" for name, count in counts.items()) or machine.host.cpu_model
    return f"{words} ({known[:6]})"


def _of_study(study: Study) -> tuple[Measurement, ...]:
    """Return each repeat of each cell, and one measurement for each cell without a figure."""
    found = []
    for cell in study.figures.cells:
        if not cell.repeats:
            found.append(cell.of)
        for number, speed in enumerate(cell.repeats):
            source = cell.sources[number] if number < len(cell.sources) else cell.of.source
            found.append(msgspec.structs.replace(cell.of, images_per_sec=speed, source=source, digest=None))
    return tuple(found)


def _result(folder: Path) -> tuple[Result | None, str | None]:
    """Return the result of a run, derived from its events where it has none that can be read."""
    file, events = folder / "result.json", folder / "events.jsonl"
    if file.is_file():
        try:
            data = _bytes(file)
            return schema.decode(data, Result, origin=str(file)), hashlib.sha256(data).hexdigest()
        except InputError:
            if not events.is_file():
                raise
    return _from_events(events), None


def _from_events(file: Path) -> Result:
    try:
        if file.stat().st_size > MAX_EVENTS_BYTES:
            raise InputError(f"{file} is larger than {MAX_EVENTS_BYTES >> 30} GiB", _GIVE)
        with file.open("rb") as lines:
            return summarise(read_events(lines, origin=str(file)))
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}", _GIVE) from error


def _machine(folder: Path) -> Machine | None:
    file = folder / "machine.json"
    with contextlib.suppress(OSError, InputError):
        return _decoded(_bytes(file))
    return None


@cache
def _decoded(data: bytes) -> Machine:
    """Return a machine; most runs of a box have the same document."""
    return schema.decode(data, Machine, origin="machine.json")


def _bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}", _GIVE) from error
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InputError(f"{file} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB", _GIVE)
    return data


def _time(folder: Path) -> float | None:
    for name in ("result.json", "events.jsonl"):
        with contextlib.suppress(OSError):
            return os.stat(folder / name).st_mtime
    return None
