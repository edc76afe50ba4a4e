"""Sizes and orders of chunks, rings, groups and spread variables: arithmetic alone."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from gputopo.launch.spec.names import rank_of
from gputopo.launch.train.placement.devices import home, settle
from gputopo.topology.hops import Groups
from gputopo.values.errors import HardwareError
from gputopo.workload.spreading import MIN_CHUNK, chunk_count, spread

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


Tensor = Any

Reducer = Callable[[Sequence[Sequence[Tensor]]], list[list[Tensor]]]
"""[variable][tower] -> the sums, [variable][tower]. May be built into several graphs.

What goes in is on the towers' devices, and so is what comes out; all towers get the same bits.
"""


def add(values: Sequence[Tensor]) -> Tensor:
    """Add tensors of one shape on the device in scope."""
    return tf.add_n(list(values)) if len(values) > 1 else tf.identity(values[0])


def on(device: str, value: Tensor) -> Tensor:
    """Return a tensor on a device. Moves it if it is not there."""
    with tf.device(device):
        return tf.identity(value)


# 1, 10, 100, ... as long as float64 holds every sum exactly; in float16 1, 2, 4, ...
_BASE_AND_DIGITS: dict[str, tuple[int, int]] = {"fp32": (10, 15), "fp16": (2, 11)}
# So many times the same sums for each device (of eight at most: 2 MiB on each), so that a reduction that cuts
# tensors cuts these into two chunks a device.
_ROWS = 2 * MIN_CHUNK


def self_test(
    reducer: Reducer,
    name: str,
    devices: Sequence[str],
    transfer: Literal["fp32", "fp16"] = "fp32",
    *,
    first: int = 0,
    towers: int | None = None,
) -> None:
    """Add 1, 10, 100, ... over the devices and check every sum: a lost tower is a missing digit.

    `towers`: their number, where other processes have some: `devices` are then those from the `first` on.

    From the 16th tower on they begin anew in another number of the tensor. Where the sums are made in
    float16, which is exact up to 2048, they are 1, 2, 4, ... and begin anew with the 12th.

    Raises HardwareError that names the sum. Why: HierarchicalCopyAllReduce of TensorFlow 2.21 silently loses
    one device's gradients where their number is odd.
    """
    base, digits = _BASE_AND_DIGITS[transfer]
    towers = towers or len(devices)
    slots = -(-towers // digits)
    given = np.zeros((towers, slots))
    for tower in range(towers):
        given[tower, tower // digits] = base ** (tower % digits)
    shape = (_ROWS * min(towers, 8), slots)
    expected = np.broadcast_to(given.sum(axis=0), shape)

    def reduce() -> list[Tensor]:
        values = []
        for device, value in zip(devices, given[first:], strict=False):
            with tf.device(device):
                values.append(tf.broadcast_to(tf.constant(value, tf.float64), shape))
        with home():
            return reducer([values])[0]

    graph = tf.compat.v1.wrap_function(reduce, [])
    settle()  # variables of the reduction itself
    for device, total in zip(devices, graph(), strict=True):
        found = total.numpy()
        if not np.array_equal(found, expected):
            wrong = tuple(np.argwhere(found != expected)[0])
            raise HardwareError(
                f"the reduction '{name}' is wrong on {device}: "
                f"it adds up to {found[wrong]:.0f}, not {expected[wrong]:.0f}",
                "try --variable-update parameter_server, and check the links with 'gputopo inspect'",
            )
