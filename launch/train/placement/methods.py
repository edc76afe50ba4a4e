"""Wrappers for any reduction: repacking, joining of small gradients, transfer in float16."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gputopo.launch.train.placement.algorithms import (
    Gradients,
    Reducer,
    collective,
    copy,
    cut_on,
    hierarchical,
    join_on,
    nccl_op,
    one_device,
    pscpu,
    psgpu,
    ring,
    self_test,
    tf_hierarchical,
    transposed,
    unreduced,
)
from gputopo.launch.train.placement.partitioning import UNIT, chunk_sizes, small_runs
from gputopo.values.run.all_reduce import options_of, parse
from gputopo.values.run.spec import Exchange

Tensor = Any


def repacked(reducer: Reducer, devices: Sequence[str], count: int) -> Reducer:
    """Reduce all gradients as `count` equal chunks of one long tensor.

    All must have the same type. Each device makes one more copy of all its gradients.
    """

    def reduce(gradients: Gradients) -> list[list[Tensor]]:
        shapes = [values[0].shape for values in gradients]
        sizes = [shape.num_elements() for shape in shapes]
        packed = []
        for device, of_tower in zip(devices, transposed(gradients), strict=True):
            packed.append(cut_on(device, _flat(device, of_tower), chunk_sizes(sum(sizes), count, unit=UNIT)))
        sums = transposed(reducer(transposed(packed)))  # [tower][chunk]
        return transposed(
            [_unpacked(device, chunks, shapes) for device, chunks in zip(devices, sums, strict=True)]
        )

    return reduce


def small_joined(reducer: Reducer, devices: Sequence[str], small_bytes: int, max_tensors: int) -> Reducer:
    """Reduce adjacent gradients of up to `small_bytes` as one tensor, up to `max_tensors` at a time."""

    def reduce(gradients: Gradients) -> list[list[Tensor]]:
        sizes = [first.shape.num_elements() * first.dtype.size for first, *_ in gradients]  # bytes
        runs = small_runs(sizes, small_bytes, max_tensors)
        joined = []
        for run in runs:
            if len(run) == 1:
                joined.append(gradients[run[0]])
                continue
            by_tower = transposed([gradients[number] for number in run])
            joined.append([_flat(device, tensors) for device, tensors in zip(devices, by_tower, strict=True)])
        sums: list[list[Tensor]] = []
        for run, of_towers in zip(runs, reducer(joined), strict=True):
            if len(run) == 1:
                sums.append(of_towers)
                continue
            shapes = [gradients[number][0].shape for number in run]
            totals = zip(devices, of_towers, strict=True)
            sums += transposed([_unpacked(device, [total], shapes) for device, total in totals])
        return sums

    return reduce


def narrowed(reducer: Reducer, devices: Sequence[str]) -> Reducer:
    """Transfer and add gradients in float16.

    A sum above 65504 becomes infinite, and a sum below 6e-8 zero, without an error. Use a loss scale.
    """

    def cast(rows: Gradients, types: Sequence[Any]) -> list[list[Tensor]]:
        changed = []
        for values, dtype in zip(rows, types, strict=True):
            row = []
            for device, value in zip(devices, values, strict=True):
                with tf.device(device):
                    row.append(tf.cast(value, dtype))
            changed.append(row)
        return changed

    def reduce(gradients: Gradients) -> list[list[Tensor]]:
        narrow = cast(gradients, [tf.float16] * len(gradients))
        return cast(reducer(narrow), [values[0].dtype for values in gradients])

    return reduce


def moved_together(values: Sequence[Tensor], source: str, device: str) -> list[Tensor]:
    """Copy tensors from a device to another, tensors of one type together: between hosts a copy is a call."""
    moved = list(values)
    for kind in dict.fromkeys(value.dtype for value in values):
        of_kind = [number for number, value in enumerate(values) if value.dtype == kind]
        packed = _flat(source, [values[number] for number in of_kind])
        apart = _unpacked(device, [packed], [values[number].shape for number in of_kind])
        for number, value in zip(of_kind, apart, strict=True):
            moved[number] = value
    return moved


def _flat(device: str, tensors: Sequence[Tensor]) -> Tensor:
    with tf.device(device):
        return tf.concat([tf.reshape(tensor, (-1,)) for tensor in tensors], 0)


def _unpacked(device: str, parts: Sequence[Tensor], shapes: Sequence[Any]) -> list[Tensor]:
    whole = join_on(device, parts, (-1,))
    cut = cut_on(device, whole, [shape.num_elements() for shape in shapes])
    return [join_on(device, [part], shape) for part, shape in zip(cut, shapes, strict=True)]


ALGORITHMS: dict[str, Callable[..., Reducer]] = {
    "copy": copy,
    "ring": ring,
    "hierarchical": hierarchical,
    "pscpu": pscpu,
    "psgpu": psgpu,
    "collective": collective,
    "nccl_op": nccl_op,
    "tf_hierarchical": tf_hierarchical,
    "one_device": one_device,
}


def reducer_of(name: str, devices: Sequence[str], exchange: Exchange) -> Reducer:
    """Return the reduction of a run. With one device nothing is reduced or transferred."""
    if len(devices) == 1:
        return unreduced
    algorithm, options = options_of(parse(name), exchange.groups)
    return wrapped(ALGORITHMS[algorithm](devices, **options), devices, exchange)


def tested_reducer(name: str, devices: Sequence[str], exchange: Exchange) -> Reducer:
    """Return the reduction of a run after its self-test. Raises WrongSumError."""
    reducer = reducer_of(name, devices, exchange)
    self_test(reducer, name, devices, exchange.transfer)
    return reducer


def wrapped(reducer: Reducer, devices: Sequence[str], exchange: Exchange) -> Reducer:
    """Return a reduction with the wrappers of an exchange.

    From the outside in: float16, repacking, joining of small gradients, the reduction itself.
    """
    if exchange.small_bytes:
        reducer = small_joined(reducer, devices, exchange.small_bytes, exchange.small_group)
    if exchange.repacking:
        reducer = repacked(reducer, devices, exchange.repacking)
    return narrowed(reducer, devices) if exchange.transfer == "fp16" else reducer
