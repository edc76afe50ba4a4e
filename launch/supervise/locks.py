"""Of runs that begin in one folder at once one gets it, and one that was killed leaves nothing in the way.

A run has its folder by its spec.json. Until that is written the file is empty, and locked (flock) by the run
that writes it: the lock ends with the process, however it ends.
"""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def claimed(spec: Path) -> Iterator[bool]:
    """Claim a folder by its spec.json, which is to be replaced by the whole one while in the context.

    Gives False where another run has it. Raises OSError where the file cannot be made.
    """
    handle, is_new = _opened(spec)
    try:
        yield _locked(handle, otherwise=is_new) and _is_unwritten(handle, spec)
    finally:
        os.close(handle)


def is_left_over(spec: Path) -> bool:
    """Tell whether a spec.json is that of a run that began just now, or was killed before it wrote it."""
    told = spec.stat()
    return stat.S_ISREG(told.st_mode) and told.st_size == 0


def _opened(spec: Path) -> tuple[int, bool]:
    """Open the file, made if need be, and tell whether it is new. It is opened to write: NFS wants that."""
    how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    with contextlib.suppress(FileExistsError):
        return os.open(spec, how | os.O_EXCL, 0o666), True
    return os.open(spec, how, 0o666), False


def _locked(handle: int, *, otherwise: bool) -> bool:
    """Lock the file, or tell that another has; `otherwise` where this disk knows no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network disks: there only a new file is a claim
        return otherwise
    return True


def _is_unwritten(handle: int, spec: Path) -> bool:
    """Tell whether the file that is locked is still the one of that name, and empty.

    Between the opening and the lock another run may have put its whole spec.json in its place.
    """
    mine = os.fstat(handle)
    try:
        there = os.stat(spec)
    except FileNotFoundError:
        return False
    return mine.st_size == 0 and os.path.samestat(mine, there)
