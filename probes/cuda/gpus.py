"""The GPUs of an engine: buffers, streams and kernels, allocated once; peer access; which are usable."""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from gputopo.probes.copy_jobs import Copy
from gputopo.probes.cuda.door import Cuda, CudaDevice, CudaError, Event, Kernel, Stream
from gputopo.probes.cuda.host_memory import HostMemory
from gputopo.probes.cuda.pattern import BLOCK_BYTES, whole_blocks
from gputopo.probes.cuda.waiting import TIMED_OUT
from gputopo.probes.numa import NumaMemory

# Each buffer is larger than any chip's cache (B200: 126 MB). Received data must fit completely, otherwise
# only the last round in the buffer can be compared. 512 MiB is the largest copy of a sweep; 1 GiB takes 1.3
# ms over the NVLinks of a B200.
SOURCE_BYTES = 256 * 2**20
DESTINATION_BYTES = 512 * 2**20
MAX_DESTINATION_BYTES = 1024 * 2**20
_AMPLE_SHARE = 64  # share of free memory from which more than DESTINATION_BYTES are allocated
_SHARE_OF_FREE = 0.9  # limit for both buffers: other programs may need memory too
SMALL_BYTES = 2 * 2**20 + BLOCK_BYTES  # a chain of pointers, and a block for counters
CHAIN_BYTES = 2 * 2**20


class EngineGpu:
    """One GPU in use. `unusable`: why no more copies use it."""

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

    def use(self) -> None:
        """Make this GPU the current one. Raises CudaError."""
        self.cuda.use(self.ordinal)

    def allocate_buffers(self) -> None:
        """Allocate the device memory, or less if less is free. Raises CudaError if too little is free."""
        self.use()
        if self.source_bytes:
            return
        free = int(self.cuda.free_and_total()[0] * _SHARE_OF_FREE)
        wanted = min(max(DESTINATION_BYTES, free // _AMPLE_SHARE), MAX_DESTINATION_BYTES)
        source, destination = min(SOURCE_BYTES, free // 3), min(wanted, free * 2 // 3)
        self.small = self.small or self.cuda.allocate(SMALL_BYTES)
        while True:
            source, destination = whole_blocks(source), whole_blocks(destination)
            taken: list[int] = []
            try:
                taken.append(self.cuda.allocate(source))
                taken.append(self.cuda.allocate(destination))
            except CudaError as error:
                for address in taken:
                    self.cuda.ask("cuMemFree", address)
                if error.reason != "CUDA_ERROR_OUT_OF_MEMORY" or destination == BLOCK_BYTES:
                    raise
                source, destination = source // 2, destination // 2
            else:
                self.source, self.destination = taken
                self.source_bytes, self.destination_bytes = source, destination
                return

    def load_kernels(self) -> Mapping[str, Kernel] | None:
        """Return the kernels, or None if the device or driver does not accept them (`no_kernels`: why)."""
        if self.kernels is None and self.no_kernels is None:
            self.use()
            try:
                self._module, self.kernels = self.cuda.load_kernels()
            except CudaError as error:
                self.no_kernels = error
        return self.kernels

    @property
    def streams(self) -> tuple[Stream, ...]:
        """All streams that were created; none if the GPU is unusable."""
        return () if self.unusable is not None else tuple(self._streams.values())

    def stream(self, number: int) -> Stream:
        """Return the stream with a number. Stream 0 is for work that is not timed."""
        self.use()
        if number not in self._streams:
            self._streams[number] = self.cuda.new_stream()
        return self._streams[number]

    def event(self) -> Event:
        """Return an event that is unused in this window."""
        self.use()
        if self._used == len(self._events):
            self._events.append(self.cuda.new_event())
        self._used += 1
        return self._events[self._used - 1]

    def begin_window(self) -> None:
        """Start a window: all events and streams can be used again."""
        self._used = self._flowing = 0

    def next_stream(self) -> Stream:
        """Return a stream that is unused in this window.

        Returns the lowest one, because streams share few hardware queues.
        """
        self._flowing += 1
        return self.stream(self._flowing)

    def scratch(self) -> int:
        """Return the address of one block (256 KiB) of page-locked memory. Raises CudaError."""
        self.use()
        self._scratch = self._scratch or self.cuda.allocate_host(BLOCK_BYTES)
        return self._scratch

    def close(self, *, host_memory: bool = True) -> None:
        """Release all resources. `host_memory`: False if a copy that uses it may still be in progress."""
        undo: list[Callable[[], None]] = [self.use]
        undo += [partial(self.cuda.ask, "cuEventDestroy", event) for event in self._events]
        undo += [partial(self.cuda.ask, "cuStreamDestroy", stream) for stream in self._streams.values()]
        held = filter(None, (self.source, self.destination, self.small))
        undo += [partial(self.cuda.ask, "cuMemFree", address) for address in held]
        if self._module is not None:
            undo.append(partial(self.cuda.ask, "cuModuleUnload", self._module))
        if host_memory and self._scratch:
            undo.append(partial(self.cuda.ask, "cuMemFreeHost", self._scratch))
        for step in undo:
            with contextlib.suppress(CudaError):
                step()


_TOO_MANY = "CUDA_ERROR_TOO_MANY_PEERS"
_REFUSED_PEER = "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"


class NotUsedError(CudaError):
    """The copy was not tried, because one of its GPUs is no longer used. The other may be usable."""


class EngineGpus:
    """GPUs in use, by index in the machine. `hung`: a copy did not end. Its GPU is not used again."""

    def __init__(
        self,
        cuda: Cuda,
        ordinals: Mapping[int, int],
        pinned_bytes: int,
        nodes: int,
        memory: NumaMemory | None = None,
    ) -> None:
        devices = {device.ordinal: device for device in cuda.devices}
        self._cuda = cuda
        self.of: dict[int, EngineGpu] = {
            gpu: EngineGpu(cuda, devices[ordinal]) for gpu, ordinal in ordinals.items() if ordinal in devices
        }
        self.host = HostMemory(cuda, pinned_bytes, nodes, memory)
        self._peers = Peers(cuda)
        self.hung = False

    def close(self) -> None:
        """Release everything except what a copy that did not end still uses."""
        if not self.hung:
            self.host.close()
        for card in self.of.values():
            if card.unusable is None or card.unusable.reason != TIMED_OUT:
                card.close(host_memory=not self.hung)

    def require(self, copy: Copy) -> None:
        """Raise CudaError if a GPU of a copy cannot be used."""
        for gpu in copy.gpus:
            card = self.of.get(gpu)
            if card is None:
                raise CudaError("CUDA_ERROR_NO_DEVICE", f"CUDA does not see GPU {gpu}")
            if card.unusable is not None:
                says = f"GPU {gpu} is no longer used: {card.unusable.says}"
                raise NotUsedError(card.unusable.reason, says)

    def blame(self, gpus: Iterable[int], error: CudaError) -> None:
        """Mark the GPUs that an error made unusable: a copy is still in progress, or every call fails."""
        for gpu in gpus:
            card = self.of.get(gpu)
            if card is None or card.unusable is not None:
                continue
            if error.reason == TIMED_OUT:
                self.hung = True
                card.unusable = error
                self._cuda.abandon(card.ordinal)
                self._peers.forget(card.ordinal)
                self.host.abandon()
                continue
            try:
                card.use()
                self._cuda.free_and_total()
                self._cuda.ask("cuEventRecord", card.event(), card.stream(0))
            except CudaError as refused:
                card.unusable = refused
                if not self.hung:
                    self.host.forget(card.ordinal)

    def open_peers(self, copy: Copy, beside: Sequence[Copy] = ()) -> None:
        """Give the GPUs of a direct copy access to one another. Raises CudaError.

        `beside`: the copies that run at the same time. Their access is not revoked.
        """
        needed = {pair for other in (copy, *beside) for pair in self._peers_of(other)[:1]}
        for place, (a, b) in enumerate(self._peers_of(copy)):
            try:
                if not self._cuda.can_reach(a, b):
                    raise CudaError(_REFUSED_PEER, "the driver allows no access from one GPU to the other")
                self._peers.open(a, b, needed if place == 0 else None)
            except CudaError:
                if place == 0:  # all common programs open the reverse direction too
                    raise

    def _peers_of(self, copy: Copy) -> list[tuple[int, int]]:
        """Return the access that a direct copy uses, as (acting, accessed), the required access first."""
        gpus = copy.gpus
        if copy.kind != "p2p_direct" or len(gpus) < 2 or not set(gpus) <= set(self.of):
            return []
        acts = copy.acting_gpu
        a, b = self.of[acts].ordinal, self.of[next(gpu for gpu in gpus if gpu != acts)].ordinal
        return [(a, b), (b, a)]


class Peers:
    """Peer access between devices, by CUDA ordinals (acting device, accessed device).

    Access is kept, because each change takes the driver milliseconds. If a device has reached the limit
    (eight peers on machines without NVSwitch), the access that was unused for longest is revoked.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._open: dict[tuple[int, int], None] = {}  # the most recently used is last

    def forget(self, ordinal: int) -> None:
        """Never revoke the access of a device that hangs: the call would wait for it."""
        self._open = {pair: None for pair in self._open if ordinal not in pair}

    def open(self, ordinal: int, peer: int, needed: Collection[tuple[int, int]] | None) -> None:
        """Give a device access to another.

        `needed`: access that must not be revoked for it; None: revoke nothing. Raises CudaError if the driver
        does not allow the access.
        """
        pair = (ordinal, peer)
        while pair not in self._open:
            try:
                self._cuda.open_peer(ordinal, peer)
            except CudaError as error:
                oldest = None if needed is None else self._oldest(pair, needed)
                if error.reason != _TOO_MANY or oldest is None:
                    raise
                del self._open[oldest]
                with contextlib.suppress(CudaError):  # this also fails on a lost GPU
                    self._cuda.close_peer(*oldest)
            else:
                self._open[pair] = None
        self._open[pair] = self._open.pop(pair)

    def _oldest(self, pair: tuple[int, int], needed: Collection[tuple[int, int]]) -> tuple[int, int] | None:
        """Return the access to revoke: of the same acting device, or of the accessed device."""
        spare = [old for old in self._open if old not in needed and not {*old}.isdisjoint(pair)]
        return min(spare, key=lambda old: old[0] != pair[0], default=None)
