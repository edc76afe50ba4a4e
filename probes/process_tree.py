"""CPU time of a process and of its descendants, and the user of a process, from /proc."""

import time
from collections.abc import Iterator
from pathlib import Path

from gputopo.probes.host import list_names, read_text

_MAX_DEPTH = 64  # of a process tree; a longer chain changed while it was read
# The largest share of time for finding the processes of the tree. Not measured.
_LOOK_UP_SHARE = 1 / 1000


def is_descendant(pid: int, ancestor: int, root: Path = Path("/")) -> bool:
    """Whether a process is `ancestor` or descends from it; False if the process is not visible."""
    for _ in range(_MAX_DEPTH):
        if pid == ancestor:
            return True
        fields = _fields(root, pid)
        if fields is None or pid <= 1:
            return False
        pid = int(fields[1])
    return False


def user_of(pid: int) -> str | None:
    """Return the name of a process's user, or its number if it has no name. None: the process has ended."""
    import pwd

    try:
        number = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


class ProcessTree:
    """The CPU time of a process and of all its descendants, including ended ones that were waited for."""

    def __init__(self, pid: int, root: Path = Path("/")) -> None:
        self._pid = pid
        self._root = root
        self._lists_children = (root / f"proc/{pid}/task/{pid}/children").exists()
        self._known: tuple[int, ...] = ()
        self._next_s = 0.0

    def cpu_ticks(self) -> int | None:
        """Return user and system time in clock ticks, or None if /proc does not show the process."""
        stats = [fields for pid in self._pids() if (fields := _fields(self._root, pid)) is not None]
        # proc(5): the state is field 3, and utime, stime, cutime and cstime are fields 14 to 17.
        return sum(sum(map(int, fields[11:15])) for fields in stats) if stats else None

    def _pids(self) -> tuple[int, ...]:
        began = time.monotonic()
        if began >= self._next_s:
            self._known = tuple(self._listed(self._pid) if self._lists_children else self._scanned())
            self._next_s = began + (time.monotonic() - began) / _LOOK_UP_SHARE
        return self._known

    def _scanned(self) -> Iterator[int]:
        """Read all of /proc: for kernels that do not list children."""
        for name in list_names(self._root / "proc"):
            if name.isdecimal() and is_descendant(int(name), self._pid, self._root):
                yield int(name)

    def _listed(self, pid: int) -> Iterator[int]:
        yield pid
        for thread in list_names(self._root / f"proc/{pid}/task"):
            children = read_text(self._root / f"proc/{pid}/task/{thread}/children") or ""
            for child in children.split():
                yield from self._listed(int(child))


def _fields(root: Path, pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on. The name before it may contain anything."""
    text = read_text(root / f"proc/{pid}/stat")
    return None if not text else text.rpartition(")")[2].split()
