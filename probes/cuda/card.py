"""What the engine holds on one GPU: buffers, streams, events, kernels, host memory. Taken once, reused."""

import contextlib
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any

from gputopo.probes.cuda.binding import bound_to
from gputopo.probes.cuda.calling import CudaError, Event, Kernel, Stream
from gputopo.probes.cuda.device import CudaDevice
from gputopo.probes.cuda.door import Cuda
from gputopo.probes.cuda.host_memory import HostArea, PageableArea, PinnedArea
from gputopo.probes.cuda.pattern import BLOCK_BYTES

# Two buffers of this, and some small ones: below 1 GiB of a GPU. More than any chip's cache (H200: 60 MB).
BUFFER_BYTES = 256 * 2**20
_SHARE_OF_FREE = 0.45  # of each buffer, at most: other programs may need memory as well
SMALL_BYTES = 2 * 2**20 + BLOCK_BYTES  # a chain of pointers, and a block for counters
CHAIN_BYTES = 2 * 2**20


class Card:
    """One GPU in use. `unusable`: why no more copies are tried with it."""

    def __init__(self, cuda: Cuda, device: CudaDevice) -> None:
        self.cuda = cuda
        self.device = device
        self.unusable: CudaError | None = None
        self.kernels: Mapping[str, Kernel] | None = None
        self.no_kernels: CudaError | None = None
        self.source = self.destination = self.small = self.room = 0
        self._module: Any = None
        self._streams: dict[int, Stream] = {}
        self._events: list[Event] = []
        self._used = self._flowing = 0
        self._pinned: dict[int | None, PinnedArea] = {}
        self._pageable: dict[int | None, PageableArea] = {}
        self._scratch: PinnedArea | None = None
        self.has_chain = False

    @property
    def ordinal(self) -> int:
        """CUDA's number of the GPU."""
        return self.device.ordinal

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that are taken."""
        return 2 * self.room + SMALL_BYTES if self.room else 0

    @property
    def pinned_bytes(self) -> int:
        """Bytes of page-locked host memory that are taken."""
        areas = (*self._pinned.values(), self._scratch)
        return sum(2 * area.room for area in areas if area is not None)

    def use(self) -> None:
        """Make this GPU the current one. Raises CudaError."""
        self.cuda.use(self.ordinal)

    def take_buffers(self) -> None:
        """Take the device memory, less where less is free or given. Raises CudaError if too little is."""
        self.use()
        if self.room:
            return
        free, _ = self.cuda.free_and_total()
        room = min(BUFFER_BYTES, int(free * _SHARE_OF_FREE)) // BLOCK_BYTES * BLOCK_BYTES
        self.small = self.small or self.cuda.allocate(SMALL_BYTES)
        while True:
            taken: list[int] = []
            try:
                taken.append(self.cuda.allocate(max(room, BLOCK_BYTES)))
                taken.append(self.cuda.allocate(max(room, BLOCK_BYTES)))
            except CudaError as error:
                for address in taken:
                    self.cuda.release(address)
                if error.reason != "CUDA_ERROR_OUT_OF_MEMORY" or room // 2 < BLOCK_BYTES:
                    raise
                room = room // 2 // BLOCK_BYTES * BLOCK_BYTES
            else:
                self.source, self.destination = taken
                self.room = max(room, BLOCK_BYTES)
                return

    def take_kernels(self) -> Mapping[str, Kernel] | None:
        """Give the kernels; None where the device or driver does not take them (`no_kernels` says why)."""
        if self.kernels is None and self.no_kernels is None:
            self.use()
            try:
                self._module, self.kernels = self.cuda.load_kernels()
            except CudaError as error:
                self.no_kernels = error
        return self.kernels

    def stream(self, number: int) -> Stream:
        """Give a stream; the same one for the same number. 0 is for what is not timed."""
        self.use()
        if number not in self._streams:
            self._streams[number] = self.cuda.new_stream()
        return self._streams[number]

    def event(self) -> Event:
        """Give an event that this window has not used yet."""
        self.use()
        if self._used == len(self._events):
            self._events.append(self.cuda.new_event())
        self._used += 1
        return self._events[self._used - 1]

    def begin_window(self) -> None:
        """Begin a window: all events and streams can be taken again."""
        self._used = self._flowing = 0

    def next_stream(self) -> Stream:
        """Give a stream that this window has not used yet, the lowest: streams share few hardware queues."""
        self._flowing += 1
        return self.stream(self._flowing)

    def pinned(self, node: int | None, cpus: Sequence[int] | None) -> PinnedArea:
        """Give the page-locked memory on a node (None: wherever it comes to lie). Raises CudaError."""
        self.use()
        if node not in self._pinned:
            with bound_to(cpus):
                self._pinned[node] = PinnedArea(self.cuda)
        return self._pinned[node]

    def pageable(self, node: int | None) -> HostArea:
        """Give plain host memory; the thread that first writes to it decides where it lies."""
        if node not in self._pageable:
            self._pageable[node] = PageableArea()
        return self._pageable[node]

    def keep_host_memory(self, nodes: Set[int | None]) -> None:
        """Give host memory on all other nodes back, so that one GPU holds one area. Raises CudaError."""
        kinds: tuple[dict[int | None, Any], ...] = (self._pinned, self._pageable)
        for areas in kinds:
            for node in set(areas) - nodes:
                self.use()
                areas.pop(node).close()

    def scratch(self) -> int:
        """Give the address of one block (256 KiB) of page-locked memory. Raises CudaError."""
        self.use()
        self._scratch = self._scratch or PinnedArea(self.cuda, BLOCK_BYTES)
        return self._scratch.send

    def close(self, *, host_memory: bool = True) -> None:
        """Give all back that can be given back; host memory not where a copy of it may still be under way."""
        undo: list[Callable[[], None]] = [self.use]
        undo += [partial(self.cuda.end_event, event) for event in self._events]
        undo += [partial(self.cuda.end_stream, stream) for stream in self._streams.values()]
        held = filter(None, (self.source, self.destination, self.small))
        undo += [partial(self.cuda.release, address) for address in held]
        if self._module is not None:
            undo.append(partial(self.cuda.unload_kernels, self._module))
        if host_memory:
            areas: list[HostArea] = [*self._pinned.values(), *self._pageable.values()]
            if self._scratch is not None:
                areas.append(self._scratch)
            undo += [area.close for area in areas]
        for step in undo:
            with contextlib.suppress(CudaError):
                step()
