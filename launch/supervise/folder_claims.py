"""Of runs at once that would keep checkpoints or an export in one folder, the first has it until it ends."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from gputopo.launch.spec.run_spec import Lifecycle
from gputopo.launch.train.lifecycle.checkpoint_files import require_writable
from gputopo.values.errors import InputError


@contextlib.contextmanager
def claimed_folders(kept: Lifecycle) -> Iterator[None]:
    """Have the folders of a run's checkpoints and export, made if need be, to itself while in the context.

    The folders themselves are locked (flock), so nothing is left in them, and the lock ends with the process,
    however it ends. Disks that know no locks of folders (NFS) are taken as they are.
    Raises InputError for a folder of a run that goes on, DiskError for one that cannot be written.
    """
    named = {"--checkpoints": kept.checkpoints, "--export": kept.export}
    ours: set[Path] = set()  # one folder may be both
    with contextlib.ExitStack() as claims:
        for option, name in named.items():
            if name is None:
                continue
            folder = Path(name)
            require_writable(folder, option)
            if folder.resolve() not in ours:
                claims.enter_context(_locked(folder, option))
                ours.add(folder.resolve())
        yield


@contextlib.contextmanager
def _locked(folder: Path, option: str) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"another run, which goes on, writes in {folder}",
                f"wait until it has ended, or name another folder with {option}",
            ) from error
        except OSError:  # a disk without such locks
            pass
        yield
    finally:
        os.close(handle)
