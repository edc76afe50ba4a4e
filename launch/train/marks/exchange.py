"""Time marks of the exchange of gradients between hosts, found in the graph that exchanges them.

Two kinds of transfers of any reduction tell about the path between two hosts: of what a host made of its own
gradients alone, and of the sums that it was the first to have. When they have come is read on the clock of
the host that reads them. Others, as most of a ring, wait for a third host, and are left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gputopo.launch.spec.names import device_name, rank_of
from gputopo.launch.train.marks.reading import Marks, clock, row_of
from gputopo.launch.train.placement.devices import HOST
from gputopo.values.run.events import Device

Tensor = Any
Operation = Any
Transfers = Mapping[tuple[int, int], list[tuple[Tensor, str]]]
"""By source and destination rank: the tensors that travel, each with the device that reads it."""


class Exchange(NamedTuple):
    """What travels between hosts: gradients, sums; and by rank the sums that are made there."""

    gradients: Transfers
    sums: Transfers
    made: Mapping[int, list[Tensor]]


def exchange_marks(
    marks: Marks,
    devices: Sequence[Device],
    gradients: Sequence[Sequence[Tensor]],
    totals: Sequence[Sequence[Tensor]],
) -> Tensor:
    """Return when each host had what the others sent: [hosts, 2 hosts + 2], in seconds of its own clock.

    `gradients` [tower][variable], `totals` [place][variable]: of a reduction. In the row of a host: when all
    gradients of each host had come; when all sums made by each host had come; when the host had made its own
    sums; when the sums of all its towers were there. NaN where there is no such transfer.
    """
    ranks = list(dict.fromkeys(device.rank for device in devices))
    found = exchange_of(devices, gradients, totals)
    are_everywhere = len(totals) == len(devices)
    rows = []
    for rank in ranks:
        host = device_name("CPU", 0, rank)
        made = [(total, total.device) for total in found.made.get(rank, ())]
        sums = [
            marks.arrived(own, device.device)
            for own, device in zip(totals, devices, strict=False)
            if are_everywhere and device.rank == rank
        ]
        row = [
            *(_come(marks, found.gradients.get((source, rank), ()), host) for source in ranks),
            *(_come(marks, found.sums.get((source, rank), ()), host) for source in ranks),
            _come(marks, made, host),
            clock(sums, host) if sums else _never(host),
        ]
        rows.append(row_of(row, host))
    with tf.device(HOST):
        return tf.stack(rows)


def exchange_of(
    devices: Sequence[Device], gradients: Sequence[Sequence[Tensor]], totals: Sequence[Sequence[Tensor]]
) -> Exchange:
    """Return the transfers of a reduction, each tensor once a device."""
    waits_for = {
        gradient.op: frozenset({device.rank})
        for device, own in zip(devices, gradients, strict=True)
        for gradient in own
    }
    everyone = frozenset(device.rank for device in devices)
    gathered: dict[tuple[int, int], dict[tuple[str, str], tuple[Tensor, str]]] = {}
    spread: dict[tuple[int, int], dict[tuple[str, str], tuple[Tensor, str]]] = {}
    made: dict[int, list[Tensor]] = {}
    born: dict[Operation, int | None] = {}  # the host that made a sum first, by the ops that have it
    for op in _in_order([total.op for own in totals for total in own], frozenset(waits_for)):
        waits_for[op] = frozenset().union(*(waits_for.get(one.op, frozenset()) for one in op.inputs))
        reader = rank_of(op.device)
        if waits_for[op] == everyone:
            earlier = [born[one.op] for one in op.inputs if one.op in born]
            born[op] = earlier[0] if earlier else reader
            if not earlier and reader is not None:
                made.setdefault(reader, []).append(op.outputs[0])
        for tensor in op.inputs:
            source = rank_of(tensor.op.device)
            if source is None or reader is None or source == reader:
                continue
            if born.get(tensor.op) == source:
                spread.setdefault((source, reader), {})[tensor.name, op.device] = (tensor, op.device)
            elif waits_for.get(tensor.op) == frozenset({source}):
                gathered.setdefault((source, reader), {})[tensor.name, op.device] = (tensor, op.device)
    return Exchange(
        {pair: list(found.values()) for pair, found in gathered.items()},
        {pair: list(found.values()) for pair, found in spread.items()},
        made,
    )


def _in_order(ends: Sequence[Operation], begins: frozenset[Operation]) -> Sequence[Operation]:
    """Return the ops after `begins` that the ends need, each after those it reads."""
    known = set(begins)
    order: list[Operation] = []
    waiting = [(op, False) for op in ends if op not in known]
    while waiting:
        op, is_ready = waiting.pop()
        if is_ready:
            order.append(op)
        elif op not in known:
            known.add(op)
            waiting.append((op, True))
            waiting += [(one.op, False) for one in op.inputs if one.op not in known]
    return order


def _come(marks: Marks, tensors: Sequence[tuple[Tensor, str]], host: str) -> Tensor:
    """Read the host's clock once all of these tensors are on the devices that read them."""
    if not tensors:
        return _never(host)
    probes = []
    for device in dict.fromkeys(device for _, device in tensors):
        firsts = []
        with tf.device(device), tf.name_scope("marks/"):
            for tensor, reader in tensors:
                if reader == device:  # TensorFlow sends a tensor to a device once, whoever reads it there
                    firsts.append(tf.strided_slice(tf.reshape(tensor, (-1,)), [0], [1]))
        probes.append(marks.arrived(firsts, device))
    return clock(probes, host)


def _never(host: str) -> Tensor:
    with tf.device(host):
        return tf.constant(np.nan, tf.float64)
