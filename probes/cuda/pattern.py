"""The pattern in the copied data, from splitmix64: a block for each seed, as the kernels compute it."""

import functools
from array import array

BLOCK_WORDS = 32768
BLOCK_BYTES = 8 * BLOCK_WORDS
# Each window's seed is this many words after the seed of the window before, so that one table contains all
# blocks. It is odd and not small, so data that is shifted by a few words does not match another window's
# pattern.
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
    """Return the size rounded down to whole blocks of the pattern, and at least one block."""
    return max(1, size // BLOCK_BYTES) * BLOCK_BYTES


def seed_of(window: int) -> int:
    """Return the seed of a window. Seeds repeat after 128 windows."""
    return window % SEEDS * _STEP


def block(seed: int) -> memoryview:
    """Return the repeated block of 256 KiB for a seed from `seed_of`."""
    return memoryview(_table()).cast("B")[8 * seed : 8 * seed + BLOCK_BYTES]


@functools.cache
def _table() -> "array[int]":
    """Return all words of all seeds. Takes 40 ms once."""
    return array("Q", map(splitmix64, range(BLOCK_WORDS + SEEDS * _STEP)))
