"""The load of the host during a run, from /proc: CPU time of the run's and other processes, memory and I/O.

Counters become rates between two readings. A counter that goes back (it wrapped, or a device was replaced)
gives no rate for that time. If a file cannot be read, its fields are None.
"""

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from gputopo.probes.host import list_names, read_number, read_text
from gputopo.probes.process_tree import ProcessTree
from gputopo.values.run.events import HostLoad

_SECTOR_BYTES = 512  # in /proc/diskstats, for any disk (kernel: admin-guide/iostats.rst)
# Fields of /proc/stat's lines: user, nice, system, irq, softirq and steal (the host of a virtual machine ran
# another one), but not idle (3) and iowait (4). Guest time is part of user.
_BUSY = (0, 1, 2, 5, 6, 7)
_NOT_A_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd)\d")  # not a disk, or backed by other disks

_RATES = (
    "swap_in_bytes_per_s",
    "swap_out_bytes_per_s",
    "disk_read_bytes_per_s",
    "disk_write_bytes_per_s",
    "network_in_bytes_per_s",
    "network_out_bytes_per_s",
)


class HostReader:
    """Reads the load since the previous reading. The first reading covers the time since this was created.

    `pid`: the process that, with its descendants, is the run. A reading takes about half a millisecond,
    mostly for /proc/stat.
    """

    def __init__(
        self,
        pid: int | None = None,
        root: Path = Path("/"),
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._now = now
        self._clock = clock
        self._cpus = _allowed_cpus(root)
        self._limits = _memory_limits(root)
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._tree = ProcessTree(os.getpid() if pid is None else pid, root)
        self._queue: list[int] = []
        self._read_s = clock()
        self._before = self._counters()

    def note(self) -> None:
        """Read how many threads run or are ready to run, for the mean that `read` returns."""
        # proc_loadavg(5): the fourth field is running/all threads. The thread that reads it is counted.
        match = re.search(r" (\d+)/\d+ ", read_text(self._root / "proc/loadavg") or "")
        if match:
            self._queue.append(max(0, int(match[1]) - 1))

    def read(self) -> HostLoad:
        """Return the load since the last call."""
        now_s = self._clock()
        seconds, self._read_s = now_s - self._read_s, now_s
        before, self._before = self._before, self._counters()
        rates = {
            name: (value - before[name]) / seconds
            for name, value in self._before.items()
            if seconds > 0 and name in before and value >= before[name]
        }
        queue, self._queue = self._queue, []
        cores = len(self._cpus) or None
        run = _share(rates.get("run_cpu"), cores)
        busy = _share(rates.get("busy_cpu"), cores)
        return HostLoad(
            time_s=self._now(),
            seconds=seconds,
            cores=cores,
            run_cpu_share=run,
            other_cpu_share=None if run is None or busy is None else max(0.0, round(busy - run, 4)),
            run_queue=sum(queue) / len(queue) if queue else None,
            memory_available_share=self._memory_available(),
            **{name: round(rates[name]) for name in _RATES if name in rates},
        )

    def _counters(self) -> dict[str, float]:
        """Return the counters since the machine started, in CPU seconds and bytes."""
        return {
            **self._cpu_seconds(),
            **_swapped(self._text("vmstat")),
            **_disks(self._text("diskstats"), self._root),
            **_network(self._text("net/dev")),
        }

    def _cpu_seconds(self) -> dict[str, float]:
        seconds: dict[str, float] = {}
        ticks = self._tree.cpu_ticks()
        if ticks is not None:
            seconds["run_cpu"] = ticks * self._tick_s
        busy = _busy_ticks(self._text("stat"), self._cpus)
        if busy is not None:
            seconds["busy_cpu"] = busy * self._tick_s
        return seconds

    def _memory_available(self) -> float | None:
        """Return the share of memory that is available, on the host or in a cgroup, whichever is smaller."""
        text = self._text("meminfo")
        total, available = _number(r"MemTotal:\s+(\d+)", text), _number(r"MemAvailable:\s+(\d+)", text)
        shares = [] if not total or available is None else [available / total]
        for used_file, limit in self._limits:
            used = read_number(used_file)
            if used is not None:
                shares.append(max(0.0, 1 - used / limit))
        return round(min(shares), 4) if shares else None

    def _text(self, name: str) -> str:
        try:
            return (self._root / "proc" / name).read_text(errors="replace")
        except OSError:
            return ""


def _share(cpu_s_per_s: float | None, cores: int | None) -> float | None:
    return None if cpu_s_per_s is None or not cores else round(cpu_s_per_s / cores, 4)


def _number(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text, re.MULTILINE)
    return int(match[1]) if match else None


def _busy_ticks(stat: str, cpus: Iterable[int]) -> int | None:
    """Return the ticks in which these CPUs did work, or None if the file shows none of them."""
    wanted = {f"cpu{cpu}" for cpu in cpus}
    busy: int | None = None
    for line in stat.splitlines():
        if not line.startswith("cpu"):
            break
        name, *ticks = line.split()
        if name in wanted:
            busy = (busy or 0) + sum(int(ticks[part]) for part in _BUSY if part < len(ticks))
    return busy


def _swapped(vmstat: str) -> dict[str, float]:
    page = os.sysconf("SC_PAGE_SIZE")
    counts = {
        "swap_in_bytes_per_s": _number(r"^pswpin (\d+)", vmstat),
        "swap_out_bytes_per_s": _number(r"^pswpout (\d+)", vmstat),
    }
    return {name: count * page for name, count in counts.items() if count is not None}


def _disks(diskstats: str, root: Path) -> dict[str, float]:
    """Return the bytes that all disks read and wrote. Partitions are part of their disk."""
    read = written = 0
    rows = [fields for line in diskstats.splitlines() if len(fields := line.split()) > 9]
    if not rows:
        return {}
    whole = list_names(root / "sys/block")
    if not whole:
        return {}
    for fields in rows:
        if fields[2] in whole and not _NOT_A_DISK.match(fields[2]):
            read, written = read + int(fields[5]), written + int(fields[9])
    return {
        "disk_read_bytes_per_s": read * _SECTOR_BYTES,
        "disk_write_bytes_per_s": written * _SECTOR_BYTES,
    }


def _network(dev: str) -> dict[str, float]:
    """Return the bytes that all interfaces except the loopback received and sent."""
    received = sent = 0
    rows = re.findall(r"^\s*([^:\s]+):\s*(.*)$", dev, re.MULTILINE)
    for name, counts in rows:
        numbers = counts.split()
        if name != "lo" and len(numbers) > 8:
            received, sent = received + int(numbers[0]), sent + int(numbers[8])
    return {"network_in_bytes_per_s": received, "network_out_bytes_per_s": sent} if rows else {}


def _allowed_cpus(root: Path) -> frozenset[int]:
    """Return the CPUs that this process may use, or all the CPUs that another tree shows."""
    if root == Path("/"):
        return frozenset(os.sched_getaffinity(0))
    stat = (read_text(root / "proc/stat") or "").splitlines()
    names = (line.split()[0].removeprefix("cpu") for line in stat if line.startswith("cpu"))
    return frozenset(int(name) for name in names if name)


def _memory_limits(root: Path) -> list[tuple[Path, int]]:
    """Return the file of the memory in use, and the limit, of each cgroup of this process with a limit."""
    mount = root / "sys/fs/cgroup"
    limits: dict[Path, int] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, group = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            base, names = mount, ("memory.current", "memory.max")
        elif "memory" in controllers.split(","):
            base, names = mount / "memory", ("memory.usage_in_bytes", "memory.limit_in_bytes")
        else:
            continue
        for folder in (base / group.lstrip("/"), base):  # a container sees its own group at the top
            limit = read_number(folder / names[1])
            if limit is not None and 0 < limit < 1 << 60:  # cgroup 1 shows a huge number if there is no limit
                limits[folder / names[0]] = limit
    return list(limits.items())
