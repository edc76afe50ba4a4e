"""One copy in one window: writes the pattern, enqueues the copy in a blocked stream, times and checks it."""

import ctypes
import functools
import random
from array import array
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import pairwise

from gputopo.probes.copy_jobs import Copy
from gputopo.probes.cuda.blocking import StreamBlocker
from gputopo.probes.cuda.chunking import Chunk
from gputopo.probes.cuda.door import CudaError, Event, Stream
from gputopo.probes.cuda.gpus import CHAIN_BYTES, EngineGpu
from gputopo.probes.cuda.kernels import grid
from gputopo.probes.cuda.pattern import BLOCK_BYTES
from gputopo.probes.cuda.verify import WRONG_DATA, Span, check, clear, fill
from gputopo.probes.cuda.waiting import Waiter
from gputopo.values.bandwidth import KERNELS
from gputopo.values.grouping import grouped

# Pointer chase: one pointer per cache line (128 bytes) in 2 MiB, as in nvbandwidth, in random order.
_STRIDE = 128
_NODES = CHAIN_BYTES // _STRIDE
STEPS = 4096  # about 3 to 10 ms over PCIe


class Transfer:
    """A copy from one span to another in one stream of the acting GPU.

    `repeats`: the number of messages or steps, which are timed together. `kernels_at_once`: the number of
    copies in the window that kernels of the acting GPU run.
    """

    staged = False

    def __init__(
        self,
        copy: Copy,
        acting: EngineGpu,
        spans: tuple[Span, Span],
        chunks: tuple[Chunk, ...],
        seed: int,
        repeats: int = 1,
    ) -> None:
        self.copy = copy
        self.acting = acting
        self.origin, self.target = spans
        self.chunks = chunks
        self.seed = seed
        self.repeats = repeats
        self.kernels_at_once = 1
        self.marks: list[Event] = []
        self.start: Event | None = None
        self.last: Event | None = None

    @property
    def sizes(self) -> list[int]:
        """The bytes that arrived by each end."""
        sizes = [chunk.size for chunk in self.chunks]
        return [sum(sizes)] if len(self.marks) == 1 else sizes

    @property
    def read_bytes(self) -> int:
        """The bytes of the source's buffer that the chunks use."""
        return max(chunk.source + chunk.size for chunk in self.chunks)

    @property
    def written_bytes(self) -> int:
        """The bytes of the destination's buffer that the chunks use."""
        return max(chunk.target + chunk.size for chunk in self.chunks)

    @property
    def lasts(self) -> list[Event]:
        """The last event of each stream. When all have happened, the copy is done."""
        return [] if self.last is None else [self.last]

    @cached_property
    def streams(self) -> list[tuple[EngineGpu, Stream]]:
        """All streams that this copy uses."""
        return [(self.acting, self.acting.next_stream())]

    def prepare(self, waiter: Waiter) -> None:
        """Create the streams, write the pattern to the source, and other bytes to the destination.

        Raises CudaError.
        """
        assert self.streams  # created now: while a stream is blocked, creating one might wait
        fill(self.origin, self.read_bytes, self.seed, waiter)
        clear(self.target, self.written_bytes, waiter)

    def enqueue(self, blocker: StreamBlocker) -> None:
        """Enqueue all chunks in the stream, blocked until the release. Raises CudaError."""
        ((card, stream),) = self.streams
        cuda = card.cuda
        card.use()
        blocker.block(card, stream)
        self.start = card.event()
        cuda.ask("cuEventRecord", self.start, stream)
        for chunk in self.chunks:
            self.move(chunk, stream)
            if self.repeats == 1:
                self._mark(card, stream)
        if self.repeats > 1:  # an event after every small copy would add to the time
            self._mark(card, stream)

    def move(self, chunk: Chunk, stream: Stream) -> None:
        """Enqueue one chunk. Raises CudaError."""
        cuda, kind, method = self.acting.cuda, self.copy.kind, self.copy.method
        source, target = self.origin.address + chunk.source, self.target.address + chunk.target
        if method in KERNELS:  # page-locked host memory has one address for all GPUs
            words = chunk.size // 8
            assert self.acting.kernels is not None
            threads = grid(self.acting.device.multiprocessors, words, self.kernels_at_once)
            cuda.launch(self.acting.kernels["gputopo_copy"], stream, (target, source, words), threads)
        elif kind == "h2d":
            cuda.ask("cuMemcpyHtoDAsync", target, source, chunk.size, stream)
        elif kind == "d2h":
            cuda.ask("cuMemcpyDtoHAsync", target, source, chunk.size, stream)
        elif kind == "d2d_local":
            cuda.ask("cuMemcpyDtoDAsync", target, source, chunk.size, stream)
        else:
            to, origin = self.target.card.ordinal, self.origin.card.ordinal
            cuda.copy_to_peer((to, target), (origin, source), chunk.size, stream)

    def ends(self) -> list[float]:
        """Return the seconds from the release to the end of each chunk. Raises CudaError."""
        self.acting.use()
        assert self.start is not None
        return [self.acting.cuda.seconds_between(self.start, mark) for mark in self.marks]

    def verify(self, waiter: Waiter) -> None:
        """Check all data that arrived, or the last round if the buffer is smaller. Raises CudaError."""
        check(self.target, self.written_bytes, self.seed, waiter)

    def _mark(self, card: EngineGpu, stream: Stream) -> None:
        self.last = card.event()
        card.cuda.ask("cuEventRecord", self.last, stream)
        self.marks.append(self.last)


def starts_apart_s(transfers: Iterable[Transfer]) -> float:
    """Return the longest time between the starts of two streams of one GPU. Raises CudaError.

    CUDA reports no time between events of two GPUs.
    """
    by_gpu = grouped(
        (transfer.acting.ordinal, (transfer.acting, transfer.start))
        for transfer in transfers
        if transfer.start is not None
    )
    longest_s = 0.0
    for starts in by_gpu.values():
        gpu, first = starts[0]
        gpu.use()
        apart_s = [gpu.cuda.seconds_between(first, start) for _, start in starts]
        longest_s = max(longest_s, max(apart_s) - min(apart_s))
    return longest_s


class StagedTransfer(Transfer):
    """A copy from one GPU to another through page-locked host memory, with a stream on each GPU.

    The time is measured between the destination's events. `bounce`: the addresses of the buffers. With one
    buffer, each chunk leaves the source only after the chunk before has arrived.
    """

    staged = True

    def __init__(
        self,
        copy: Copy,
        acting: EngineGpu,
        spans: tuple[Span, Span],
        chunks: tuple[Chunk, ...],
        seed: int,
        repeats: int = 1,
        *,
        bounce: tuple[int, ...],
    ) -> None:
        super().__init__(copy, acting, spans, chunks, seed, repeats)
        self._bounce = bounce
        self._full: Event | None = None  # when the last chunk had left the source

    @cached_property
    def streams(self) -> list[tuple[EngineGpu, Stream]]:
        """The source's stream, and the destination's."""
        source, target = self.origin.card, self.target.card
        return [(source, source.next_stream()), (target, target.next_stream())]

    @property
    def lasts(self) -> list[Event]:
        """The last event of each stream: an error in the copy to the host shows only in its own stream."""
        return [event for event in (self._full, self.last) if event is not None]

    def enqueue(self, blocker: StreamBlocker) -> None:
        """Enqueue all chunks in both streams, blocked until the release. Raises CudaError."""
        (source, out), (target, into) = self.streams
        cuda = source.cuda
        source.use()
        blocker.block(source, out)
        target.use()
        blocker.block(target, into)
        self.start = target.event()
        cuda.ask("cuEventRecord", self.start, into)
        for index, chunk in enumerate(self.chunks):
            slots = len(self._bounce)
            host = self._bounce[index % slots]
            self._full = full = source.event()
            if index >= slots:
                cuda.wait_for_event(out, self.marks[index - slots])
            cuda.ask("cuMemcpyDtoHAsync", host, self.origin.address + chunk.source, chunk.size, out)
            cuda.ask("cuEventRecord", full, out)
            target.use()
            cuda.wait_for_event(into, full)
            cuda.ask("cuMemcpyHtoDAsync", self.target.address + chunk.target, host, chunk.size, into)
            self._mark(target, into)


class PageableTransfer(Transfer):
    """A copy to or from memory that is not page-locked. The calls wait, so no stream can be blocked."""

    def run(self, waiter: Waiter, while_running: Callable[[], None] | None) -> None:
        """Copy the chunks one after the other, each between its own two events. Raises CudaError."""
        ((card, stream),) = self.streams
        for chunk in self.chunks:
            before = card.event()
            card.cuda.ask("cuEventRecord", before, stream)
            self.marks.append(before)
            self.move(chunk, stream)
            self._mark(card, stream)
            waiter.stream(stream, card.event(), chunk.size)
            if while_running is not None:
                while_running()

    def ends(self) -> list[float]:
        """Return when each chunk would have ended without pauses between them. Raises CudaError."""
        self.acting.use()
        seconds, ends = 0.0, list[float]()
        for before, after in list(pairwise(self.marks))[::2]:
            seconds += self.acting.cuda.seconds_between(before, after)
            ends.append(seconds)
        return ends


class Chase(Transfer):
    """The acting GPU follows a chain of pointers in the memory of the copy's source, a GPU or the host."""

    @property
    def _base(self) -> int:
        return self.origin.address if self.origin.on_host else self.origin.card.small

    @property
    def _out(self) -> int:
        return self.acting.small + CHAIN_BYTES + 8

    def prepare(self, waiter: Waiter) -> None:
        """Write the chain (only once on a GPU), and clear the result. Raises CudaError."""
        assert self.streams  # created now, as in other copies
        owner = self.origin.card
        if self.origin.on_host:
            ctypes.memmove(self._base, chain(self._base).tobytes(), CHAIN_BYTES)
        elif not owner.has_chain:
            _lay(owner, waiter)
            owner.has_chain = True
        stream, event = self.acting.stream(0), self.acting.event()
        self.acting.cuda.ask("cuMemsetD8Async", self._out, 0, 8, stream)
        waiter.stream(stream, event, 8)

    def enqueue(self, blocker: StreamBlocker) -> None:
        """Enqueue the kernel, blocked until the release. Raises CudaError."""
        ((card, stream),) = self.streams
        assert card.kernels is not None
        card.use()
        blocker.block(card, stream)
        self.start = card.event()
        card.cuda.ask("cuEventRecord", self.start, stream)
        words = (self._base + _STRIDE * _order()[0], STEPS, self._out)
        card.cuda.launch(card.kernels["gputopo_chase"], stream, words, (1, 1))
        self._mark(card, stream)

    def verify(self, waiter: Waiter) -> None:
        """Compare the last pointer with the expected one. Raises CudaError."""
        card = self.acting
        scratch = card.scratch()
        stream, event = card.stream(0), card.event()
        card.cuda.ask("cuMemcpyDtoHAsync", scratch, self._out, 8, stream)
        waiter.stream(stream, event, 8)
        last = ctypes.c_uint64.from_address(scratch).value
        if last != self._base + _STRIDE * _order()[STEPS % _NODES]:
            raise CudaError(WRONG_DATA, f"after {STEPS} steps through a chain of pointers the last is wrong")


@functools.cache
def _order() -> tuple[int, ...]:
    nodes = list(range(_NODES))
    random.Random(1).shuffle(nodes)
    return tuple(nodes)


@functools.lru_cache(maxsize=4)  # host memory is written again for each window
def chain(base: int) -> "array[int]":
    """Return the 2 MiB of a chain at address `base`: one cycle through all nodes."""
    words = array("Q", bytes(CHAIN_BYTES))
    order = _order()
    for node, next_node in zip(order, (*order[1:], order[0]), strict=True):
        words[node * _STRIDE // 8] = base + _STRIDE * next_node
    return words


def _lay(card: EngineGpu, waiter: Waiter) -> None:
    """Write the chain and read it back: a kernel that follows a wrong pointer destroys its context."""
    data = memoryview(chain(card.small)).cast("B")
    scratch, stream = card.scratch(), card.stream(0)
    for offset in range(0, CHAIN_BYTES, BLOCK_BYTES):
        block = bytes(data[offset : offset + BLOCK_BYTES])
        ctypes.memmove(scratch, block, BLOCK_BYTES)
        card.cuda.ask("cuMemcpyHtoDAsync", card.small + offset, scratch, BLOCK_BYTES, stream)
        waiter.stream(stream, card.event(), BLOCK_BYTES)
        ctypes.memset(scratch, 0, BLOCK_BYTES)
        card.cuda.ask("cuMemcpyDtoHAsync", scratch, card.small + offset, BLOCK_BYTES, stream)
        waiter.stream(stream, card.event(), BLOCK_BYTES)
        if ctypes.string_at(scratch, BLOCK_BYTES) != block:
            raise CudaError(
                WRONG_DATA, "a chain of pointers did not arrive as it was sent: it is not followed"
            )
