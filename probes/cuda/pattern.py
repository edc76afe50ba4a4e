"""The pattern that copies carry, by splitmix64: a block for each seed, as the kernels compute it."""

import functools
from array import array

BLOCK_WORDS = 32768
BLOCK_BYTES = 8 * BLOCK_WORDS
# A window's seed is this many words further than the one before, so that one table serves all of them. It is
# odd and no neighbour: data that came a few words off is not taken for that of another window.
_STEP = 61
SEEDS = 128
_MASK = (1 << 64) - 1


def splitmix64(x: int) -> int:
    """Return the scrambled form of a 64-bit number."""
    z = (x + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def whole_blocks(size: int) -> int:
    """Return the bytes of the whole blocks of the pattern in a size, of one at least."""
    return max(1, size // BLOCK_BYTES) * BLOCK_BYTES


def seed_of(window: int) -> int:
    """Return the seed of a window; after 128 windows they come again."""
    return window % SEEDS * _STEP


def block(seed: int) -> memoryview:
    """Return the 256 KiB that are repeated, for a seed of `seed_of`, as bytes."""
    return memoryview(_table()).cast("B")[8 * seed : 8 * seed + BLOCK_BYTES]


@functools.cache
def _table() -> "array[int]":
    """Make all words of all seeds: 40 ms once."""
    return array("Q", map(splitmix64, range(BLOCK_WORDS + SEEDS * _STEP)))
