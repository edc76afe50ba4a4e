"""Sizes and orders of chunks, rings, groups, rows and spread variables. Only arithmetic, no TensorFlow."""

from collections.abc import Sequence

from gputopo.launch.device_names import rank_of
from gputopo.topology import Groups
from gputopo.workload import chunk_count, spread_by_size

UNIT = 32
"""Elements: 64 bytes of float16, TensorFlow's alignment. A chunk that begins and ends at a multiple of it can
be sliced from a tensor without a copy."""


def chunk_sizes(size: int, count: int, min_size: int = 1, unit: int = 1) -> list[int]:
    """Cut `size` elements into up to `count` chunks of at least `min_size`, in order.

    Chunks are multiples of `unit` and differ by up to one unit, larger chunks first. The last chunk also has
    the remainder. A tensor smaller than `min_size` is one chunk. A tensor with fewer units than chunks is cut
    at any element.
    """
    count = chunk_count(size, count, min_size)
    if size < count * unit:
        unit = 1
    units, remainder = divmod(size, unit)
    fewer, more = divmod(units, count)
    cut = [(fewer + 1) * unit] * more + [fewer * unit] * (count - more)
    return [*cut[:-1], cut[-1] + remainder]


def small_runs(sizes: Sequence[int], small: int, max_tensors: int) -> list[list[int]]:
    """Return the indices of tensors in groups that are reduced as one tensor, in order.

    `sizes` in bytes. Adjacent tensors of up to `small` bytes share a group of up to `max_tensors`. Every
    other tensor is a group by itself.
    """
    groups: list[list[int]] = []
    open_ = False
    for number, size in enumerate(sizes):
        joins = size <= small
        if joins and open_ and len(groups[-1]) < max_tensors:
            groups[-1].append(number)
        else:
            groups.append([number])
        open_ = joins
    return groups


def starts_of(count: int, towers: int, rings: int, first: int = 0) -> list[int]:
    """Return the tower at which each of `count` chunks starts, ring by ring; the first starts at `first`."""
    apart = max(1, towers // rings)
    return [(first + chunk % towers + chunk // towers * apart) % towers for chunk in range(count)]


def owners_of(sizes: Sequence[int], devices: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the devices of each variable, spread by size: one device, or all devices with a part each.

    `sizes` in elements. Logical CPU devices share memory, so variables are not cut on them: nothing is
    transferred between them, and joining the parts would only need more memory.
    """
    spread_over = spread_by_size(sizes, len(devices), cuts=not share_memory(devices))
    return [tuple(devices[owner] for owner in owners) for owners in spread_over]


def halves(towers: int) -> Groups:
    """Return the groups if the topology is unknown: the first and the second half of the towers.

    The first half is larger by one if the number of towers is odd; a single tower is one group.
    """
    first = (towers + 1) // 2
    return tuple(group for group in (tuple(range(first)), tuple(range(first, towers))) if group)


def leaders_of(groups: Groups, number: int) -> tuple[list[int], int]:
    """Return the tower that leads each group for a variable, and the group that computes the total."""
    rank, main = divmod(number, len(groups))
    return [group[rank % len(group)] for group in groups], main


def by_host(devices: Sequence[str]) -> Groups:
    """Return the towers of each host. Hosts are in the order of their first devices."""
    hosts: dict[int | None, list[int]] = {}
    for tower, device in enumerate(devices):
        hosts.setdefault(rank_of(device), []).append(tower)
    return tuple(map(tuple, hosts.values()))


def share_memory(devices: Sequence[str]) -> bool:
    """Return whether some devices are logical CPU devices."""
    return any(device.startswith("/CPU:") for device in devices)
