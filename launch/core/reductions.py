"""Ways to add up the towers' gradients, and the test that each must pass before it is trusted."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gputopo.errors import HardwareError

Tensor = Any

Reduction = Callable[[Sequence[Tensor], Sequence[str], int], list[Tensor]]
"""(one tensor per tower, the towers' devices, the tensor's number) -> the sum, on each tower's device."""


def copy(values: Sequence[Tensor], devices: Sequence[str], number: int) -> list[Tensor]:
    """Copy all to one tower, add there, copy back. Towers take turns by tensor number (round robin)."""
    with tf.device(devices[number % len(devices)]):
        total = add(values)
    copies = []
    for device in devices:
        with tf.device(device):
            copies.append(tf.identity(total))
    return copies


def add(values: Sequence[Tensor]) -> Tensor:
    """Add tensors of one shape on the device in scope."""
    return tf.add_n(list(values)) if len(values) > 1 else tf.identity(values[0])


REDUCTIONS: dict[str, Reduction] = {"copy": copy}


def self_test(reduction: Reduction, devices: Sequence[str]) -> None:
    """Add 1, 10, 100, ... over the devices and check every sum: a lost tower shows as a missing digit.

    Raises HardwareError that names the sum. Why: HierarchicalCopyAllReduce of TensorFlow 2.21 silently loses
    one device's gradients where their number is odd.
    """
    expected = sum(10**tower for tower in range(len(devices)))

    def reduce() -> list[Tensor]:
        values = []
        for tower, device in enumerate(devices):
            with tf.device(device):
                values.append(tf.fill((2, 2), tf.constant(10.0**tower, tf.float64)))
        return reduction(values, devices, 1)

    for device, total in zip(devices, tf.compat.v1.wrap_function(reduce, [])(), strict=True):
        if not bool(tf.reduce_all(total == expected)):
            raise HardwareError(
                f"the reduction '{reduction.__name__}' is wrong on {device}: "
                f"it adds up to {total.numpy().flat[0]:.0f}, not {expected}",
                "try --variable-update parameter_server, and check the links with 'gputopo inspect'",
            )
