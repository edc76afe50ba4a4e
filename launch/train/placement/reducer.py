"""Sizes and orders of chunks, rings, groups and spread variables: arithmetic alone."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from gputopo.launch.train.placement.devices import home, settle
from gputopo.values.errors import HardwareError
from gputopo.workload.spreading import MIN_CHUNK

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
