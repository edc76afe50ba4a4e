"""Reductions by plain copies and additions: spread by size, the CPU, shards, groups with leaders, rings."""

import itertools
import secrets
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from gputopo.launch.train.placement.devices import HOST, home, settle
from gputopo.launch.train.placement.partitioning import (
    UNIT,
    by_host,
    chunk_sizes,
    halves,
    leaders_of,
    owners_of,
    starts_of,
)
from gputopo.topology import Groups
from gputopo.values.errors import HardwareError
from gputopo.workload import MIN_CHUNK

Array = np.ndarray[Any, Any]
Tensor = Any

Gradients = Sequence[Sequence[Tensor]]
"""[variable][tower] for a reduction, [tower][variable] elsewhere."""
Reducer = Callable[[Gradients], list[list[Tensor]]]
"""[variable][tower] -> the sums, [variable][tower]. May be built into several graphs.

Inputs and sums are on the towers' devices. All towers get bitwise identical sums.
"""

# Seconds after which TensorFlow reports a missing member of a collective; by default it waits forever.
COLLECTIVE_TIMEOUT_S = 60.0
_FIRST_GROUP = secrets.randbelow(1 << 30)  # other hosts' servers remember groups of earlier processes
# 1, 10, 100, ..., up to the digits that float64 holds exactly; in float16 1, 2, 4, ...
_BASE_AND_DIGITS: dict[str, tuple[int, int]] = {"fp32": (10, 15), "fp16": (2, 11)}
# Rows of equal sums for each device (up to eight devices: 2 MiB on each), so that a reduction that cuts
# tensors cuts them into two chunks per device.
_ROWS = 2 * MIN_CHUNK


def unreduced(gradients: Gradients) -> list[list[Tensor]]:
    """Return the gradients unchanged: a `Reducer` for one device."""
    return [list(values) for values in gradients]


def transposed(rows: Gradients) -> list[list[Tensor]]:
    """Swap rows and columns: [tower][variable] and [variable][tower]."""
    return [list(column) for column in zip(*rows, strict=True)]


def add(values: Sequence[Tensor]) -> Tensor:
    """Add tensors of one shape on the device in scope."""
    return tf.add_n(list(values)) if len(values) > 1 else tf.identity(values[0])


def on(device: str, value: Tensor) -> Tensor:
    """Return a tensor on a device; copy it if it is on another device."""
    with tf.device(device):
        return tf.identity(value)


class WrongSumError(HardwareError):
    """A reduction returned a wrong sum."""


def self_test(
    reducer: Reducer,
    name: str,
    devices: Sequence[str],
    transfer: Literal["fp32", "fp16"] = "fp32",
    *,
    first: int = 0,
    towers: int | None = None,
) -> None:
    """Check every sum of `probe_sums`.

    Raises WrongSumError. The test is needed because HierarchicalCopyAllReduce of
    TensorFlow 2.21 silently loses one device's gradients if the number of devices is odd.
    """
    sums, expected = probe_sums(reducer, devices, transfer, first=first, towers=towers)
    for device, got in zip(devices, sums, strict=True):
        if not np.array_equal(got, expected):
            wrong = tuple(np.argwhere(got != expected)[0])
            raise WrongSumError(
                f"the reduction '{name}' is wrong on {device}: "
                f"it adds up to {got[wrong]:.0f}, not {expected[wrong]:.0f}",
                "try --variable-update parameter_server, and check the links with 'gputopo inspect'",
            )


def probe_sums(
    reducer: Reducer,
    devices: Sequence[str],
    transfer: Literal["fp32", "fp16"] = "fp32",
    *,
    first: int = 0,
    towers: int | None = None,
) -> tuple[list[Array], Array]:
    """Add 1, 10, 100, ... over the devices: a lost tower is a missing digit.

    Returns the sums on each device, and the expected sums. `towers`: the total number of towers if other
    processes have some; `devices` then belong to the towers from `first` on.

    The 16th tower starts again with 1 in another element of the tensor. With transfer in float16, which is
    exact up to 2048, the values are 1, 2, 4, ..., and the 12th tower starts again.
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
    settle()  # for variables of the reduction itself
    return [total.numpy() for total in graph()], expected


def copy(devices: Sequence[str]) -> Reducer:
    """Add each variable on one of the devices, spread over them by size, and copy the sum back.

    If a variable is larger than a fair share, each GPU adds a part of it (`owners_of`).
    Transfers for each variable or part: n - 1 copies to its device and n - 1 from it.
    """
    return _gathered(devices, lambda sizes: owners_of(sizes, devices))


def pscpu(devices: Sequence[str], *, parts: int = 1) -> Reducer:
    """Add all variables on the host's CPU and send the sums back, each tensor in `parts` chunks.

    Transfers for each variable: n copies to the host and n from it. A chunk is added as soon as it arrives.
    """
    return _gathered(devices, lambda sizes: [[HOST] * parts] * len(sizes))


def psgpu(devices: Sequence[str], *, parts: int = 1) -> Reducer:
    """Cut each tensor into `parts`, add each part on another tower's device, and copy the sums back.

    The devices take turns; parts are counted over all variables. Transfers for each part: n - 1 copies to its
    device and n - 1 from it.
    """

    def gather(sizes: Sequence[int]) -> list[list[str]]:
        turns = itertools.cycle(devices)
        return [list(itertools.islice(turns, parts)) for _ in sizes]

    return _gathered(devices, gather)


def _gathered(devices: Sequence[str], gather: Callable[[Sequence[int]], Sequence[Sequence[str]]]) -> Reducer:
    """Add each part of each variable on one device, and copy the sums back.

    `gather`: returns the devices of the parts of each variable, from the variables' sizes in elements.
    """

    def reduce(gradients: Gradients) -> list[list[Tensor]]:
        sums = []
        parts_on = gather([values[0].shape.num_elements() for values in gradients])
        for values, owners in zip(gradients, parts_on, strict=True):
            sizes = chunk_sizes(values[0].shape.num_elements(), len(owners), MIN_CHUNK, UNIT)
            if len(sizes) == 1:
                with tf.device(owners[0]):
                    total = add(values)
                sums.append([on(device, total) for device in devices])
                continue
            cut = [cut_on(device, value, sizes) for device, value in zip(devices, values, strict=True)]
            totals = []
            for part, owner in zip(range(len(sizes)), owners, strict=False):
                with tf.device(owner):
                    totals.append(add([of_tower[part] for of_tower in cut]))
            sums.append([join_on(device, totals, values[0].shape) for device in devices])
        return sums

    return reduce


def hierarchical(devices: Sequence[str], *, groups: Groups = ()) -> Reducer:
    """Add within each group on its leader, add the leaders' sums on one leader, and copy back.

    `groups`: groups of towers, each tower in one group; if empty, the two halves of the towers. Leaders
    rotate: the group whose leader makes the total changes with every variable, and the leader within a group
    after each round of all groups. Transfers between groups for each variable: one copy for all groups except
    one, each way.
    """
    groups = groups or halves(len(devices))

    def reduce(gradients: Gradients) -> list[list[Tensor]]:
        sums = []
        for number, values in enumerate(gradients):
            leaders, main = leaders_of(groups, number)
            of_groups = to_leaders(values, devices, groups, leaders)
            with tf.device(devices[leaders[main]]):
                total = add(of_groups)
            sums.append(from_leaders([total] * len(groups), devices, groups, leaders))
        return sums

    return reduce


def to_leaders(
    values: Sequence[Tensor], devices: Sequence[str], groups: Groups, leaders: Sequence[int]
) -> list[Tensor]:
    """Add the values of each group on its leader."""
    of_groups = []
    for group, leader in zip(groups, leaders, strict=True):
        with tf.device(devices[leader]):
            of_groups.append(add([values[tower] for tower in group]))
    return of_groups


def from_leaders(
    totals: Sequence[Tensor], devices: Sequence[str], groups: Groups, leaders: Sequence[int]
) -> list[Tensor]:
    """Copy the total of each group from its leader to all of its devices."""
    sums: dict[int, Tensor] = {}
    for total, group, leader in zip(totals, groups, leaders, strict=True):
        there = on(devices[leader], total)
        sums |= {tower: there if tower == leader else on(devices[tower], there) for tower in group}
    return [sums[tower] for tower in range(len(devices))]


def cut_on(device: str, value: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Cut a tensor into flat chunks of these sizes, on a device.

    Uses slices, which need no copy if a chunk begins and ends at a multiple of `UNIT`. A split of a flat
    tensor would copy every chunk.
    """
    with tf.device(device):
        flat = tf.reshape(value, (-1,))
        if len(sizes) == 1:
            return [flat]
        starts = accumulate(sizes, initial=0)
        return [tf.slice(flat, [start], [size]) for start, size in zip(starts, sizes, strict=False)]


def join_on(device: str, parts: Sequence[Tensor], shape: Any) -> Tensor:
    """Join flat chunks to a tensor of a shape, on a device."""
    with tf.device(device):
        flat = tf.concat(list(parts), 0) if len(parts) > 1 else tf.identity(parts[0])
        return tf.reshape(flat, shape)


def ring(devices: Sequence[str], *, parts: int = 1) -> Reducer:
    """Send chunks around the ring of devices twice: once to add them up, once to spread the sums.

    Each tensor is cut into n x `parts` chunks, a small tensor into fewer. A chunk starts at its own device.
    Each following device adds its numbers. The last device has the sum, which continues around the ring. So
    each device sends and adds one chunk at a time for each of `parts` rings, whose starts are n / parts
    devices apart (as in the xring of tf_cnn_benchmarks). The first chunk of each tensor starts one device
    after the previous tensor's. Transfers for each tensor: 2 (n - 1) / n of its bytes over each link of the
    ring.
    """

    def reduce(gradients: Gradients) -> list[list[Tensor]]:
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


_groups: dict[tuple[str, ...], int] = {}  # in a process, each set of devices must have its own key
_instances = itertools.count(1)  # each collective must have its own key as well


def collective(devices: Sequence[str], *, hint: str) -> Reducer:
    """Reduce by TensorFlow's collective op. With several hosts, one device per host reduces each variable.

    Gradients are first added within each host, on a device that changes with the variable's number. If hosts
    have unequal numbers of devices, the smallest number is used on each, so that a device is only in one
    group.
    """
    hosts = by_host(devices)
    if len(hosts) == 1:
        return _of_all(devices, hint=hint)
    leaders = list(zip(*hosts, strict=False))
    between = [_of_all([devices[tower] for tower in towers], hint=hint) for towers in leaders]

    def reduce(gradients: Gradients) -> list[list[Tensor]]:
        sums: list[list[Tensor]] = [[] for _ in gradients]
        for lane, (towers, reducer) in enumerate(zip(leaders, between, strict=True)):
            numbers = range(lane, len(gradients), len(leaders))
            totals = reducer([to_leaders(gradients[number], devices, hosts, towers) for number in numbers])
            for number, of_leaders in zip(numbers, totals, strict=True):
                sums[number] = from_leaders(of_leaders, devices, hosts, towers)
        return sums

    return reduce


def _of_all(devices: Sequence[str], *, hint: str) -> Reducer:
    """Reduce over all devices, one variable after the other on each device, the last variable first.

    A device's collectives run in sequence because NCCL needs the same order everywhere. The order is the same
    as in tf.distribute: gradients of the last layers are ready first, and are sent while the others are
    computed. Each device has its own token variable: without tokens or with a common one, a tf.function of
    TensorFlow 2.21 runs the devices in sequence as well, and they wait for each other forever.
    """
    group = _groups.setdefault(tuple(devices), _FIRST_GROUP + len(_groups))
    tokens = []
    for device in devices:
        with tf.device(device):
            tokens.append(tf.Variable(0.0, trainable=False, name="token"))

    def reduced(value: Tensor, tower: int, instance: int) -> Tensor:
        return tf.raw_ops.CollectiveReduceV2(
            input=value,
            group_size=tf.constant(len(devices)),
            group_key=tf.constant(group),
            instance_key=tf.constant(instance),
            ordering_token=[tokens[tower].handle],
            merge_op="Add",
            final_op="Id",
            communication_hint=hint,
            timeout_seconds=COLLECTIVE_TIMEOUT_S,
        )

    return _last_first(devices, reduced)


def _last_first(devices: Sequence[str], reduced: Callable[[Tensor, int, int], Tensor]) -> Reducer:
    """Reduce one variable after the other on each device, the last variable first.

    `reduced`: makes the op of a value, a tower, and the number of the collective in this process.
    """

    def reduce(gradients: Gradients) -> list[list[Tensor]]:
        before: list[list[Tensor]] = [[] for _ in devices]
        sums = []
        for values in reversed(gradients):
            instance = next(_instances)
            row = []
            for tower, device in enumerate(devices):
                with tf.device(device), tf.control_dependencies(before[tower]):
                    row.append(reduced(values[tower], tower, instance))
                before[tower] = [row[-1]]
            sums.append(row)
        return sums[::-1]

    return reduce


def nccl_op(devices: Sequence[str]) -> Reducer:
    """Reduce by NcclAllReduce, one variable after the other on each device, the last variable first."""

    def reduced(value: Tensor, _: int, instance: int) -> Tensor:
        name = f"gputopo_{instance}"
        return tf.raw_ops.NcclAllReduce(
            input=value, reduction="sum", num_devices=len(devices), shared_name=name
        )

    return _last_first(devices, reduced)


def tf_hierarchical(devices: Sequence[str], *, packs: int = 1) -> Reducer:
    """Reduce as tf.distribute does: within each half of the devices, then between the halves.

    `packs`: number of tensors to which the gradients are joined first; 0: they are not joined. The sums are
    wrong for an odd number of devices.
    """
    return _distributed(devices, tf.distribute.HierarchicalCopyAllReduce(num_packs=packs))


def one_device(devices: Sequence[str]) -> Reducer:
    """Reduce on the first device, as tf.distribute does."""
    return _distributed(devices, tf.distribute.ReductionToOneDevice())


def _distributed(devices: Sequence[str], operations: Any) -> Reducer:
    from tensorflow.python.distribute.values import PerReplica  # no public name is callable

    def reduce(gradients: Gradients) -> list[list[Tensor]]:
        values = [PerReplica(tuple(of_towers)) for of_towers in gradients]
        sums = operations.batch_reduce(tf.distribute.ReduceOp.SUM, [(value, value) for value in values])
        return [
            [on(device, total) for device, total in zip(devices, of_variable.values, strict=True)]
            for of_variable in sums
        ]

    return reduce
