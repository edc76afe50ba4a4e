"""The folders that a run writes to: checks that they can be written, and moves an export to its folder.

An export's folder must be empty before training, except for remains of killed exports.
"""

import errno
import os
import re
import shutil
import tempfile
from pathlib import Path

import psutil

from gputopo.values.errors import ExitCode, GputopoError, UsageError

_TEMPORARY = re.compile(r"\.export-(?P<pid>[1-9]\d{0,8})")
# By option for a folder: the kind of its DiskErrors, and what is written there.
_WRITTEN_BY = {
    "--checkpoints": ("checkpoint", "checkpoints"),
    "--export": ("export", "the exported model"),
    "--trace": ("trace", "the trace"),
    "--tensorboard": ("tensorboard", "TensorBoard's scalars"),
}
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskError(GputopoError):
    """A file cannot be written to the disk. `kind`: what it is, as in RankFailed."""

    exit_code = ExitCode.HARDWARE

    def __init__(self, what: str, hint: str, kind: str = "checkpoint") -> None:
        super().__init__(what, hint)
        self.kind = kind


class FolderError(DiskError):
    """The folder that the user gave cannot be written, before training: the user must give another one."""

    exit_code = ExitCode.USAGE


def require_writable(folder: Path, option: str = "--checkpoints", named_by: str | None = None) -> None:
    """Create the folder if necessary, and try to write to it. Call this before training.

    `option`: the option that requests the files; `named_by`: the option that gives their folder, None: the
    same. Raises FolderError if the folder cannot be written, and DiskError if there is no free space.
    """
    kind, what = _WRITTEN_BY[option]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".try"):
            pass
    except OSError as error:
        fault, todo = (
            (DiskError, "free some space, or use another folder")
            if error.errno in _NO_ROOM
            else (FolderError, "use a writable folder")
        )
        raise fault(
            f"cannot write {what} in {folder}: {error.strerror or error}",
            f"{todo} with {named_by or option}",
            kind,
        ) from error


def temporary_in(folder: Path) -> Path:
    """Return the folder to which this process writes its export before it is moved to `folder`.

    It is inside `folder`, because `folder` may be a link or a mount whose parent cannot be written.
    """
    return folder / f".export-{os.getpid()}"


def require_empty(folder: Path) -> None:
    """Remove the remains of killed exports from a folder. Raises UsageError if it is not empty then."""
    for path in folder.iterdir():
        temporary = _TEMPORARY.fullmatch(path.name)
        # In a container its PID may now be this process's own.
        if temporary and (
            int(temporary["pid"]) == os.getpid() or not psutil.pid_exists(int(temporary["pid"]))
        ):
            shutil.rmtree(path, ignore_errors=True)
    if any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", "use a new folder with --export")


def move_all(source: Path, target: Path) -> None:
    """Move all contents of a folder to another one. If that fails, move everything back and raise OSError.

    Subfolders are moved first: if another export has finished meanwhile, the system refuses to replace its
    subfolder, while it would replace a file.
    """
    moved = []
    try:
        for path in sorted(source.iterdir(), key=Path.is_file):
            moved.append(path.rename(target / path.name))
    except OSError:
        for path in moved:
            path.rename(source / path.name)
        raise
