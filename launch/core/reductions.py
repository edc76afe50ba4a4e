"""Ways to add up the towers' gradients, and the test that each must pass before it is trusted."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gputopo.errors import HardwareError

Tensor = Any

Reducer = Callable[[Sequence[Sequence[Tensor]]], list[list[Tensor]]]
"""[variable][tower] -> the sums, [variable][tower]. May be built into several graphs."""


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


_DIGITS = 15  # that float64 holds exactly


def self_test(reducer: Reducer, name: str, devices: Sequence[str]) -> None:
    """Add 1, 10, 100, ... over the devices and check every sum: a lost tower shows as a missing digit.

    From the 16th tower on they begin anew in another number of the tensor.

    Raises HardwareError that names the sum. Why: HierarchicalCopyAllReduce of TensorFlow 2.21 silently loses
    one device's gradients where their number is odd.
    """
    slots = -(-len(devices) // _DIGITS)
    expected = [0.0] * slots
    for tower in range(len(devices)):
        expected[tower // _DIGITS] += 10.0 ** (tower % _DIGITS)

    def reduce() -> list[Tensor]:
        values = []
        for tower, device in enumerate(devices):
            with tf.device(device):
                values.append(
                    tf.one_hot(tower // _DIGITS, slots, tf.constant(10.0 ** (tower % _DIGITS), tf.float64))
                )
        return reducer([values])[0]

    for device, total in zip(devices, tf.compat.v1.wrap_function(reduce, [])(), strict=True):
        found = [float(one) for one in total.numpy()]
        if found != expected:
            wrong = next(slot for slot in range(slots) if found[slot] != expected[slot])
            raise HardwareError(
                f"the reduction '{name}' is wrong on {device}: "
                f"it adds up to {found[wrong]:.0f}, not {expected[wrong]:.0f}",
                "try --variable-update parameter_server, and check the links with 'gputopo inspect'",
            )
