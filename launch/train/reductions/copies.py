"""Reductions by plain copies and additions: round robin, the CPU, shards over towers, groups with leaders."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import tensorflow as tf

from gputopo.launch.train.placement.devices import HOST
from gputopo.launch.train.reductions.partitioning import MIN_CHUNK, UNIT, chunk_sizes, leaders_of
from gputopo.launch.train.reductions.reducer import Reducer, add, on
from gputopo.topology.reduction_groups import Groups, halves

Tensor = Any


def copy(devices: Sequence[str]) -> Reducer:
    """Add each variable on one of the devices, alternating by its number, and copy the sum back.

    Moves for each variable: n - 1 copies to the one device and n - 1 from it.
    """

    def reduce(gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        sums = []
        for number, values in enumerate(gradients):
            with tf.device(devices[number % len(devices)]):
                total = add(values)
            sums.append([on(device, total) for device in devices])
        return sums

    return reduce


def pscpu(devices: Sequence[str], *, parts: int = 1) -> Reducer:
    """Add all variables on the host's CPU and send the sums back; each tensor in `parts` chunks.

    Moves for each variable: n copies to the host and n from it. A chunk is added as soon as it has come.
    """

    def reduce(gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        return [_shuffle(values, devices, [HOST] * parts) for values in gradients]

    return reduce


def psgpu(devices: Sequence[str], *, parts: int = 1) -> Reducer:
    """Cut each tensor into `parts`, add each on another tower's device, and copy the sums back.

    The devices alternate, by the number of the part counted over all variables. Moves for each part: n - 1
    copies to its device and n - 1 from it.
    """

    def reduce(gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        sums = []
        for number, values in enumerate(gradients):
            gather = [devices[(number * parts + part) % len(devices)] for part in range(parts)]
            sums.append(_shuffle(values, devices, gather))
        return sums

    return reduce


def hierarchical(devices: Sequence[str], *, groups: Groups = ()) -> Reducer:
    """Add within each group on its leader, then the leaders' sums on one of them, and copy back.

    `groups`: of towers, each tower in one; the two halves of the towers if empty. Leaders rotate with the
    variable's number: the group whose leader makes the total changes with every variable, the leader's rank
    within its group each time that all groups had their turn. Moves for each variable between groups: one
    copy for every group but one, each way.
    """
    groups = groups or halves(len(devices))

    def reduce(gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        return [_by_groups(values, devices, groups, number) for number, values in enumerate(gradients)]

    return reduce


def _by_groups(values: Sequence[Tensor], devices: Sequence[str], groups: Groups, number: int) -> list[Tensor]:
    leaders, main = leaders_of(groups, number)
    of_groups = []
    for group, leader in zip(groups, leaders, strict=True):
        with tf.device(devices[leader]):
            of_groups.append(add([values[tower] for tower in group]))
    with tf.device(devices[leaders[main]]):
        total = add(of_groups)
    sums: dict[int, Tensor] = {}
    for group, leader in zip(groups, leaders, strict=True):
        there = on(devices[leader], total)
        sums |= {tower: there if tower == leader else on(devices[tower], there) for tower in group}
    return [sums[tower] for tower in range(len(devices))]


def _shuffle(values: Sequence[Tensor], devices: Sequence[str], gather: Sequence[str]) -> list[Tensor]:
    """Add chunk p of all values on `gather[p]`, and put the chunks together on every device."""
    size = values[0].shape.num_elements()
    sizes = chunk_sizes(size, len(gather), MIN_CHUNK, UNIT)
    if len(sizes) == 1:
        with tf.device(gather[0]):
            total = add(values)
        return [on(device, total) for device in devices]
    cut = [cut_on(device, value, sizes) for device, value in zip(devices, values, strict=True)]
    totals = []
    for part, device in zip(range(len(sizes)), gather, strict=False):
        with tf.device(device):
            totals.append(add([of_tower[part] for of_tower in cut]))
    return [join_on(device, totals, values[0].shape) for device in devices]


def cut_on(device: str, value: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Cut a tensor into flat chunks of these sizes, on a device.

    By slices, which take a chunk that begins and ends at a multiple of `UNIT` out without a copy; a split
    of a flat tensor copies every chunk.
    """
    with tf.device(device):
        flat = tf.reshape(value, (-1,))
        if len(sizes) == 1:
            return [flat]
        starts = accumulate(sizes, initial=0)
        return [tf.slice(flat, [start], [size]) for start, size in zip(starts, sizes, strict=False)]


def join_on(device: str, parts: Sequence[Tensor], shape: Any) -> Tensor:
    """Put flat chunks together to a tensor of a shape, on a device."""
    with tf.device(device):
        flat = tf.concat(list(parts), 0) if len(parts) > 1 else tf.identity(parts[0])
        return tf.reshape(flat, shape)
