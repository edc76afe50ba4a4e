"""Sizes and orders of chunks, rings, groups, rows and spread variables: arithmetic alone."""

from collections.abc import Sequence
from typing import Literal

from gputopo.topology.hops import Groups
from gputopo.values.errors import UsageError
from gputopo.values.run.device_names import rank_of
from gputopo.workload.spreading import chunk_count, spread

UNIT = 32
"""Numbers: 64 bytes of float16, TensorFlow's alignment. A chunk that begins and ends at a multiple of it can
be taken out of a tensor without a copy."""


def chunk_sizes(size: int, count: int, min_size: int = 1, unit: int = 1) -> list[int]:
    """Cut `size` numbers into at most `count` chunks of at least `min_size`, in order.

    They are multiples of `unit` and equal but for one unit, the larger ones first; the last one has the
    remainder as well. A tensor with fewer numbers than `min_size` is one chunk, and one that has no unit for
    every chunk is cut at any number.
    """
    count = chunk_count(size, count, min_size)
    if size < count * unit:
        unit = 1
    units, remainder = divmod(size, unit)
    fewer, more = divmod(units, count)
    cut = [(fewer + 1) * unit] * more + [fewer * unit] * (count - more)
    return [*cut[:-1], cut[-1] + remainder]


def small_runs(sizes: Sequence[int], small: int, max_tensors: int) -> list[list[int]]:
    """Return the indices of tensors in groups that are reduced as one, in order.

    `sizes` in bytes. Neighbours of at most `small` bytes share a group, `max_tensors` of them at a time;
    every other tensor is a group by itself.
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
    """Return the tower that each of `count` chunks starts at, ring by ring; the first one at `first`."""
    apart = max(1, towers // rings)
    return [(first + chunk % towers + chunk // towers * apart) % towers for chunk in range(count)]


def owners_of(sizes: Sequence[int], devices: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the devices of each variable, spread over them by size: one, or all of them with a part each.

    `sizes` in numbers. Logical CPU devices share one memory: nothing travels between them, and a variable
    that is cut would only need memory again to be put together. There all variables stay whole.
    """
    spread_over = spread(sizes, len(devices), cuts=not share_memory(devices))
    return [tuple(devices[owner] for owner in owners) for owners in spread_over]


def by_host(devices: Sequence[str]) -> Groups:
    """Return the towers of each host, hosts in the order of their first devices."""
    hosts: dict[int | None, list[int]] = {}
    for tower, device in enumerate(devices):
        hosts.setdefault(rank_of(device), []).append(tower)
    return tuple(map(tuple, hosts.values()))


def share_memory(devices: Sequence[str]) -> bool:
    """Return whether some devices are logical CPU devices."""
    return any(device.startswith("/CPU:") for device in devices)


Cut = Literal["even", "rest"]


def rows_of_towers(batch: int, towers: int, cut: Cut) -> list[tuple[int, int]]:
    """Return (first row, rows) of each tower of a Keras method. Raises UsageError if a tower would get none.

    even: sizes differ by one at most, the first towers have more; rest: the last tower takes what is left.
    """
    if batch < towers:
        raise UsageError(
            f"a batch of {batch} does not give each of {towers} devices a row",
            f"use a batch of {towers} or more, or fewer devices",
        )
    each, left = divmod(batch, towers)
    found, first = [], 0
    for tower in range(towers):
        more = int(tower < left) if cut == "even" else (left if tower == towers - 1 else 0)
        found.append((first, each + more))
        first += each + more
    return found
