"""What the cgroups and the host let this process use: CPUs, memory, and out-of-memory kills."""

import os
from collections.abc import Iterator
from pathlib import Path

from gputopo.launch.spec.host_place import Usable


def usable_cpus(root: Path = Path("/")) -> Usable:
    """Read the CPUs. The commands: `taskset -cp $$`; `cat /sys/fs/cgroup/cpu.max`."""
    return Usable(frozenset(os.sched_getaffinity(0)), cpu_quota(root))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The lowest CPU quota of this process's cgroups, in CPUs; None if there is no quota.

    Sources: `cpu.max` (cgroup 2), `cpu.cfs_quota_us` and `cpu.cfs_period_us` (cgroup 1) of each group.
    """
    quotas = (_quota(folder) for folder in _cgroup_folders(root, "cpu"))
    return min((quota for quota in quotas if quota is not None), default=None)


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folder of the group in /proc/self/cgroup, its parents, and the top of the mount.

    In a container, the top is its own group.
    """
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        inside = Path(group.lstrip("/"))
        tops = (mount / controllers, mount / controller) if controllers else (mount,)
        yield from (top / part for top in tops for part in (inside, *inside.parents))


def _quota(folder: Path) -> float | None:
    words = _text(folder / "cpu.max").split()
    if not words:
        words = [_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdecimal() for word in words) or not int(words[1]):
        return None  # "max", -1, or no such file
    return int(words[0]) / int(words[1])


def oom_kills(root: Path = Path("/")) -> int | None:
    """Number of out-of-memory kills in this process's memory cgroup, or on the machine; None if unknown.

    The first available source is used: `memory.events` (cgroup 2) or `memory.oom_control` (cgroup 1) of these
    groups, then /proc/vmstat. Only the difference between two readings is meaningful. The command:
    `cat /sys/fs/cgroup/memory.events`.
    """
    names = ("memory.events", "memory.oom_control")
    files = (folder / name for folder in _cgroup_folders(root, "memory") for name in names)
    for path in (*files, root / "proc/vmstat"):
        count = _field(path, "oom_kill")
        if count is not None:
            return count
    return None


def memory_bytes() -> int:
    """The host's memory in bytes, which is the limit of TensorFlow's allocator for CPUs."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


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
