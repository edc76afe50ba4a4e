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
# Sent data is only read, and can be read repeatedly. Received data must fit completely, otherwise only the
# last round in the buffer can be compared. 512 MiB is the largest copy of a sweep.
SEND_BYTES = 128 * MIB
RECEIVE_BYTES = 512 * MIB
# Pageable copies run one at a time, at 6 to 12 GB/s.
PAGEABLE_BYTES = 128 * MIB
# Total page-locked memory, unless the engine is given another limit; and the minimum size of one area.
PINNED_BYTES = 2 * (SEND_BYTES + RECEIVE_BYTES)
MIN_AREA_BYTES = 32 * MIB
# Only as many areas are cached as can have this size: 2.6 ms at the rate of a Gen5 x16 link.
_CACHED_AREA_BYTES = 192 * MIB
_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


class HostArea(NamedTuple):
    """Memory to send from and memory to receive in, with the bytes of each. `free` frees it."""

    send: int
    send_bytes: int
    receive_bytes: int
    free: Callable[[], None]

    @property
    def receive(self) -> int:
        """The address of the memory to receive in."""
        return self.send + self.send_bytes

    @property
    def bytes(self) -> int:
        """The bytes of both."""
        return self.send_bytes + self.receive_bytes


def pinned_area(cuda: Cuda, send: int = SEND_BYTES, receive: int = RECEIVE_BYTES) -> HostArea:
    """Allocate page-locked memory, or less if the system refuses that. Raises CudaError if it refuses all."""
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
    """Allocate pageable memory. Raises CudaError if the system has none."""
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
    """The allocated areas, by NUMA node (None: on any node).

    `max_bytes`: limit of page-locked memory, including memory of GPUs that hang. `nodes`: the machine's
    number of nodes. One area for each is cached if memory allows, so that alternating copies do not allocate
    again.
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
        self._owners: dict[int | None, int] = {}  # the device in whose context an area was allocated
        self._asked: dict[int | None, int] = {}  # the requested size; the system may have given less
        self._pageable: dict[int | None, HostArea] = {}
        self._abandoned: list[object] = []
        self._abandoned_bytes = 0

    @property
    def pinned_bytes(self) -> int:
        """The allocated bytes of page-locked memory."""
        return sum(area.bytes for area in self._pinned.values()) + self._abandoned_bytes

    def free_areas(self, pinned: Set[int | None], pageable: Set[int | None]) -> None:
        """Release areas that copies on these nodes do not need, if all would be too much. Raises CudaError.

        Does not free page-locked memory if a GPU hangs, because that waits for every GPU.
        """
        for node in set(self._pageable) - pageable:
            self._pageable.pop(node).free()
        if self._abandoned:
            return
        area_bytes = self._max_bytes // max(len(pinned), self._cached_nodes)
        # An area that was allocated for more nodes at once is too small for fewer nodes.
        self._close_pinned({node for node in pinned & set(self._pinned) if self._asked[node] < area_bytes})
        missing = pinned - set(self._pinned)
        if not missing:
            return
        if self.pinned_bytes + len(missing) * area_bytes > self._max_bytes:
            self._close_pinned(set(self._pinned) - pinned)
        if self.pinned_bytes + len(missing) * area_bytes > self._max_bytes:
            self._close_pinned(set(self._pinned))

    def pinned(
        self, ordinal: int, node: int | None, cpus: Sequence[int] | None, at_once: int = 1
    ) -> HostArea:
        """Return the page-locked memory on a node. A device allocates it if needed. Raises CudaError.

        `at_once`: the number of nodes that the copies of this window use.
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
        """Return pageable memory. The thread that first writes to it decides its node. Raises CudaError."""
        if node not in self._pageable:
            self._pageable[node] = pageable_area()
        return self._pageable[node]

    def nodes(self, node: int | None, *, pinned: bool) -> Mapping[int, int]:
        """Return how many of the sampled pages are on each node; empty if unknown.

        Samples the memory that was allocated for `node`, after it was written to.
        """
        areas = self._pinned if pinned else self._pageable
        area = areas.get(node)
        if area is None:
            return {}
        if area not in self._nodes:
            self._nodes = {known: self._nodes[known] for known in self._nodes if known in areas.values()}
            self._nodes[area] = self.numa.nodes(area.send, area.bytes)
        return self._nodes[area]

    def forget(self, ordinal: int) -> None:
        """Stop using memory that was allocated by a device that no longer answers."""
        for node in [node for node, owner in self._owners.items() if owner == ordinal]:
            with contextlib.suppress(CudaError):
                self._close_pinned({node})

    def abandon(self) -> None:
        """Keep all memory, because a copy in it is still in progress, and use other memory from now on."""
        self._abandoned_bytes = self.pinned_bytes
        self._abandoned += [*self._pinned.values(), *self._pageable.values()]
        self._pinned.clear()
        self._owners.clear()
        self._pageable.clear()

    def close(self) -> None:
        """Release all memory that was not abandoned."""
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
