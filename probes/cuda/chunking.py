"""The chunks that a copy is cut into, and its rate by the ends of these chunks."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from gputopo.probes.cuda.pattern import BLOCK_BYTES, whole_blocks
from gputopo.values.bandwidth import LARGE_BYTES

# A blocked stream accepts about a thousand commands before the call that adds one waits (CUDA drivers keep
# 1024); it would wait for ever. A staged chunk is three commands of a stream.
MAX_CHUNKS = 256
# Copies at once: enough chunks that where the first one ends falls near an end of the others' chunks;
# each long enough that the gap between two of them (1 to 2 us) is below 1 % at 25 GB/s and above.
_CHUNKS_AT_ONCE = 16
_MIN_AT_ONCE = 4 * BLOCK_BYTES
# Staged: the first chunk's copy to the host is overlapped with nothing, and each chunk costs two hand-overs.
_CHUNKS_STAGED = 32
_MIN_STAGED = 2 * BLOCK_BYTES
# From so many chunks on, the rate of a staged path is that between the arrivals of the first and the last.
_STEADY_FROM = 8
_ARRIVALS_WITHIN = 3  # and within a common window, of which the first was then no large part
# The last end of a chunk within the common window counts if it covers this share of it; else the time of
# the first end is found within the chunk, as if its bytes came evenly.
_COVERED = 0.5


class Chunk(NamedTuple):
    """A chunk of a copy: where it begins in the buffer of either side, and its bytes."""

    source: int
    target: int
    size: int


def fitting(sizes: Sequence[int], capacities: Sequence[int]) -> list[int]:
    """Return sizes that fit, all made smaller by the same factor, so that all copies end together.

    None is made smaller than what is needed to show a link (LARGE_BYTES), or than it was.
    """
    part = min((capacity / size for size, capacity in zip(sizes, capacities, strict=True)), default=1.0)
    if part >= 1:
        return list(sizes)
    return [max(int(size * part) // BLOCK_BYTES * BLOCK_BYTES, min(size, LARGE_BYTES)) for size in sizes]


def chunks(size: int, source_bytes: int, target_bytes: int, chunk: int | None = None) -> tuple[Chunk, ...]:
    """Cut `size` bytes into chunks that go round in a buffer of each side, and begin again at 0.

    `chunk`: bytes of each, as many as both buffers hold if None. Buffers and `chunk` are multiples of the
    pattern's 256 KiB, so that both sides are always at the same place of the pattern. No more than
    MAX_CHUNKS: what is beyond is left out. Raises ValueError for no capacity.
    """
    capacity = min(source_bytes, target_bytes)
    if capacity <= 0 or size <= 0:
        raise ValueError(f"cannot copy {size} bytes in a buffer of {capacity}")
    step = capacity if chunk is None else max(1, min(chunk, capacity))
    found: list[Chunk] = []
    left, source, target = size, 0, 0
    while left > 0 and len(found) < MAX_CHUNKS:
        part = min(step, left, source_bytes - source, target_bytes - target)
        found.append(Chunk(source, target, part))
        left -= part
        source, target = (source + part) % source_bytes, (target + part) % target_bytes
    return tuple(found)


def messages(size: int, capacity: int, count: int) -> tuple[Chunk, ...]:
    """Return the same message `count` times, each behind the one before, so that all can be compared."""
    size = min(size, capacity)
    places = (number % (capacity // size) * size for number in range(count))
    return tuple(Chunk(place, place, size) for place in places)


def chunk_at_once(size: int) -> int:
    """Return the bytes of a chunk where several paths run at once."""
    return whole_blocks(max(size // _CHUNKS_AT_ONCE, _MIN_AT_ONCE) + BLOCK_BYTES - 1)


def chunk_staged(size: int, capacity: int) -> int:
    """Return the bytes of a chunk through the host, in a buffer of `capacity` bytes."""
    return min(whole_blocks(max(size // _CHUNKS_STAGED, _MIN_STAGED) + BLOCK_BYTES - 1), capacity)


def rate_alone(sizes: Sequence[int], ends: Sequence[float], *, staged: bool = False) -> float:
    """Return bytes per second of one path; `ends`: seconds from the release to the end of each chunk."""
    if staged and len(sizes) >= _STEADY_FROM and ends[-1] > ends[0]:
        return sum(sizes[1:]) / (ends[-1] - ends[0])
    return sum(sizes) / ends[-1] if ends[-1] > 0 else 0.0


def common_window(ends: Sequence[Sequence[float]]) -> float:
    """Return the seconds from the release until the first of the paths was through."""
    return min(path[-1] for path in ends)


def rate_within(sizes: Sequence[int], ends: Sequence[float], window: float, *, staged: bool = False) -> float:
    """Return bytes per second of one path from the release until `window` seconds after it.

    Up to the last chunk that was through by then, so that nothing counts that came when another path had
    ended already; if that is too early, up to the window's end, the chunk then under way taken as even.
    A staged path is counted from its first arrival where that is not later than half the window.
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
