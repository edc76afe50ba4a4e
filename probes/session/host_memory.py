"""Measures how fast the cores of each NUMA node copy near and far memory. Needs no GPU and no numpy.

Threads on the cores' node copy between buffers. Threads on the memory's node touch the buffers first, so
Linux puts the pages on that node. memmove runs without Python's lock, and writes large blocks past the
caches. So the bytes are counted as in STREAM's copy: each is read once and written once.
"""

import contextlib
import ctypes
import mmap
import os
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from gputopo.probes.host import read_number, read_text
from gputopo.probes.numa import LIBC, NumaMemory, at_once, lies_on, most_of
from gputopo.values.bandwidth import CopyRate, Failure, NotMeasured
from gputopo.values.ends import End
from gputopo.values.index_ranges import parse_cpus
from gputopo.values.machine import Host

T = TypeVar("T")

MIB = 2**20
# For source and destination together. A session must stay well under 1.5 GiB.
MAX_BYTES = 512 * MIB
MIN_BYTES = 32 * MIB
# STREAM's rule: each array at least four times the last-level cache (www.cs.virginia.edu/stream/ref.html).
_CACHE_TIMES = 4
_SHARE_OF_AVAILABLE = 0.25
# Two to four cores saturate one memory channel; sixteen cores saturate eight channels.
MAX_THREADS = 16
REPEATS = 5
_PATTERN_BYTES = 4096


class NodePlacing(NamedTuple):
    """One measurement: the cores of one node copy in the memory of one node."""

    memory_node: int
    cores_node: int
    memory_cpus: frozenset[int]
    cores_cpus: frozenset[int]


class HostMemoryRates(NamedTuple):
    """The results: one sample for each pair of nodes, failures, what was not measured, notes.

    `load`: the load average before the measurement, as a share of the logical CPUs; None if unknown.
    """

    samples: tuple[CopyRate, ...] = ()
    failures: tuple[Failure, ...] = ()
    not_measured: tuple[NotMeasured, ...] = ()
    notes: tuple[str, ...] = ()
    load: float | None = None


def measure_host_memory(
    host: Host,
    *,
    root: Path = Path("/"),
    repeats: int = REPEATS,
    max_bytes: int = MAX_BYTES,
    now: Callable[[], float] = time.perf_counter,
    memory: NumaMemory | None = None,
) -> HostMemoryRates:
    """Measure each node's memory from its own cores, and from the cores of the farthest node.

    A sample's `source` is the node of the memory, and its `destination` is the node of the cores. `bytes` is
    the size copied in one repeat; the rate counts it twice (read and written). `root` contains the cache
    sizes and memory limits. Never raises if the machine does not allow a measurement.
    """
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    memory = (memory or NumaMemory(root)) if len(host.numa_nodes or ()) > 1 else None
    placings, not_measured = placings_of(host, os.sched_getaffinity(0))
    size, notes = buffer_bytes(root, max_bytes)
    samples: list[CopyRate] = []
    failures: list[Failure] = []
    for placing in placings:
        source, destination = End.of_node(placing.memory_node), End.of_node(placing.cores_node)
        try:
            seconds = _copy_seconds(placing, size, repeats, now, memory)
        except OSError as error:
            what = f"host memory of {source} from the cores of {destination}"
            not_measured = (*not_measured, NotMeasured(what=what, reason=error.strerror or str(error)))
        except _WrongDataError as error:
            failures.append(
                Failure(
                    kind="host_memory",
                    source=source,
                    destination=destination,
                    reason="WRONG_DATA",
                    says=str(error),
                    method="cpu",
                )
            )
        else:
            rates = tuple(2 * size / repeat_s / 1e9 for repeat_s in seconds)
            middle = statistics.median(rates)
            samples.append(
                CopyRate(
                    kind="host_memory",
                    source=source,
                    destination=destination,
                    bytes=size,
                    method="cpu",
                    numa_node=placing.memory_node,
                    median_gb_per_s=middle,
                    repeats_gb_per_s=rates,
                    spread_percent=100 * (max(rates) - min(rates)) / middle,
                )
            )
    return HostMemoryRates(tuple(samples), tuple(failures), not_measured, notes, load)


def placings_of(
    host: Host, allowed: frozenset[int] | set[int]
) -> tuple[tuple[NodePlacing, ...], tuple[NotMeasured, ...]]:
    """Return which memory is measured from which cores. `allowed`: the CPUs that this process may use.

    If no nodes are reported, all memory is node 0.
    """
    cpus: dict[int, frozenset[int]] = {}
    without: list[NotMeasured] = []
    for node in host.numa_nodes or ():
        node_cpus = (parse_cpus(node.cpus or "") or frozenset()) & frozenset(allowed)
        if node_cpus:
            cpus[node.index] = node_cpus
        elif node.memory_mib != 0:
            reason = "this process may not use the node's CPUs" if node.cpus else "the node has no CPUs"
            without.append(NotMeasured(what=f"host memory of node:{node.index}", reason=reason))
    if not host.numa_nodes:
        cpus = {0: frozenset(allowed)}
    with_memory = [node.index for node in host.numa_nodes or () if node.memory_mib != 0] or list(cpus)
    placings: list[NodePlacing] = []
    for memory in with_memory:
        if memory not in cpus:
            continue
        placings.append(NodePlacing(memory, memory, cpus[memory], cpus[memory]))
        far = farthest_node(host, memory, sorted(cpus))
        if far is not None:
            placings.append(NodePlacing(memory, far, cpus[memory], cpus[far]))
    return tuple(placings), tuple(without)


def buffer_bytes(root: Path, max_bytes: int = MAX_BYTES) -> tuple[int, tuple[str, ...]]:
    """Return the size of one buffer (four caches, if memory allows) and a note about it."""
    cache = last_level_cache_bytes(root)
    available = available_bytes(root)
    limit = max_bytes if available is None else min(max_bytes, int(available * _SHARE_OF_AVAILABLE))
    size = max(limit // 2, MIN_BYTES // 2)
    if cache:
        size = min(size, max(_CACHE_TIMES * cache, 64 * MIB))
    notes: list[str] = []
    if cache and size < 2 * cache:
        notes.append(
            f"host memory was copied in buffers of {size // MIB} MiB, but the caches hold {cache // MIB} "
            "MiB: the rate may be that of the caches"
        )
    return size // MIB * MIB, tuple(notes)


def last_level_cache_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes of all last-level caches in the first CPU's package, or None if unknown."""
    cpus = root / "sys/devices/system/cpu"
    package = read_text(cpus / "cpu0/topology/physical_package_id")
    caches: dict[tuple[int, str], int] = {}
    for folder in sorted(cpus.glob("cpu[0-9]*/cache/index[0-9]*")):
        if read_text(folder.parent.parent / "topology/physical_package_id") != package:
            continue
        level, text = read_number(folder / "level"), read_text(folder / "size") or ""
        size = int(text[:-1]) * {"K": 1024, "M": MIB}.get(text[-1], 0) if text[:-1].isdecimal() else 0
        if level is not None and size:
            caches[level, read_text(folder / "shared_cpu_list") or folder.parent.parent.name] = size
    if not caches:
        return None
    last = max(level for level, _ in caches)
    return sum(size for (level, _), size in caches.items() if level == last)


class _WrongDataError(Exception):
    """The data that arrived differs from the data that was sent."""


def farthest_node(host: Host, node: int, nodes: Sequence[int]) -> int | None:
    """Return the node of `nodes` farthest from `node` (the lowest of several), or None without another."""
    others = [other for other in nodes if other != node]
    distances = (
        next((numa_node.distances for numa_node in host.numa_nodes or () if numa_node.index == node), None)
        or ()
    )
    return max(
        others, key=lambda other: (distances[other] if other < len(distances) else 0, -other), default=None
    )


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes available now, on the machine and within this process's control group."""
    kib = re.search(r"^MemAvailable: *(\d+)", read_text(root / "proc/meminfo") or "", re.MULTILINE)
    limits = [int(kib[1]) * 1024] if kib else []
    group = root / "sys/fs/cgroup"
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        maximum, now = read_number(group / limit), read_number(group / used)
        if maximum is not None and now is not None:
            limits.append(max(maximum - now, 0))
    return min(limits) if limits else None


def _copy_seconds(
    placing: NodePlacing, size: int, repeats: int, now: Callable[[], float], memory: NumaMemory | None
) -> tuple[float, ...]:
    """Return the seconds of each repeat after the first, which is not counted.

    Raises OSError, also if memory is on another node, and _WrongDataError.
    """
    threads = max(min(len(placing.cores_cpus), MAX_THREADS), 1)
    share = size // threads // mmap.PAGESIZE * mmap.PAGESIZE
    with _mapped(share * threads) as source, _mapped(share * threads) as destination:
        places = [(source + i * share, destination + i * share) for i in range(threads)]
        fill = [partial(_fill, at, share, placing.memory_node, memory) for at in places]
        nodes = sum(_together(fill, placing.memory_cpus), Counter[int]())
        if not lies_on(nodes, placing.memory_node):
            raise OSError(f"the system put it on node {most_of(nodes)}")
        taken: list[float] = []
        for repeat in range(repeats + 1):
            for at, _ in places:
                ctypes.memset(at, repeat + 1, 64)  # so that an old copy does not look like a new one
            spans = _together([partial(timed_copy, at, share, now) for at in places], placing.cores_cpus)
            taken.append(max(end for _, end in spans) - min(begin for begin, _ in spans))
            if any(LIBC.memcmp(source_at, copy_at, share) for source_at, copy_at in places):
                raise _WrongDataError("what was read back from host memory is not what was written")
    return tuple(seconds * size / (share * threads) for seconds in taken[1:])


@contextlib.contextmanager
def _mapped(size: int) -> Iterator[int]:
    """Return the address of new, untouched memory. Raises OSError if there is none."""
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        view = ctypes.c_char.from_buffer(pages)
        try:
            yield ctypes.addressof(view)
        finally:
            del view


def _together(tasks: Sequence[Callable[[], T]], cpus: frozenset[int]) -> list[T]:
    """Run tasks at the same time on some CPUs, and return their results. Raises OSError."""
    errors: list[OSError] = []
    start = threading.Barrier(len(tasks))

    def bound(task: Callable[[], T]) -> T:
        try:
            os.sched_setaffinity(0, cpus)  # of this thread only
        except OSError as error:
            errors.append(error)
        start.wait()
        return task()

    results = at_once([partial(bound, task) for task in tasks], start.abort)
    if errors:
        raise errors[0]
    return results


def _fill(at: tuple[int, int], size: int, node: int, memory: NumaMemory | None) -> Counter[int]:
    """Touch both buffers first on a node. The bytes in the source repeat only after a page.

    Returns how many of their sampled pages are on each node.
    """
    source, destination = at
    with memory.bound(node, None) if memory else contextlib.nullcontext():
        ctypes.memmove(source, os.urandom(_PATTERN_BYTES), min(_PATTERN_BYTES, size))
        filled = _PATTERN_BYTES
        while filled < size:
            more = min(filled, size - filled)
            ctypes.memmove(source + filled, source, more)
            filled += more
        ctypes.memset(destination, 0, size)
        return sum((Counter(memory.nodes(address, size)) for address in at) if memory else (), Counter[int]())


def timed_copy(at: tuple[int, int], size: int, now: Callable[[], float]) -> tuple[float, float]:
    """Copy between two addresses, and return when it began and ended."""
    begin = now()
    ctypes.memmove(at[1], at[0], size)
    return begin, now()
