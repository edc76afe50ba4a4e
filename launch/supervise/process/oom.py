"""Out-of-memory kills of the kernel, read before and after a run; and the size of the memory."""

import os
from pathlib import Path


def oom_kills(root: Path = Path("/")) -> int | None:
    """Number of out-of-memory kills in this process's memory cgroup, or on the machine; None if unknown.

    Sources, first that answers: `memory.events` (cgroup 2) or `memory.oom_control` (cgroup 1) of the group in
    /proc/self/cgroup, the same at the top of the mount (a container sees its own group there), /proc/vmstat.
    Only the difference of two readings means anything. The command: `cat /sys/fs/cgroup/memory.events`.
    """
    for path in (*_cgroup_files(root), root / "proc/vmstat"):
        count = _field(path, "oom_kill")
        if count is not None:
            return count
    return None


def memory_bytes() -> int:
    """The host's memory in bytes, the limit of TensorFlow's allocator for CPUs."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_files(root: Path) -> list[Path]:
    mount = root / "sys/fs/cgroup"
    files: list[Path] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        inside = group.lstrip("/")
        if controllers == "":
            files += [mount / inside / "memory.events", mount / "memory.events"]
        elif "memory" in controllers.split(","):
            files += [
                mount / "memory" / inside / "memory.oom_control",
                mount / "memory" / "memory.oom_control",
            ]
    return files


def _field(path: Path, name: str) -> int | None:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
