"""Variables spread over devices by size: which device adds or stores each, and which are cut.

Both `copy` and --ps gpu:spread use this rule, in the training core and in predictions of its steps.
"""

import heapq
from collections.abc import Sequence

MIN_CHUNK = 16_384
"""Minimum numbers in a chunk: 64 KiB of float32 take 5 us over PCIe 3.0 x16 (12 GB/s).

Starting a copy takes about as long, so that smaller chunks gain nothing. Every chunk also needs ops that must
be built, placed and started.
"""

EVEN = 1.05
"""Maximum load of an owner, in fair shares, up to which no further variable is cut.

Every cut costs a copy of the variable to put it together again.
"""


def spread_by_size(sizes: Sequence[int], count: int, *, cuts: bool = True) -> list[tuple[int, ...]]:
    """Return the owners (0 to `count` - 1) of each variable: one for a whole one, or all with equal parts.

    `sizes`: in numbers. A variable larger than a fair share, 1 / `count` of all, is cut, and every owner has
    a part of it. The next largest are cut too, until no owner has more than `EVEN` fair shares. All others
    stay whole: largest first, each on the owner with the fewest numbers so far, of equal ones the first.
    Nothing is cut into parts below `MIN_CHUNK`, and nothing at all without `cuts`.
    """
    order = sorted(range(len(sizes)), key=lambda number: -sizes[number])
    fair = sum(sizes) / count
    divisible = sum(size >= count * MIN_CHUNK for size in sizes) if cuts and count > 1 else 0
    cut = min(divisible, sum(size > fair for size in sizes))
    whole, max_load = _by_size(sizes, order[cut:], count)
    while cut < divisible and max_load + sum(sizes[number] for number in order[:cut]) / count > EVEN * fair:
        cut += 1
        whole, max_load = _by_size(sizes, order[cut:], count)
    return [(whole[number],) if number in whole else tuple(range(count)) for number in range(len(sizes))]


def chunk_count(size: int, count: int, min_size: int = MIN_CHUNK) -> int:
    """Return the number of chunks for `size` numbers: at most `count`, of at least `min_size` each."""
    return max(1, min(size // min_size, count))


def _by_size(sizes: Sequence[int], order: Sequence[int], count: int) -> tuple[dict[int, int], int]:
    """Assign whole variables to the least loaded owner; return the owner of each and the largest load."""
    loads = [(0, owner) for owner in range(count)]
    owners = {}
    for number in order:
        load, owner = loads[0]
        owners[number] = owner
        heapq.heapreplace(loads, (load + sizes[number], owner))
    return owners, max(load for load, _ in loads)
