"""Locks (flock) that prevent concurrent runs from writing to the same folders.

A lock ends with its process, however the process ends, and leaves no file behind.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from gputopo.values.errors import InputError
from gputopo.values.run.spec import Lifecycle


@contextlib.contextmanager
def locked_outputs(lifecycle: Lifecycle) -> Iterator[None]:
    """Lock the folders of a run's checkpoints and export while in the context; create them if needed.

    The folders themselves are locked. On disks that cannot lock folders (NFS), no lock is taken. Raises
    InputError for a folder that another run writes to, and DiskError for a folder that cannot be written.
    """
    from gputopo.launch.train.lifecycle.folders import require_writable

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


def try_lock(handle: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock a file; False if another process has locked it. On some network disks, no lock is taken."""
    with contextlib.suppress(OSError):
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
