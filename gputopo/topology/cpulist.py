"""CPU lists as the kernel and `nvidia-smi topo -m` write them: `0-9,20-29`."""

from collections.abc import Iterable

from gputopo.values.index_ranges import index_ranges, parse_ranges

# Linux builds with at most 8192 CPUs (CONFIG_NR_CPUS_RANGE_END); a larger number is a misreading.
_MAX_CPUS = 8192


def parse(text: str) -> frozenset[int] | None:
    """Return the CPUs of a list such as `0-9,20-29`, or None where the text is no such list."""
    cpus = parse_ranges(text)
    return None if cpus is None or cpus[-1] >= _MAX_CPUS else frozenset(cpus)


def write(cpus: Iterable[int]) -> str:
    """Write CPU numbers as a list with ranges, ascending: `{0, 1, 2, 5}` is `0-2,5`."""
    return index_ranges(cpus)
