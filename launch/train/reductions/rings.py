"""The reduction by a ring of copies: no device adds or carries more than any other."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.train.reductions.copies import cut_on, join_on
from gputopo.launch.train.reductions.partitioning import MIN_CHUNK, UNIT, chunk_sizes, starts_of
from gputopo.launch.train.reductions.reducer import Reducer, on

Tensor = Any


def ring(devices: Sequence[str], *, parts: int = 1) -> Reducer:
    """Send chunks round the devices in their order: once to add up, once to spread the sums.

    Each tensor is cut into n x `parts` chunks, a small one into fewer. A chunk starts at its own device;
    every next one adds its own numbers to it, and the last one has the sum, which goes on round the ring. So
    each device sends and adds one chunk at a time, `parts` with several rings, whose starts are n / parts
    devices apart (as in the xring of tf_cnn_benchmarks). The first chunk of every tensor starts one device
    further. Moves for each tensor: 2 (n - 1) / n of its bytes over each link of the ring.
    """

    def reduce(gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        return [_around(values, devices, parts, number) for number, values in enumerate(gradients)]

    return reduce


def _around(values: Sequence[Tensor], devices: Sequence[str], rings: int, number: int) -> list[Tensor]:
    towers = len(devices)
    if towers == 1:
        return [tf.identity(values[0])]
    sizes = chunk_sizes(values[0].shape.num_elements(), towers * rings, MIN_CHUNK, UNIT)
    cut = [cut_on(device, value, sizes) for device, value in zip(devices, values, strict=True)]
    sums: list[list[Tensor]] = [[] for _ in devices]
    for chunk, start in enumerate(starts_of(len(sizes), towers, rings, number)):
        total = cut[start][chunk]
        for step in range(1, towers):
            tower = (start + step) % towers
            with tf.device(devices[tower]):
                total = tf.add(total, cut[tower][chunk])
        for step in range(towers - 1, 2 * towers - 1):
            tower = (start + step) % towers
            total = on(devices[tower], total)
            sums[tower].append(total)
    return [
        join_on(device, of_tower, values[0].shape) for device, of_tower in zip(devices, sums, strict=True)
    ]
