"""Buffers, streams, events and kernels of one GPU, allocated once and reused."""

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gputopo.probes.cuda.calling import CudaError, Event, Kernel, Stream
from gputopo.probes.cuda.door import Cuda, CudaDevice
from gputopo.probes.cuda.kernels import BLOCK_BYTES

# Each more than any chip's cache (B200: 126 MB). What is received must fit whole, or only the last round over
# it can be compared: 512 MiB is the largest copy of a sweep, 1 GiB takes 1.3 ms over the NVLinks of a B200.
SOURCE_BYTES = 256 * 2**20
DESTINATION_BYTES = 512 * 2**20
MAX_DESTINATION_BYTES = 1024 * 2**20
_AMPLE_SHARE = 64  # of what is free, from which on more than DESTINATION_BYTES are taken
_SHARE_OF_FREE = 0.9  # of both, at most: other programs may need memory as well
SMALL_BYTES = 2 * 2**20 + BLOCK_BYTES  # a chain of pointers, and a block for counters
CHAIN_BYTES = 2 * 2**20


class EngineGpu:
    """One GPU in use. `unusable`: why no more copies are tried with it."""

    def __init__(self, cuda: Cuda, device: CudaDevice) -> None:
        self.cuda = cuda
        self.device = device
        self.unusable: CudaError | None = None
        self.kernels: Mapping[str, Kernel] | None = None
        self.no_kernels: CudaError | None = None
        self.source = self.destination = self.small = 0
        self.source_bytes = self.destination_bytes = 0
        self._module: Any = None
        self._streams: dict[int, Stream] = {}
        self._events: list[Event] = []
        self._used = self._flowing = 0
        self._scratch = 0
        self.has_chain = False

    @property
    def ordinal(self) -> int:
        """CUDA's number of the GPU."""
        return self.device.ordinal

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that are allocated."""
        capacities = self.source_bytes + self.destination_bytes
        return capacities + SMALL_BYTES if capacities else 0

    @property
    def pinned_bytes(self) -> int:
        """Bytes of page-locked host memory that are allocated for it alone."""
        return BLOCK_BYTES if self._scratch else 0

    def use(self) -> None:
        """Make this GPU the current one. Raises CudaError."""
        self.cuda.use(self.ordinal)

    def allocate_buffers(self) -> None:
        """Allocate the device memory, less where less is free. Raises CudaError if too little is."""
        self.use()
        if self.source_bytes:
            return
        free = int(self.cuda.free_and_total()[0] * _SHARE_OF_FREE)
        wanted = min(max(DESTINATION_BYTES, free // _AMPLE_SHARE), MAX_DESTINATION_BYTES)
        source, destination = min(SOURCE_BYTES, free // 3), min(wanted, free * 2 // 3)
        self.small = self.small or self.cuda.allocate(SMALL_BYTES)
        while True:
            source, destination = _whole_blocks(source), _whole_blocks(destination)
            taken: list[int] = []
            try:
                taken.append(self.cuda.allocate(source))
                taken.append(self.cuda.allocate(destination))
            except CudaError as error:
                for address in taken:
                    self.cuda.release(address)
                if error.reason != "CUDA_ERROR_OUT_OF_MEMORY" or destination == BLOCK_BYTES:
                    raise
                source, destination = source // 2, destination // 2
            else:
                self.source, self.destination = taken
                self.source_bytes, self.destination_bytes = source, destination
                return

    def load_kernels(self) -> Mapping[str, Kernel] | None:
        """Return the kernels; None where the device or driver does not take them (`no_kernels`: why)."""
        if self.kernels is None and self.no_kernels is None:
            self.use()
            try:
                self._module, self.kernels = self.cuda.load_kernels()
            except CudaError as error:
                self.no_kernels = error
        return self.kernels

    @property
    def streams(self) -> tuple[Stream, ...]:
        """All streams that were made; none where copies are not tried any more."""
        return () if self.unusable is not None else tuple(self._streams.values())

    def stream(self, number: int) -> Stream:
        """Return a stream; the same one for the same number. 0 is for what is not timed."""
        self.use()
        if number not in self._streams:
            self._streams[number] = self.cuda.new_stream()
        return self._streams[number]

    def event(self) -> Event:
        """Return an event that this window has not used yet."""
        self.use()
        if self._used == len(self._events):
            self._events.append(self.cuda.new_event())
        self._used += 1
        return self._events[self._used - 1]

    def begin_window(self) -> None:
        """Begin a window: all events and streams can be taken again."""
        self._used = self._flowing = 0

    def next_stream(self) -> Stream:
        """Return a stream that this window has not used yet.

        The lowest: streams share few hardware queues.
        """
        self._flowing += 1
        return self.stream(self._flowing)

    def scratch(self) -> int:
        """Return the address of one block (256 KiB) of page-locked memory. Raises CudaError."""
        self.use()
        self._scratch = self._scratch or self.cuda.allocate_host(BLOCK_BYTES)
        return self._scratch

    def close(self, *, host_memory: bool = True) -> None:
        """Release all that can be given back; host memory not where a copy of it may still be under way."""
        undo: list[Callable[[], None]] = [self.use]
        undo += [partial(self.cuda.end_event, event) for event in self._events]
        undo += [partial(self.cuda.end_stream, stream) for stream in self._streams.values()]
        held = filter(None, (self.source, self.destination, self.small))
        undo += [partial(self.cuda.release, address) for address in held]
        if self._module is not None:
            undo.append(partial(self.cuda.unload_kernels, self._module))
        if host_memory and self._scratch:
            undo.append(partial(self.cuda.release_host, self._scratch))
        for step in undo:
            with contextlib.suppress(CudaError):
                step()


def _whole_blocks(size: int) -> int:
    return max(1, size // BLOCK_BYTES) * BLOCK_BYTES
