"""The folder of a run: where it is, what is in it, and how its files are written.

| file          | contents                                                                    |
|---------------|-----------------------------------------------------------------------------|
| spec.json     | what to run (`gputopo.runspec/1`, a user's program: `gputopo.program/1`)    |
| plan.json     | its plan (`gputopo.plan/1`), GPUs by index                                  |
| machine.json  | the planned machine (`gputopo.machine/1`), without identities               |
| events.jsonl  | what happened, line by line (`gputopo.events/1`)                            |
| worker.log    | output of the worker; a user's program has its own stdout and stderr        |
| stacks.log    | stacks of the processes of a user's program that hung                       |
| result.json   | what was measured (`gputopo.result/1`)                                      |
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from gputopo.runs import BoxHistory, data_folder
from gputopo.topology import without_identities
from gputopo.values import schema
from gputopo.values.errors import ExitCode, GputopoError, HardwareError, InputError
from gputopo.values.machine import Machine
from gputopo.values.run.bounded import WrittenSamples
from gputopo.values.run.events import Event, RankFailed, Sample, encode_line
from gputopo.values.run.plan import Plan
from gputopo.values.run.program import ProgramSpec
from gputopo.values.run.result import Result
from gputopo.values.run.several_runs import Screen
from gputopo.values.run.spec import RunSpec

# Files that a run writes. If one exists, it belongs to another run, or to the user.
_WRITTEN = (
    "spec.json",
    "plan.json",
    "machine.json",
    "events.jsonl",
    "worker.log",
    "stacks.log",
    "result.json",
)
_WRITABLE = "use a writable folder with --output, or set GPUTOPO_HOME"
SCREEN_FILE = "screen.json"
MAX_SCREENS = 50  # limit on screens that are read: older ones matter little, and reading takes some ms


class RunFolder:
    """The paths of one run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "spec.json"
        self.events = path / "events.jsonl"
        self.log = path / "worker.log"
        self.stacks = path / "stacks.log"
        self.result = path / "result.json"


def runs_home(environ: Mapping[str, str]) -> Path:
    """Return the folder of all runs: `$GPUTOPO_HOME/runs`, else in the user's data folder."""
    return BoxHistory(data_folder(environ)).runs


def check_output(folder: str | Path | None) -> None:
    """Raise InputError if the user's output folder is a file or has files of a run. Changes nothing."""
    if folder is None:
        return
    output = Path(folder)
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is not a folder", "use a new folder with --output")
    try:
        written = next((name for name in _WRITTEN if (output / name).exists()), None)
    except OSError as error:
        raise InputError(f"cannot look into {output}: {error.strerror}", "use another --output") from error
    if written is not None:
        raise _taken(output, written)


def create_run_folder(
    output: str | Path | None, *, spec: RunSpec | ProgramSpec, plan: Plan, machine: Machine | None
) -> RunFolder:
    """Create the folder of a run, with the files that are known before it starts.

    The folder is `output`, or a new one (see `folder_for`). If several runs start at the same time with one
    `output`, the first gets it. Raises InputError if the folder has a run or cannot be written, and
    HardwareError if the disk is full or broken. Then no files are left.
    """
    check_output(output)
    made: list[Path] = []  # folders, then files
    with contextlib.ExitStack() as undone:
        undone.callback(_remove, made)
        try:
            path = _numbered(spec.model, made) if output is None else _made(Path(output), made)
            folder = RunFolder(path)
            is_new = _created(folder.spec)
        except OSError as error:
            where = output or runs_home(os.environ)
            raise _unmade(f"cannot make the run folder {where}: {error.strerror}", error) from error
        if not is_new:
            raise _taken(path, folder.spec.name)
        written: list[tuple[Path, msgspec.Struct]] = [
            (folder.spec, spec),
            (path / "plan.json", _by_index(plan)),
        ]
        if machine is not None:
            written.append((path / "machine.json", without_identities(machine)))
        made += [file for file, _ in written]
        try:
            for file, value in written:
                schema.write(file, value)
        except InputError as error:
            raise _unmade(error.what, error.__cause__) from error
        undone.pop_all()
    return folder


def write_result(folder: RunFolder, result: Result) -> None:
    """Write result.json completely or not at all. Raises InputError."""
    schema.write(folder.result, result)


def save_result(folder: RunFolder, result: Result) -> Result:
    """Write result.json and return the result; if writing fails, the result has that failure."""
    try:
        write_result(folder, result)
    except InputError as error:
        if result.failure is not None:
            return result
        unsaved = RankFailed(
            time_s=time.time(),
            kind="disk_full",
            cause=error.what,
            remedy="start it again, with a folder for --output that stays during the run"
            if isinstance(error.__cause__, FileNotFoundError)
            else "free some space, or use another folder with --output",
            exit_code=int(ExitCode.HARDWARE),
        )
        return msgspec.structs.replace(result, status="failed", exit_code=unsaved.exit_code, failure=unsaved)
    return result


class EventLog:
    """The events file of a run, written line by line, readable at any time.

    A long run stores only part of its samples (`WrittenSamples`), but all other events.
    """

    def __init__(self, path: Path) -> None:
        """Open the file. Raises OSError."""
        self.path = path
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._size = 0
        self._samples = WrittenSamples()

    def write(self, event: Event) -> None:
        """Write one event as a whole line. Raises OSError, after removing the written part."""
        if isinstance(event, Sample) and not self._samples.has(event):
            return
        line = memoryview(encode_line(event))
        written = 0
        try:
            while written < len(line):
                written += os.write(self._handle, line[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close the file. Raises OSError for an error that comes only now (a network disk)."""
        os.close(self._handle)


def latest_screens(home: Path) -> Iterator[tuple[Path, Screen]]:
    """Yield the folders and contents of the latest screens, latest first; unreadable ones are skipped."""
    files = sorted(home.glob(f"*/{SCREEN_FILE}"), reverse=True) if home.is_dir() else []
    for file in files[:MAX_SCREENS]:
        with contextlib.suppress(OSError, InputError):
            yield file.parent, schema.decode(file.read_bytes(), Screen, origin=str(file))


def folder_for(output: str | None, name: str) -> Path:
    """Return `output`; if that is None, create `<timestamp>-<name>-<n>` in the folder of all runs.

    n is the lowest free number from 1. Raises GputopoError.
    """
    if output is not None:
        return Path(output)
    try:
        return _numbered(name, [])
    except OSError as error:
        home = runs_home(os.environ)
        raise _unmade(f"cannot make a run folder in {home}: {error.strerror}", error) from error


def _numbered(name: str, made: list[Path]) -> Path:
    home = _made(runs_home(os.environ), made)
    stem = f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    number = 1
    while True:
        path = home / f"{stem}-{number}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
            continue
        made.append(path)
        return path


def _made(path: Path, made: list[Path]) -> Path:
    """Create a folder with its parents, and add the new ones to `made`, outermost first."""
    absent = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(absent):
        folder.mkdir(exist_ok=True)
        made.append(folder)
    if not path.is_dir():
        raise NotADirectoryError(20, "not a folder", str(path))
    return path


def _created(file: Path) -> bool:
    """Create the file; False if another run was first, which then has the folder. Raises OSError."""
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _unmade(what: str, cause: BaseException | None) -> GputopoError:
    """The error if a run folder could not be created, because of its name or the disk."""
    if isinstance(cause, OSError) and cause.errno in schema.DISK_ERRORS:
        return HardwareError(what, "free some space, or use a folder on another disk with --output")
    return InputError(what, _WRITABLE)


def _taken(output: Path, file: str) -> InputError:
    return InputError(f"{output} already holds a run, or its {file}", "use a new folder with --output")


def _remove(made: list[Path]) -> None:
    """Remove the created files and folders, last first, except folders that others use by now."""
    for path in reversed(made):
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()


def _by_index(plan: Plan) -> Plan:
    """The plan without identities: GPUs by index, in PCI order."""
    if "GPU-" not in plan.environment.get("CUDA_VISIBLE_DEVICES", ""):
        return plan
    by_index = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, plan.choice.gpus)),
    }
    return msgspec.structs.replace(plan, environment={**plan.environment, **by_index})
