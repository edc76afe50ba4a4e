"""The folders that a run writes in: whether they can be written, and how an export gets into its own.

An export's folder is empty before training, but for what exports that were killed have left in it.
"""

import errno
import os
import re
import shutil
import tempfile
from pathlib import Path

from gputopo.values.errors import ExitCode, GputopoError, UsageError

_TEMPORARY = re.compile(r"\.export-(?P<pid>[1-9]\d{0,8})")
# What is written in a folder that an option names: the kind of a DiskError, and its words.
_WRITTEN_BY = {
    "--checkpoints": ("checkpoint", "checkpoints"),
    "--export": ("export", "the exported model"),
    "--trace": ("trace", "the trace"),
    "--tensorboard": ("tensorboard", "TensorBoard's scalars"),
}
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskError(GputopoError):
    """The disk does not take what was to be written. `kind`: what that is, as RankFailed names it."""

    exit_code = ExitCode.HARDWARE

    def __init__(self, what: str, hint: str, kind: str = "checkpoint") -> None:
        super().__init__(what, hint)
        self.kind = kind


class FolderError(DiskError):
    """The folder that the user named for files cannot be written, and never could: another is to be named."""

    exit_code = ExitCode.USAGE


def require_writable(folder: Path, option: str = "--checkpoints", named_by: str | None = None) -> None:
    """Make the folder if need be, and try to write in it: better before training.

    Raises FolderError for a place that cannot be written, DiskError for one without free space.

    `option`: what asks for the files on the command line; `named_by`: what names their folder, None: it too.
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
    """Name the folder that this process writes its export to, before all of it is moved into `folder`.

    It lies within: the folder may be a link or a mount, in a place that may not be written.
    """
    return folder / f".export-{os.getpid()}"


def require_empty(folder: Path) -> None:
    """Raise UsageError if a folder holds something; what killed exports have left there is removed."""
    for path in folder.iterdir():
        if _abandoned(path):
            shutil.rmtree(path, ignore_errors=True)
    if any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", "use a new folder with --export")


def move_all(source: Path, target: Path) -> None:
    """Move what is in a folder to another one; if that fails, nothing of it is there.

    Folders first: the system refuses to replace one of another export that is there by now, and would replace
    a file. Raises OSError.
    """
    moved = []
    try:
        for path in sorted(source.iterdir(), key=Path.is_file):
            moved.append(path.rename(target / path.name))
    except OSError:
        for path in moved:
            path.rename(source / path.name)
        raise


def _abandoned(path: Path) -> bool:
    found = _TEMPORARY.fullmatch(path.name)
    return found is not None and not _runs(int(found["pid"]))


def _runs(pid: int) -> bool:
    """Return whether another process has this number. In a container it may have come to be our own one."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)  # no signal: only asks
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True
