"""Reductions by TensorFlow's own ops and strategies: collectives, NCCL, and those of tf.distribute."""

import itertools
import secrets
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.train.reductions.copies import from_leaders, to_leaders
from gputopo.launch.train.reductions.partitioning import by_host
from gputopo.launch.train.reductions.reducer import Reducer, on

Tensor = Any

# TensorFlow reports a missing member after this time; its default is to wait for ever.
COLLECTIVE_TIMEOUT_S = 60.0
_groups: dict[tuple[str, ...], int] = {}  # in a process, another set of devices must have another key
_FIRST_GROUP = secrets.randbelow(1 << 30)  # servers of other hosts know the groups of processes before
_instances = itertools.count(1)  # and so must two collectives that differ


def collective(devices: Sequence[str], *, hint: str) -> Reducer:
    """Reduce by TensorFlow's collective op; of several hosts by one device of each for each variable.

    Gradients are added within each host first, on a device that changes with the variable's number. Of hosts
    with unequal numbers of devices as many take part as each has, so that a device is always in one group.
    """
    hosts = by_host(devices)
    if len(hosts) == 1:
        return _of_all(devices, hint=hint)
    leaders = list(zip(*hosts, strict=False))
    between = [_of_all([devices[tower] for tower in own], hint=hint) for own in leaders]

    def reduce(gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        sums: list[list[Tensor]] = [[] for _ in gradients]
        for lane, (own, reducer) in enumerate(zip(leaders, between, strict=True)):
            numbers = range(lane, len(gradients), len(leaders))
            totals = reducer([to_leaders(gradients[number], devices, hosts, own) for number in numbers])
            for number, of_leaders in zip(numbers, totals, strict=True):
                sums[number] = from_leaders(of_leaders, devices, hosts, own)
        return sums

    return reduce


def _of_all(devices: Sequence[str], *, hint: str) -> Reducer:
    """Reduce over all devices, one variable after the other on each device, the last one first.

    A device's collectives run in sequence because NCCL needs the same order everywhere; tf.distribute does
    so too, and in this order: gradients of the last layers are there first, so that they travel while the
    others are computed. Each device has its token, a variable: with a common one, or none, a tf.function of
    TensorFlow 2.21 puts the devices in sequence as well, and they wait for one another for ever.
    """
    group = _groups.setdefault(tuple(devices), _FIRST_GROUP + len(_groups))
    tokens = []
    for device in devices:
        with tf.device(device):
            tokens.append(tf.Variable(0.0, trainable=False, name="token"))

    def reduce(gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        before: list[list[Tensor]] = [[] for _ in devices]
        sums = []
        for values in reversed(gradients):
            instance = next(_instances)
            row = []
            for tower, device in enumerate(devices):
                key = (len(devices), group, instance)
                with tf.device(device), tf.control_dependencies(before[tower]):
                    row.append(_collective_reduce(values[tower], key, tokens[tower], hint))
                before[tower] = [row[-1]]
            sums.append(row)
        return sums[::-1]

    return reduce


def nccl_op(devices: Sequence[str]) -> Reducer:
    """Reduce by NcclAllReduce, one variable after the other on each device, the last one first."""

    def reduce(gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        before: list[list[Tensor]] = [[] for _ in devices]
        sums = []
        for values in reversed(gradients):
            name = f"gputopo_{next(_instances)}"
            row = []
            for tower, device in enumerate(devices):
                with tf.device(device), tf.control_dependencies(before[tower]):
                    row.append(
                        tf.raw_ops.NcclAllReduce(
                            input=values[tower], reduction="sum", num_devices=len(devices), shared_name=name
                        )
                    )
                before[tower] = [row[-1]]
            sums.append(row)
        return sums[::-1]

    return reduce


def tf_hierarchical(devices: Sequence[str], *, packs: int = 1) -> Reducer:
    """Reduce as tf.distribute does within two halves of the devices, and between these.

    `packs`: into how many tensors the gradients are joined before; 0: not at all. Wrong for an odd number
    of devices.
    """
    return _distributed(devices, tf.distribute.HierarchicalCopyAllReduce(num_packs=packs))


def one_device(devices: Sequence[str]) -> Reducer:
    """Reduce as tf.distribute does on the first device."""
    return _distributed(devices, tf.distribute.ReductionToOneDevice())


def _distributed(devices: Sequence[str], operations: Any) -> Reducer:
    from tensorflow.python.distribute.values import PerReplica  # has no public name that can be called

    def reduce(gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        values = [PerReplica(tuple(of_towers)) for of_towers in gradients]
        sums = operations.batch_reduce(tf.distribute.ReduceOp.SUM, [(value, value) for value in values])
        return [
            [on(device, total) for device, total in zip(devices, of_variable.values, strict=True)]
            for of_variable in sums
        ]

    return reduce


def _collective_reduce(value: Tensor, key: tuple[int, int, int], token: Any, hint: str) -> Tensor:
    size, group, instance = key
    return tf.raw_ops.CollectiveReduceV2(
        input=value,
        group_size=tf.constant(size),
        group_key=tf.constant(group),
        instance_key=tf.constant(instance),
        ordering_token=[token.handle],
        merge_op="Add",
        final_op="Id",
        communication_hint=hint,
        timeout_seconds=COLLECTIVE_TIMEOUT_S,
    )
