"""CPU lists as the kernel and `nvidia-smi topo -m` write them: `0-9,20-29`."""

import re
from collections.abc import Iterable

from gputopo.values.index_ranges import index_ranges

_LIST = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*", re.ASCII)

# Linux builds with at most 8192 CPUs (CONFIG_NR_CPUS_RANGE_END); a larger number is a misreading.
_MOST_CPUS = 8192


def parse(text: str) -> frozenset[int] | None:
    """Give the CPUs of a list such as `0-9,20-29`, or None where the text is no such list."""
    if _LIST.fullmatch(text) is None:
        return None
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low > high or high >= _MOST_CPUS:
            return None
        cpus.update(range(low, high + 1))
    return frozenset(cpus)


def write(cpus: Iterable[int]) -> str:
    """Write CPU numbers as a list with ranges, ascending: `{0, 1, 2, 5}` is `0-2,5`."""
    return index_ranges(cpus)
