"""Host memory for copies, page-locked or pageable: one area on each NUMA node, shared by all GPUs."""

import contextlib
import ctypes
import mmap
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import NamedTuple

from gputopo.probes.cuda.door import Cuda, CudaError
from gputopo.probes.cuda.pattern import BLOCK_BYTES, whole_blocks
from gputopo.probes.numa import NumaMemory

MIB = 2**20
# What is sent is only read, and may be read again. What is received must fit whole, or only the last round
# over it can be compared: 512 MiB is the largest copy of a sweep.
SEND_BYTES = 128 * MIB
RECEIVE_BYTES = 512 * MIB
# Copies of pageable memory run one at a time, at 6 to 12 GB/s.
PAGEABLE_BYTES = 128 * MIB
# Page-locked memory in all, unless the engine is given another limit; and the minimum of one area.
PINNED_BYTES = 2 * (SEND_BYTES + RECEIVE_BYTES)
MIN_AREA_BYTES = 32 * MIB
# No more areas are cached at once than have so much each: 2.6 ms at the rate of a Gen5 x16 link.
_CACHED_AREA_BYTES = 192 * MIB
_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


class HostArea(NamedTuple):
    """Memory to send from and memory to receive in, with the bytes of each; `free`: gives it back."""

    send: int
    send_bytes: int
    receive_bytes: int
    free: Callable[[], None]

    @property
    def receive(self) -> int:
        """Where what is received lies."""
        return self.send + self.send_bytes

    @property
    def bytes(self) -> int:
        """Bytes of both."""
        return self.send_bytes + self.receive_bytes


def pinned_area(cuda: Cuda, send: int = SEND_BYTES, receive: int = RECEIVE_BYTES) -> HostArea:
    """Allocate page-locked memory, less where the system refuses so much. Raises CudaError if it has none."""
    send, receive = whole_blocks(send), whole_blocks(receive)
    while True:
        try:
            address = cuda.allocate_host(send + receive)
        except CudaError as error:
            if error.reason != _OUT_OF_MEMORY or receive <= 2 * BLOCK_BYTES:
                raise
            send, receive = whole_blocks(send // 2), whole_blocks(receive // 2)
        else:
            return HostArea(address, send, receive, partial(cuda.ask, "cuMemFreeHost", address))


def pageable_area() -> HostArea:
    """Allocate memory as any program has it. Raises CudaError where the system has none."""
    send, receive = whole_blocks(PAGEABLE_BYTES // 2), whole_blocks(PAGEABLE_BYTES)
    try:
        pages = mmap.mmap(-1, send + receive)
    except OSError as error:
        raise CudaError(_OUT_OF_MEMORY, f"no host memory: {error.strerror}") from error
    views = [ctypes.c_char.from_buffer(pages)]

    def free() -> None:
        views.clear()
        pages.close()

    return HostArea(ctypes.addressof(views[0]), send, receive, free)


class HostMemory:
    """The allocated areas, by NUMA node (None: wherever the memory comes to lie).

    `max_bytes`: limit of page-locked memory, with that of GPUs that hang. `nodes`: how many the machine
    has: an area of each is cached while memory allows, so that alternating copies do not allocate again.
    """

    def __init__(
        self,
        cuda: Cuda,
        max_bytes: int = PINNED_BYTES,
        nodes: int = 1,
        memory: NumaMemory | None = None,
    ) -> None:
        self._cuda = cuda
        self._max_bytes = max_bytes
        self.numa = memory or NumaMemory()
        self._cached_nodes = max(min(nodes, max(max_bytes // _CACHED_AREA_BYTES, 2)), 1)
        self._nodes: dict[HostArea, Mapping[int, int]] = {}
        self._pinned: dict[int | None, HostArea] = {}
        self._owners: dict[int | None, int] = {}  # in whose context an area was allocated
        self._asked: dict[int | None, int] = {}  # its share; the system may have given less
        self._pageable: dict[int | None, HostArea] = {}
        self._abandoned: list[object] = []
        self._abandoned_bytes = 0

    @property
    def pinned_bytes(self) -> int:
        """Bytes of page-locked memory that are allocated."""
        return sum(area.bytes for area in self._pinned.values()) + self._abandoned_bytes

    def free_areas(self, pinned: Set[int | None], pageable: Set[int | None]) -> None:
        """Release what copies on these nodes do not need, where all would be too much. Raises CudaError.

        Freeing page-locked memory waits for every GPU, so not where one hangs.
        """
        for node in set(self._pageable) - pageable:
            self._pageable.pop(node).free()
        if self._abandoned:
            return
        each = self._max_bytes // max(len(pinned), self._cached_nodes)
        # What was allocated for more nodes at once is too little for few.
        self._close_pinned({node for node in pinned & set(self._pinned) if self._asked[node] < each})
        missing = pinned - set(self._pinned)
        if not missing:
            return
        if self.pinned_bytes + len(missing) * each > self._max_bytes:
            self._close_pinned(set(self._pinned) - pinned)
        if self.pinned_bytes + len(missing) * each > self._max_bytes:
            self._close_pinned(set(self._pinned))

    def pinned(
        self, ordinal: int, node: int | None, cpus: Sequence[int] | None, at_once: int = 1
    ) -> HostArea:
        """Return the page-locked memory on a node; a device allocates it if needed. Raises CudaError.

        `at_once`: on how many nodes the copies of this window are.
        """
        self._cuda.use(ordinal)
        if node not in self._pinned:
            share = self._max_bytes // max(at_once, self._cached_nodes)
            capacity = max(min(share, self._max_bytes - self.pinned_bytes), MIN_AREA_BYTES)
            send = min(SEND_BYTES, capacity // 4)
            with self.numa.bound(node, cpus):
                self._pinned[node] = pinned_area(self._cuda, send, min(capacity - send, RECEIVE_BYTES))
            self._owners[node], self._asked[node] = ordinal, share
        return self._pinned[node]

    def pageable(self, node: int | None) -> HostArea:
        """Return plain memory; the thread that first writes to it decides where it lies. Raises CudaError."""
        if node not in self._pageable:
            self._pageable[node] = pageable_area()
        return self._pageable[node]

    def nodes(self, node: int | None, *, pinned: bool) -> Mapping[int, int]:
        """Return how many of the pages looked at lie on each node; empty where unknown.

        Of the memory that was allocated for a node, once it was written to.
        """
        areas = self._pinned if pinned else self._pageable
        area = areas.get(node)
        if area is None:
            return {}
        if area not in self._nodes:
            self._nodes = {one: found for one, found in self._nodes.items() if one in areas.values()}
            self._nodes[area] = self.numa.nodes(area.send, area.bytes)
        return self._nodes[area]

    def forget(self, ordinal: int) -> None:
        """Take no more of what a device took that answers no more."""
        for node in [node for node, owner in self._owners.items() if owner == ordinal]:
            with contextlib.suppress(CudaError):
                self._close_pinned({node})

    def abandon(self) -> None:
        """Leave all as it is, since a copy is still under way in it, and take other memory from now on."""
        self._abandoned_bytes = self.pinned_bytes
        self._abandoned += [*self._pinned.values(), *self._pageable.values()]
        self._pinned.clear()
        self._owners.clear()
        self._pageable.clear()

    def close(self) -> None:
        """Release all but what was abandoned."""
        areas = [*self._pinned.values(), *self._pageable.values()]
        self._pinned.clear()
        self._owners.clear()
        self._pageable.clear()
        for area in areas:
            with contextlib.suppress(CudaError):
                area.free()

    def _close_pinned(self, nodes: Set[int | None]) -> None:
        for node in nodes:
            self._owners.pop(node, None)
            self._pinned.pop(node).free()
