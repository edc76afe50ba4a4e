"""Run folders and JSON documents of gputopo as measurements, including killed runs."""

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gputopo.measurements.from_ours import of_result
from gputopo.runs import read_over_time, summarise
from gputopo.topology import fingerprint
from gputopo.values import schema
from gputopo.values.errors import InputError
from gputopo.values.machine import Machine
from gputopo.values.run.events import read_events
from gputopo.values.run.measurement import BUSY, Measurement
from gputopo.values.run.over_time import OneRun
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import FOLDER, MANIFEST, Repeats, Sweep, SweepCell
from gputopo.values.study import Study

MAX_DOCUMENT_BYTES = 64 * 2**20  # of a result or a machine; documents of 16 GPUs have 100 KiB
MAX_EVENTS_BYTES = 1024 * 2**20  # for the events of one run, which are read line by line
_GIVE = "give the folder of a run, its result.json, or what gputopo report --json wrote"


class RunFolders:
    """Reads run folders.

    `machines`: the machines of the runs so far, by their name in the measurements. `runs`: the folders, with
    their measurements. `failed`: sweep cells that failed before they had a folder, each with the reason.
    `unfinished`: a sentence for each sweep that did not finish.
    """

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}
        self.runs: list[tuple[Path, Measurement]] = []
        self.failed: list[tuple[str, str]] = []
        self.unfinished: dict[str, None] = {}
        self._sweeps: dict[Path, dict[str, SweepCell]] = {}

    def run(self, path: Path) -> Measurement:
        """Return the run of a folder, or of its events file.

        Raises InputError if neither can be read, or if the run ended before its first event.
        """
        folder = path if path.is_dir() else path.parent
        result, digest = _result(folder)
        if not (result.spec or result.devices):
            cause = f": {result.failure.cause}" if result.failure else ""
            raise InputError(f"{folder} has a run that ended before it started{cause}", _GIVE)
        machine, name = _machine(folder)
        if machine is not None and name is not None:
            self.machines[name] = machine
        measurement = of_result(
            result,
            source=str(folder),
            machine=name,
            cpu=machine.host.cpu_model if machine else None,
            gpus={gpu.index: gpu.name for gpu in machine.gpus if gpu.name} if machine else {},
            time_s=_written_s(folder),
            digest=digest,
            conditions=self._of_sweep(folder),
        )
        self.runs.append((folder, measurement))
        return measurement

    def most_telling(self, limit: int) -> list[OneRun]:
        """Return at most `limit` runs, oldest first: runs that failed or were slow, then the latest runs.

        Folders that have neither a result nor events any more are skipped.
        """
        ordered = sorted(self.runs, key=lambda run: run[1].time_s or 0.0)
        ranked = sorted(
            range(len(ordered)),
            key=lambda place: (ordered[place][1].is_measured and not ordered[place][1].conditions, -place),
        )
        runs = (_one_run(ordered[place][0]) for place in sorted(ranked[:limit]))
        return [run for run in runs if run is not None]

    def _of_sweep(self, folder: Path) -> tuple[str, ...]:
        manifest = folder.parent.parent / MANIFEST
        if folder.parent.name != FOLDER:
            return ()
        if manifest not in self._sweeps:
            cells = {}
            with contextlib.suppress(OSError, InputError):
                sweep = schema.decode(_bytes(manifest), Sweep, origin=str(manifest))
                cells = {cell.name: cell for cell in sweep.cells}
            self._sweeps[manifest] = cells
        cell = self._sweeps[manifest].get(folder.name)
        if cell is None or not cell.beside_other_work:
            return ()
        share = (
            ""
            if cell.other_cpu_share is None
            else f" (other programs used {100 * cell.other_cpu_share:.0f}% of the CPU)"
        )
        return (f"{BUSY}{share}",)

    def document(self, data: bytes, origin: str) -> Sequence[Measurement] | None:
        """Return the measurements of a JSON document: a result, repeats or a study.

        Other gputopo documents have no measurements: the runs of a sweep are read from their folders. Returns
        None if the document is not from gputopo. Raises InputError for an invalid document or a newer
        version.
        """
        kind, digest = schema.schema_of(data) or "", hashlib.sha256(data).hexdigest()
        name = kind.rpartition("/")[0]
        if name == "gputopo.result":
            return (of_result(schema.decode(data, Result, origin=origin), source=origin, digest=digest),)
        if name == "gputopo.repeats":
            runs = schema.decode(data, Repeats, origin=origin).runs
            return tuple(of_result(run, source=f"{origin}#{n}") for n, run in enumerate(runs, 1))
        if name == "gputopo.study":
            study = schema.decode(data, Study, origin=origin)
            return tuple(run for cell in study.figures.cells for run in cell.runs)
        if name == "gputopo.sweep":
            self._note_sweep(schema.decode(data, Sweep, origin=origin), Path(origin))
        return () if name.startswith("gputopo.") else None

    def _note_sweep(self, sweep: Sweep, file: Path) -> None:
        """Note how many cells of a sweep have not run, and those that failed before they had a folder."""
        states = Counter(cell.state for cell in sweep.cells)
        if left := states["pending"] + states["running"]:
            have = "has" if left == 1 else "have"
            says = f"Interrupted: {left} of {len(sweep.cells)} cells of a sweep {have} not run."
            self.unfinished[says] = None
        folders = {folder.name for folder in (file.parent / FOLDER).glob("*")}
        for cell in sweep.cells:
            if cell.state == "failed" and cell.name not in folders:
                self.failed.append((f"{file}, cell {cell.number}", cell.reason or "failed"))


def machine_name(machine: Machine) -> str | None:
    """Return a name for a machine's hardware, `6x GeForce GTX 1070 (3f2a9c)`, or None if it is unknown."""
    known = fingerprint(machine)
    if known is None:
        return None
    counts = Counter((gpu.name or "GPU").removeprefix("NVIDIA ") for gpu in machine.gpus)
    words = " + ".join(f"{count}x {name}" for name, count in counts.items()) or machine.host.cpu_model
    return f"{words} ({known[:6]})"


def _result(folder: Path) -> tuple[Result, str | None]:
    """Return the result of a run; derived from its events if there is no readable result."""
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


def _machine(folder: Path) -> tuple[Machine | None, str | None]:
    """Return the machine of a run and its name.

    For a short run, the machine is in the folder of its screen.
    """
    if not (folder / "machine.json").is_file():
        folder = folder.parent.parent
    with contextlib.suppress(OSError, InputError):
        return _decoded(_bytes(folder / "machine.json"))
    return None, None


@cache
def _decoded(data: bytes) -> tuple[Machine, str | None]:
    """Return a machine and its name. Cached: most runs of a box have the same document."""
    machine = schema.decode(data, Machine, origin="machine.json")
    return machine, machine_name(machine)


def _bytes(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            if os.fstat(opened.fileno()).st_size > MAX_DOCUMENT_BYTES:
                raise InputError(f"{file} is larger than {MAX_DOCUMENT_BYTES >> 20} MiB", _GIVE)
            return opened.read()
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}", _GIVE) from error


def _written_s(folder: Path) -> float | None:
    for name in ("result.json", "events.jsonl"):
        with contextlib.suppress(OSError):
            return os.stat(folder / name).st_mtime
    return None


def _one_run(folder: Path) -> OneRun | None:
    from gputopo.findings import find  # not in a report without pictures

    curves = None
    try:
        result, _ = _result(folder)
    except InputError:
        return None
    with contextlib.suppress(OSError, InputError), (folder / "events.jsonl").open("rb") as lines:
        curves = read_over_time(read_events(lines, origin=lines.name))
    machine, _ = _machine(folder)
    return OneRun(
        name=folder.name,
        result=result,
        machine=machine,
        findings=() if machine is None else find(machine),
        over_time=curves,
    )
