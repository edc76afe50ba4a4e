"""Locks (flock) that prevent concurrent runs from writing to the same folders.

A lock ends with its process, however the process ends, and leaves no file behind.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gputopo.values.errors import InputError
from gputopo.values.run.spec import Lifecycle


@contextlib.contextmanager
def locked_spec(spec: Path) -> Iterator[bool]:
    """Lock a run folder by its spec.json, which must be replaced by the complete spec while in the context.

    Until then, the file is empty. Yields False if another run has the folder. Raises OSError if the file
    cannot be created.
    """
    handle, is_new = _opened(spec)
    try:
        yield try_lock(handle, otherwise=is_new) and _is_unwritten(handle, spec)
    finally:
        os.close(handle)


def is_left_over(spec: Path) -> bool:
    """Whether the run of a spec.json has just started, or was killed before it wrote the file."""
    found = spec.stat()
    return stat.S_ISREG(found.st_mode) and found.st_size == 0


@contextlib.contextmanager
def locked_outputs(lifecycle: Lifecycle) -> Iterator[None]:
    """Lock the folders of a run's checkpoints and export while in the context; create them if needed.

    The folders themselves are locked. On disks that cannot lock folders (NFS), no lock is taken. Raises
    InputError for a folder that another run writes to, and DiskError for a folder that cannot be written.
    """
    from gputopo.launch.train import require_writable

    named = {"--checkpoints": lifecycle.checkpoints, "--export": lifecycle.export}
    ours: set[Path] = set()  # both options may have the same folder
    with contextlib.ExitStack() as locks:
        for option, name in named.items():
            if name is None:
                continue
            folder = Path(name)
            require_writable(folder, option)
            if folder.resolve() not in ours:
                locks.enter_context(locked_folder(folder, option))
                ours.add(folder.resolve())
        yield


@contextlib.contextmanager
def locked_folder(folder: Path, option: str) -> Iterator[None]:
    """Lock a folder while in the context. `option`: the option to change, for the InputError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not try_lock(handle):
            raise InputError(
                f"another run is writing to {folder}",
                f"wait until it has ended, or use another folder with {option}",
            )
        yield
    finally:
        os.close(handle)


def try_lock(handle: int, kind: int = fcntl.LOCK_EX, *, otherwise: bool = True) -> bool:
    """Lock a file; False if another process has locked it, `otherwise` if this disk has no locks."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network disks
        return otherwise
    return True


def _opened(spec: Path) -> tuple[int, bool]:
    """Open the file, created if needed; also return whether it is new. NFS locks need write access."""
    how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    with contextlib.suppress(FileExistsError):
        return os.open(spec, how | os.O_EXCL, 0o666), True
    return os.open(spec, how, 0o666), False


def _is_unwritten(handle: int, spec: Path) -> bool:
    """Whether the locked file still has its name and is empty.

    Between opening and locking, another run may have replaced it with its complete spec.json.
    """
    mine = os.fstat(handle)
    try:
        now = os.stat(spec)
    except FileNotFoundError:
        return False
    return mine.st_size == 0 and os.path.samestat(mine, now)
