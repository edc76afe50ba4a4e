"""One copy within one window: what is written before, enqueued in a blocked stream, timed and checked."""

import ctypes
import functools
import random
from array import array
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import pairwise

from gputopo.copies.copies import Copy
from gputopo.probes.cuda.blocking import StreamBlocker
from gputopo.probes.cuda.chunking import Chunk
from gputopo.probes.cuda.door import CudaError, Event, Stream
from gputopo.probes.cuda.gpus import CHAIN_BYTES, EngineGpu
from gputopo.probes.cuda.kernels import grid
from gputopo.probes.cuda.pattern import BLOCK_BYTES
from gputopo.probes.cuda.verify import WRONG_DATA, Span, check, clear, fill
from gputopo.probes.cuda.waiting import Waiter
from gputopo.values.bandwidth import KERNELS

# Pointer chase: one pointer a cache line (128 bytes) in 2 MiB, as nvbandwidth has it, in random order.
_STRIDE = 128
_NODES = CHAIN_BYTES // _STRIDE
STEPS = 4096  # about 3 to 10 ms over PCIe


class Transfer:
    """A copy from one span to another in one stream of the GPU that acts.

    `repeats`: how many messages or steps the chunks are, which are then timed together. `kernels_at_once`:
    how many copies of the window are done by kernels of the GPU that acts.
    """

    staged = False

    def __init__(
        self,
        copy: Copy,
        acting: EngineGpu,
        spans: tuple[Span, Span],
        chunks: tuple[Chunk, ...],
        seed: int,
    ) -> None:
        self.copy = copy
        self.acting = acting
        self.origin, self.target = spans
        self.chunks = chunks
        self.seed = seed
        self.repeats = 1
        self.kernels_at_once = 1
        self.marks: list[Event] = []
        self.start: Event | None = None
        self.last: Event | None = None

    @property
    def sizes(self) -> list[int]:
        """Bytes that came by each of the ends."""
        sizes = [chunk.size for chunk in self.chunks]
        return [sum(sizes)] if len(self.marks) == 1 else sizes

    @property
    def read_bytes(self) -> int:
        """Bytes of the source's buffer that the chunks touch."""
        return max(chunk.source + chunk.size for chunk in self.chunks)

    @property
    def written_bytes(self) -> int:
        """Bytes of the destination's buffer that the chunks touch."""
        return max(chunk.target + chunk.size for chunk in self.chunks)

    @property
    def lasts(self) -> list[Event]:
        """The last event of each stream: when they have happened, all is done."""
        return [] if self.last is None else [self.last]

    @cached_property
    def streams(self) -> list[tuple[EngineGpu, Stream]]:
        """All streams that carry something of this copy."""
        return [(self.acting, self.acting.next_stream())]

    def prepare(self, waiter: Waiter) -> None:
        """Make the streams, write the pattern at the source, other bytes at the destination.

        Raises CudaError.
        """
        assert self.streams  # made now: once a stream is blocked, making one might wait
        fill(self.origin, self.read_bytes, self.seed, waiter)
        clear(self.target, self.written_bytes, waiter)

    def enqueue(self, blocker: StreamBlocker) -> None:
        """Enqueue all in the stream, blocked until the release. Raises CudaError."""
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
        if self.repeats > 1:  # an event behind every small copy would be in the time
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
        """Look at all that arrived; where the buffer is smaller, at the last round. Raises CudaError."""
        check(self.target, self.written_bytes, self.seed, waiter)

    def _mark(self, card: EngineGpu, stream: Stream) -> None:
        self.last = card.event()
        card.cuda.ask("cuEventRecord", self.last, stream)
        self.marks.append(self.last)


def starts_apart_s(transfers: Iterable[Transfer]) -> float:
    """Return the longest time between the starts of two streams of one GPU. Raises CudaError.

    Events of two GPUs have no time between them.
    """
    firsts: dict[int, Event] = {}
    apart: dict[int, list[float]] = {}
    for one in transfers:
        if one.start is not None:
            first = firsts.setdefault(one.acting.ordinal, one.start)
            one.acting.use()
            apart.setdefault(one.acting.ordinal, []).append(one.acting.cuda.seconds_between(first, one.start))
    return max((max(own) - min(own) for own in apart.values()), default=0.0)


class StagedTransfer(Transfer):
    """From one GPU to another through buffers of page-locked host memory, by a stream of either.

    The time is the destination's own, between its events. `bounce`: the addresses of the buffers; with one,
    no chunk leaves the source before the one before it has arrived.
    """

    staged = True

    def __init__(
        self,
        copy: Copy,
        acting: EngineGpu,
        spans: tuple[Span, Span],
        chunks: tuple[Chunk, ...],
        seed: int,
        bounce: tuple[int, ...],
    ) -> None:
        super().__init__(copy, acting, spans, chunks, seed)
        self._bounce = bounce
        self._full: Event | None = None  # when the last chunk had left the source

    @cached_property
    def streams(self) -> list[tuple[EngineGpu, Stream]]:
        """The source's stream, and the destination's."""
        source, target = self.origin.card, self.target.card
        return [(source, source.next_stream()), (target, target.next_stream())]

    @property
    def lasts(self) -> list[Event]:
        """The last event of each stream: an error of the copy to the host shows in its own only."""
        return [event for event in (self._full, self.last) if event is not None]

    def enqueue(self, blocker: StreamBlocker) -> None:
        """Enqueue all in both streams, blocked until the release. Raises CudaError."""
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
    """To or from memory that is not page-locked: the calls wait, so nothing can be blocked."""

    def run(self, waiter: Waiter, while_running: Callable[[], None] | None) -> None:
        """Copy chunk after chunk, each between its own two events. Raises CudaError."""
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
        """Return when each chunk would have ended, had they come without a pause. Raises CudaError."""
        self.acting.use()
        seconds, ends = 0.0, list[float]()
        for before, after in list(pairwise(self.marks))[::2]:
            seconds += self.acting.cuda.seconds_between(before, after)
            ends.append(seconds)
        return ends


class Chase(Transfer):
    """The acting GPU follows a chain of pointers in the memory of the copy's source: a GPU, or the host."""

    @property
    def _base(self) -> int:
        return self.origin.address if self.origin.on_host else self.origin.card.small

    @property
    def _out(self) -> int:
        return self.acting.small + CHAIN_BYTES + 8

    def prepare(self, waiter: Waiter) -> None:
        """Lay the chain, once on a GPU, and clear the result. Raises CudaError."""
        assert self.streams  # made now, as those of other copies
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
        """Compare the last pointer with the one that the chain has there. Raises CudaError."""
        card = self.acting
        scratch = card.scratch()
        stream, event = card.stream(0), card.event()
        card.cuda.ask("cuMemcpyDtoHAsync", scratch, self._out, 8, stream)
        waiter.stream(stream, event, 8)
        found = ctypes.c_uint64.from_address(scratch).value
        if found != self._base + _STRIDE * _order()[STEPS % _NODES]:
            raise CudaError(WRONG_DATA, f"after {STEPS} steps through a chain of pointers the last is wrong")


@functools.cache
def _order() -> tuple[int, ...]:
    nodes = list(range(_NODES))
    random.Random(1).shuffle(nodes)
    return tuple(nodes)


@functools.lru_cache(maxsize=4)  # host memory is written anew for each window
def chain(base: int) -> "array[int]":
    """Return the 2 MiB of a chain that lies at `base`: one cycle through all nodes."""
    words = array("Q", bytes(CHAIN_BYTES))
    order = _order()
    for here, there in zip(order, (*order[1:], order[0]), strict=True):
        words[here * _STRIDE // 8] = base + _STRIDE * there
    return words


def _lay(card: EngineGpu, waiter: Waiter) -> None:
    """Write the chain and read it back: a wrong pointer would end the context of whoever follows it."""
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
