"""The folder of an export: empty before training, but for what exports that were killed have left in it."""

import os
import re
import shutil
from pathlib import Path

from gputopo.values.errors import UsageError

_TEMPORARY = re.compile(r"\.export-(?P<pid>[1-9]\d{0,8})")


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
        raise UsageError(f"{folder} is not empty", "name a new folder with --export")


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
