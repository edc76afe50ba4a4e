"""Writes the pattern before a copy and checks it afterwards, never in the timed part."""

import ctypes
import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from gputopo.probes.cuda.door import CudaError
from gputopo.probes.cuda.gpus import CHAIN_BYTES, EngineGpu
from gputopo.probes.cuda.kernels import grid
from gputopo.probes.cuda.pattern import BLOCK_BYTES, block
from gputopo.probes.cuda.waiting import Waiter
from gputopo.probes.numa import LIBC, NoThreadsError, at_once

WRONG_DATA = "WRONG_DATA"

# The bytes in a destination before a copy. A word of them is in the pattern with a probability of 2^-64.
_CLEARED = 0xA5

# Threads that write and compare host memory. One thread takes longer than the copy; eight saturate the memory
# of one NUMA node. Below the minimum part, starting a thread takes longer than the work.
MAX_THREADS = 8
MIN_PART_BYTES = 8 * 2**20


class Span(NamedTuple):
    """Memory that one path uses, on a GPU or on the host (then `card` is the GPU that uses it)."""

    card: EngineGpu
    address: int
    capacity: int
    on_host: bool


def fill(span: Span, size: int, seed: int, waiter: Waiter) -> None:
    """Write the pattern. Raises CudaError."""
    if span.on_host:
        in_parts(size, lambda offset, part: _write_blocks(span.address + offset, part, seed))
        return
    card = span.card
    kernels = card.load_kernels()
    stream, event = card.stream(0), card.event()
    if kernels is not None and size % 8 == 0:
        words = size // 8
        threads = grid(card.device.multiprocessors, words)
        card.cuda.launch(kernels["gputopo_fill"], stream, (span.address, words, seed), threads)
    else:
        scratch = card.scratch()
        _write_blocks(scratch, BLOCK_BYTES, seed)
        for offset in range(0, size, BLOCK_BYTES):
            card.cuda.ask(
                "cuMemcpyHtoDAsync", span.address + offset, scratch, min(BLOCK_BYTES, size - offset), stream
            )
    waiter.stream(stream, event, size)


def clear(span: Span, size: int, waiter: Waiter) -> None:
    """Overwrite the data of an earlier copy. Raises CudaError."""
    if span.on_host:
        in_parts(size, lambda offset, part: ctypes.memset(span.address + offset, _CLEARED, part))
        return
    stream, event = span.card.stream(0), span.card.event()
    span.card.cuda.ask("cuMemsetD8Async", span.address, _CLEARED, size, stream)
    waiter.stream(stream, event, size)


def check(span: Span, size: int, seed: int, waiter: Waiter) -> None:
    """Check the pattern. Raises CudaError: WRONG_DATA with the first wrong byte, or the driver's error."""
    if span.on_host:
        in_parts(size, lambda offset, part: _compare(span.address + offset, offset, part, size, seed))
        return
    card = span.card
    card.use()
    if card.load_kernels() is None or size % 8 or _wrong_words(span, size, seed, waiter):
        _check_by_copying_back(span, size, seed, waiter)


def _wrong_words(span: Span, size: int, seed: int, waiter: Waiter) -> int:
    card = span.card
    assert card.kernels is not None
    stream, event, counter = card.stream(0), card.event(), card.small + CHAIN_BYTES
    card.cuda.ask("cuMemsetD8Async", counter, 0, 8, stream)
    words = size // 8
    threads = grid(card.device.multiprocessors, words)
    card.cuda.launch(card.kernels["gputopo_check"], stream, (span.address, words, seed, counter), threads)
    scratch = card.scratch()
    card.cuda.ask("cuMemcpyDtoHAsync", scratch, counter, 8, stream)
    waiter.stream(stream, event, size)
    return ctypes.c_uint64.from_address(scratch).value


def _check_by_copying_back(span: Span, size: int, seed: int, waiter: Waiter) -> None:
    card, scratch = span.card, span.card.scratch()
    stream, event = card.stream(0), card.event()
    for offset in range(0, size, BLOCK_BYTES):
        part = min(BLOCK_BYTES, size - offset)
        card.cuda.ask("cuMemcpyDtoHAsync", scratch, span.address + offset, part, stream)
        waiter.stream(stream, event, part)
        _compare(scratch, offset, part, size, seed)
    if card.kernels is not None and size % 8 == 0:
        raise CudaError(
            WRONG_DATA, f"the GPU reported wrong data in {size} bytes that are right when read back"
        )


def _compare(address: int, offset: int, size: int, whole: int, seed: int) -> None:
    """Compare a part of host memory in blocks: `size` of `whole` bytes, from `offset`."""
    right = _address_of_block(seed)
    for start in range(0, size, BLOCK_BYTES):
        part = min(BLOCK_BYTES, size - start)
        if LIBC.memcmp(address + start, right, part):
            arrived, expected = ctypes.string_at(address + start, part), bytes(block(seed)[:part])
            first = next((i for i, (a, b) in enumerate(zip(arrived, expected, strict=True)) if a != b), None)
            if first is None:
                raise CudaError(
                    WRONG_DATA,
                    f"{part} bytes from byte {offset + start} of {whole} on were wrong and then right: they"
                    " arrived after the copy was reported complete",
                )
            raise CudaError(
                WRONG_DATA,
                f"byte {offset + start + first} of {whole} is 0x{arrived[first]:02x},"
                f" not 0x{expected[first]:02x}; that block of {part} bytes has"
                f" {sum(a != b for a, b in zip(arrived, expected, strict=True))} wrong ones",
            )


def _write_blocks(address: int, size: int, seed: int) -> None:
    right = _address_of_block(seed)
    for offset in range(0, size, BLOCK_BYTES):
        ctypes.memmove(address + offset, right, min(BLOCK_BYTES, size - offset))


def _address_of_block(seed: int) -> int:
    """Return the address of the pattern. Its table stays cached."""
    return ctypes.addressof(ctypes.c_char.from_buffer(block(seed)))


def in_parts(size: int, work: Callable[[int, int], object]) -> None:
    """Call `work(offset, bytes)` in threads for parts of `size` bytes, in whole blocks except for the last.

    `work` must call functions that release the GIL, as ctypes does. The threads use the CPUs of the calling
    thread. All have ended when this returns or raises. Raises the exception of the first part that raised
    one.
    """
    count = min(MAX_THREADS, len(os.sched_getaffinity(0)), size // MIN_PART_BYTES)
    if count < 2:
        work(0, size)
        return
    part_bytes = -(-size // count // BLOCK_BYTES) * BLOCK_BYTES
    parts = [partial(work, offset, min(part_bytes, size - offset)) for offset in range(0, size, part_bytes)]
    try:
        at_once(parts)
    except NoThreadsError:
        work(0, size)
