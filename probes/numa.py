"""Memory on a NUMA node: binds threads while it is allocated, and reads from the kernel where its pages are.

Uses libnuma's system calls (set_mempolicy(2), move_pages(2)) by number: Python has no functions for them, and
libnuma is often missing. Containers without CAP_SYS_NICE refuse them (Docker's seccomp profile). Then the
CPUs of the node decide where memory is, and /proc/self/numa_maps shows it.
"""

import contextlib
import ctypes
import mmap
import os
import platform
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple, TypeVar

from gputopo.probes.host import read_text

T = TypeVar("T")


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
LIBC.memcmp.restype = ctypes.c_int


class NoThreadsError(OSError):
    """The system starts no more threads (a process limit, as in containers)."""


def at_once(tasks: Sequence[Callable[[], T]], abort: Callable[[], None] = lambda: None) -> list[T]:
    """Run tasks, each in its own thread, and return their results in order.

    All tasks have ended when it returns, even if it is interrupted. It calls `abort` before it waits for
    their end: tasks that wait for one another must then continue. Raises NoThreadsError, or the exception of
    the first task that raised one.
    """
    with ThreadPoolExecutor(max(len(tasks), 1)) as pool:
        try:
            # An interruption while threads start would be raised before the pool knows the last thread.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
            try:
                futures = [pool.submit(task) for task in tasks]
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            wait(futures)
        except RuntimeError as error:  # "can't start new thread"
            raise NoThreadsError(None, f"the system allows no more threads: {error}") from error
        finally:
            abort()
    return [future.result() for future in futures]


# Share of the sampled pages; below it, memory is spread over nodes.
MOSTLY = 0.9
_PAGES_LOOKED_AT = 512
# If a node has less available memory, binding to it might make the kernel kill the process (out of memory).
_MIN_AVAILABLE_KIB = 2 * 2**20  # twice what is allocated on one node at most
_DEFAULT, _BIND = 0, 2  # MPOL_DEFAULT, MPOL_BIND (linux/mempolicy.h)
_MASK_WORDS = 16  # 1024 nodes, the kernel's maximum


class _Numbers(NamedTuple):
    """System call numbers of one architecture (asm/unistd.h)."""

    get_mempolicy: int
    set_mempolicy: int
    move_pages: int


_NUMBERS = {
    "x86_64": _Numbers(239, 238, 279),
    "aarch64": _Numbers(236, 237, 239),
    "ppc64le": _Numbers(260, 261, 301),
}
_Mask = ctypes.c_ulong * _MASK_WORDS


class NumaMemory:
    """Memory of this process on the machine's NUMA nodes. `root` contains /proc and /sys.

    `refusals`: a text for each call that the system refused, each once.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._numbers = _NUMBERS.get(platform.machine())
        self.refusals: dict[str, str] = {}

    @contextlib.contextmanager
    def bound(self, node: int | None, cpus: Sequence[int] | None) -> Iterator[None]:
        """Bind the calling thread, and the threads that it starts, to the memory and the CPUs of a node.

        A binding that the system refuses is skipped. Both bindings are undone afterwards.
        """
        with bound_to(cpus), self._policy(node):
            yield

    def nodes(self, address: int, size: int) -> Mapping[int, int]:
        """Return how many of the sampled pages are on each node; empty if unknown."""
        return self._by_move_pages(address, size) or self._by_maps(address)

    @contextlib.contextmanager
    def _policy(self, node: int | None) -> Iterator[None]:
        if node is None or self._numbers is None or not self._has_memory(node):
            yield
            return
        mode, before, wanted = ctypes.c_int(), _Mask(), _Mask()
        wanted[node // 64] = 1 << node % 64
        get, put, _ = self._numbers
        if not (
            self._called("get_mempolicy", get, ctypes.byref(mode), before, _bits(), None, 0)
            and self._called("set_mempolicy", put, _BIND, wanted, _bits())
        ):
            yield
            return
        try:
            yield
        finally:
            empty = mode.value == _DEFAULT
            self._called("set_mempolicy", put, mode.value, None if empty else before, 0 if empty else _bits())

    def _has_memory(self, node: int) -> bool:
        """Return whether binding to a node is safe: it has enough free memory or file cache."""
        text = read_text(self._root / f"sys/devices/system/node/node{node}/meminfo") or ""
        kib = {
            fields[2].rstrip(":"): int(fields[3])
            for line in text.splitlines()
            if len(fields := line.split()) > 3
        }
        names = ("MemFree", "Active(file)", "Inactive(file)")
        return not kib or sum(kib.get(name, 0) for name in names) >= _MIN_AVAILABLE_KIB

    def _by_move_pages(self, address: int, size: int) -> Mapping[int, int]:
        if self._numbers is None:
            return {}
        count = max(size // mmap.PAGESIZE, 1)
        step = max(count // _PAGES_LOOKED_AT, 1)
        places = [address + page * mmap.PAGESIZE for page in range(0, count, step)]
        pages = (ctypes.c_void_p * len(places))(*places)
        status = (ctypes.c_int * len(places))(*[-1] * len(places))
        asked = (0, ctypes.c_ulong(len(places)), pages, None, status, 0)
        if not self._called("move_pages", self._numbers.move_pages, *asked):
            return {}
        return Counter(node for node in status if node >= 0)

    def _by_maps(self, address: int) -> Mapping[int, int]:
        """Return the pages on each node for the mapping of an address, from /proc/self/numa_maps."""
        last = ""
        for line in (read_text(self._root / "proc/self/numa_maps") or "").splitlines():
            if int(line.split(" ", 1)[0], 16) > address:
                break
            last = line
        words = (word[1:].split("=") for word in last.split() if word.startswith("N") and "=" in word)
        return {int(node): int(pages) for node, pages in words}

    def _called(self, name: str, *arguments: object) -> bool:
        if LIBC.syscall(*arguments) == 0:
            return True
        says = os.strerror(ctypes.get_errno())
        self.refusals.setdefault(name, f"host memory of a NUMA node: the system refused {name} ({says})")
        return False


def most_of(nodes: Mapping[int, int]) -> int | None:
    """Return the node with the most pages (the lowest if several have them), or None without pages."""
    return max(sorted(nodes), key=lambda node: nodes[node], default=None)


def lies_on(nodes: Mapping[int, int], node: int) -> bool:
    """Return whether memory is on a node, except for a few pages."""
    return nodes.get(node, 0) >= MOSTLY * sum(nodes.values())


@contextlib.contextmanager
def bound_to(cpus: Sequence[int] | None) -> Iterator[bool]:
    """Bind the calling thread to CPUs and restore it afterwards. Yields whether it is bound.

    It is not bound if no CPU is given, if none of them may be used (a container's cpuset), or if the system
    has no such call. CPUs that may not be used are skipped.
    """
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    wanted = set(cpus or ()) & before
    if not wanted:
        yield False
        return
    try:
        os.sched_setaffinity(0, wanted)
    except OSError:  # a CPU that went offline in between
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


def _bits() -> ctypes.c_ulong:
    return ctypes.c_ulong(64 * _MASK_WORDS)  # the mask's bits, plus one, less one: the kernel allows 1024
