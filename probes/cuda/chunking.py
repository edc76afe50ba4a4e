"""Cuts copies into chunks, and computes rates from the times at which the chunks end."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from gputopo.probes.cuda.pattern import BLOCK_BYTES, whole_blocks
from gputopo.values.bandwidth import LARGE_BYTES

# A blocked stream accepts about a thousand commands (CUDA drivers keep 1024). A call that adds one more would
# wait forever. A staged chunk is three commands in a stream.
MAX_CHUNKS = 256
# For copies at once: enough chunks that the end of the first copy is near the end of a chunk of the others.
# Each chunk is long enough that the gap between two chunks (1 to 2 us) is below 1 % at 25 GB/s and above.
_CHUNKS_AT_ONCE = 16
_MIN_AT_ONCE = 4 * BLOCK_BYTES
# For staged copies: nothing overlaps the first chunk's copy to the host, and each chunk costs two hand-overs.
_CHUNKS_STAGED = 32
_MIN_STAGED = 2 * BLOCK_BYTES
# From this number of chunks, the rate of a staged path is measured from the first arrival to the last.
_STEADY_FROM = 8
_ARRIVALS_WITHIN = 3  # the same in a common window: the first chunk is then a small part of it
# If the last chunk that ends in the common window ends after this share of it, the rate is measured up to
# that end. Otherwise it is measured up to the window's end, as if the next chunk's bytes came evenly.
_COVERED = 0.5


class Chunk(NamedTuple):
    """A chunk of a copy: its start in the buffer of each side, and its bytes."""

    source: int
    target: int
    size: int


def fitting(sizes: Sequence[int], capacities: Sequence[int]) -> list[int]:
    """Return sizes that fit, all reduced by the same factor, so that all copies end together.

    No size is reduced below what is needed to measure a link (LARGE_BYTES), or increased to it.
    """
    part = min((capacity / size for size, capacity in zip(sizes, capacities, strict=True)), default=1.0)
    if part >= 1:
        return list(sizes)
    return [max(int(size * part) // BLOCK_BYTES * BLOCK_BYTES, min(size, LARGE_BYTES)) for size in sizes]


def chunks(size: int, source_bytes: int, target_bytes: int, chunk: int | None = None) -> tuple[Chunk, ...]:
    """Cut `size` bytes into chunks that fill the buffer of each side and then start again at 0.

    `chunk`: bytes of each chunk; None: as many as fit in both buffers. Buffers and `chunk` are multiples of
    the pattern's 256 KiB, so that both sides are always at the same position in the pattern. Returns no more
    than MAX_CHUNKS and drops the rest. Raises ValueError if a buffer has no capacity.
    """
    capacity = min(source_bytes, target_bytes)
    if capacity <= 0 or size <= 0:
        raise ValueError(f"cannot copy {size} bytes in a buffer of {capacity}")
    step = capacity if chunk is None else max(1, min(chunk, capacity))
    pieces: list[Chunk] = []
    left, source, target = size, 0, 0
    while left > 0 and len(pieces) < MAX_CHUNKS:
        part = min(step, left, source_bytes - source, target_bytes - target)
        pieces.append(Chunk(source, target, part))
        left -= part
        source, target = (source + part) % source_bytes, (target + part) % target_bytes
    return tuple(pieces)


def messages(size: int, capacity: int, count: int) -> tuple[Chunk, ...]:
    """Return `count` messages of one size, one after the other in the buffer, so that all can be compared."""
    size = min(size, capacity)
    places = (number % (capacity // size) * size for number in range(count))
    return tuple(Chunk(place, place, size) for place in places)


def chunk_at_once(size: int) -> int:
    """Return the bytes of a chunk if several paths run at once."""
    return whole_blocks(max(size // _CHUNKS_AT_ONCE, _MIN_AT_ONCE) + BLOCK_BYTES - 1)


def chunk_staged(size: int, capacity: int) -> int:
    """Return the bytes of a chunk of a staged copy, in a buffer of `capacity` bytes."""
    return min(whole_blocks(max(size // _CHUNKS_STAGED, _MIN_STAGED) + BLOCK_BYTES - 1), capacity)


def rate_alone(sizes: Sequence[int], ends: Sequence[float], *, staged: bool = False) -> float:
    """Return one path's bytes per second. `ends`: seconds from the release to the end of each chunk."""
    if staged and len(sizes) >= _STEADY_FROM and ends[-1] > ends[0]:
        return sum(sizes[1:]) / (ends[-1] - ends[0])
    return sum(sizes) / ends[-1] if ends[-1] > 0 else 0.0


def common_window(ends: Sequence[Sequence[float]]) -> float:
    """Return the seconds from the release until the first path has ended."""
    return min(path[-1] for path in ends)


def rate_within(sizes: Sequence[int], ends: Sequence[float], window: float, *, staged: bool = False) -> float:
    """Return one path's bytes per second in the first `window` seconds after the release.

    Measured up to the last chunk that ended in the window, so that no byte is counted that came after another
    path ended. If that chunk ended too early, measured up to the window's end, as if the next chunk's bytes
    came evenly. A staged path is measured from its first arrival if that is in the first half of the window.
    """
    if window <= 0:
        return 0.0
    arrived = [0, *accumulate(sizes)]
    times = [0.0, *ends]
    last = max(index for index, time in enumerate(times) if time <= window)
    first = 1 if staged and last >= _ARRIVALS_WITHIN and times[1] <= window / 2 else 0
    if times[last] >= window * _COVERED or last == len(sizes):
        return (arrived[last] - arrived[first]) / (times[last] - times[first])
    part = (window - times[last]) / (times[last + 1] - times[last])
    return (arrived[last] + part * sizes[last]) / window
