"""Time marks inside a step's graph: readings of a host's clock that depend on what was done on a device.

A mark depends on a scalar copied back from a tower's device. So synchronous training still shows which device
is slow, and nothing more than the step's own result is waited for. A tower's marks are read on its own host:
the network is in none of them, and they are of that host's clock, which `HostMarks` brings to rank 0's.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled  # has no public name

from gputopo.launch.train.host_clocks import HostClocks
from gputopo.launch.train.placement.devices import HOST
from gputopo.launch.train.placement.placements import Placement
from gputopo.values.run.device_names import device_name, host_of, rank_of
from gputopo.values.run.events import Device

Tensor = Any
Operation = Any
_SCOPE = "marks/"  # beside those of the towers: these ops are the host's on purpose
Transfers = Mapping[tuple[int, int], list[tuple[Tensor, str]]]
"""By source and destination rank: the tensors that travel, each with the device that reads it."""


class Marks:
    """Makes the marks of one graph.

    `probes` have to be part of the graph's outcome, so that no optimizer drops their copies to the host.
    """

    def __init__(self) -> None:
        self.probes: list[Tensor] = []

    def arrived(self, tensors: Sequence[Tensor], device: str) -> Tensor:
        """Return a number [1] on the device's host that left the device after all the tensors were done.

        A slice of the last tensor, taken on the device after the others were queued, and copied back.
        """
        with tf.control_dependencies(list(tensors)):
            with tf.device(device):
                first = tf.strided_slice(tf.reshape(tensors[-1], (-1,)), [0], [1])  # [1]
            with tf.device(host_of(device)), tf.name_scope(_SCOPE):
                probe = tf.cast(tf.negative(first), tf.float32)
        self.probes.append(probe)
        return probe

    def there(self, tensors: Sequence[Tensor], device: str, since: Tensor) -> Tensor:
        """Return a number [1] on a GPU's host that is made once all the tensors are on the GPU.

        No kernel of a GPU is waited for: the only op on the device is one of int32, whose kernel for GPUs is
        on the host, as are its input and output, and it runs when the executor has the tensors. What is
        copied to a GPU counts as there when the copy is over; what a kernel makes, once that is queued.
        `since`: a reading of the host's clock; the number depends on it, so that no optimizer folds it.
        """
        with tf.device(host_of(device)), tf.name_scope(_SCOPE):
            # Both are made outside: only the first op in a scope of control dependencies has them.
            numbers = tf.cast(tf.reshape(since, (1,)) > 0, tf.int32), tf.constant([1])
        with tf.device(device), tf.control_dependencies(list(tensors)):
            counted = tf.add(*numbers)
        with tf.device(host_of(device)), tf.name_scope(_SCOPE):
            probe = tf.cast(tf.negative(counted), tf.float32)
        self.probes.append(probe)
        return probe


class TowerClock:
    """The marks of one tower in a step: it starts, its weights are there, its work is done.

    It starts after `start`. `gates`: its work waits for the mark that its weights are there: CPU devices have
    few threads, and without this a mark could come after the work that it precedes.

    GPUs have no gate: layers whose weights are there compute while the weights of later ones are still
    copied, as in tf_cnn_benchmarks, and a gate would take that away, and put a copy to the host and a launch
    into each step. A slice on the GPU, as of the other marks, would come behind these layers' kernels in the
    stream, and count them as waiting for weights. So the mark is an event on the host (`Marks.there`).
    """

    def __init__(self, marks: Marks, device: str, start: Sequence[Tensor], *, gates: bool) -> None:
        self._marks = marks
        self._gates = gates
        self.device = device
        self.host = host_of(device)
        self.started = clock(start, self.host)
        self.ready: Tensor = None
        self.ended: Tensor = None

    def weights_arrived(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Mark that the weights are there; return what the tower's work waits for."""
        if not self._gates:
            self.ready = clock([self._marks.there(weights, self.device, self.started)], self.host)
            return []
        self.ready = clock([self._marks.arrived(weights, self.device)], self.host)
        return [self.ready]

    def done(self, made: Sequence[Tensor]) -> Sequence[Tensor]:
        """Mark that the tower's work is done; return what it made."""
        self.ended = clock([self._marks.arrived(made, self.device)], self.host)
        return made

    @property
    def row(self) -> Tensor:
        """The marks [3] side by side on the tower's host, in seconds of its clock."""
        with tf.device(self.host), tf.name_scope(_SCOPE):
            return tf.stack([self.started, self.ready, self.ended])


class HostMarks(HostClocks):
    """The clocks of several hosts, and the marks of their exchange of gradients."""

    def exchange(
        self,
        marks: Marks,
        placement: Placement,
        gradients: Sequence[Sequence[Tensor]],
        totals: Sequence[Sequence[Tensor]],
        ops: Sequence[Operation],
    ) -> list[Tensor]:
        """Return when each host had what the others sent; nothing where hosts exchange nothing at once.

        One tensor [hosts, 2 hosts + 2], in seconds of each host's own clock. `gradients` [tower][variable],
        `totals` [place][variable], `ops`: of a reduction, in the order in which they were made. In the row of
        a host: when all gradients of each host had come; when all sums made by each host had come; when the
        host had made its own sums; when the sums of all its towers were there. NaN where there is no such
        transfer.
        """
        if len(self._hosts) < 2 or placement.waits != "all" or placement.stale:
            return []
        gathered, spread, made_by = exchange_of(self._devices, gradients, ops)
        are_everywhere = len(totals) == len(self._devices)
        rows = []
        for rank in self._hosts:
            host = device_name("CPU", 0, rank)
            made = [(total, total.device) for total in made_by.get(rank, ())]
            sums = [
                marks.arrived(own, device.device)
                for own, device in zip(totals, self._devices, strict=False)
                if are_everywhere and device.rank == rank
            ]
            row = [
                *(_come(marks, gathered.get((source, rank), ()), host) for source in self._hosts),
                *(_come(marks, spread.get((source, rank), ()), host) for source in self._hosts),
                _come(marks, made, host),
                clock(sums, host) if sums else _never(host),
            ]
            with tf.device(host):
                rows.append(tf.stack(row))
        with tf.device(HOST):
            return [tf.stack(rows)]


def clock(after: Sequence[Tensor], host: str = HOST) -> Tensor:
    """Read a host's clock (seconds since the epoch, float64) after the given tensors are there.

    Where ops are deterministic TensorFlow's own op for this refuses to run, and Python reads the clock.
    """
    with tf.device(host), tf.name_scope(_SCOPE), tf.control_dependencies(list(after)):
        if is_op_determinism_enabled():
            return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), ())
        return tf.timestamp()


def host_call(function: Callable[..., Any], given: Sequence[Tensor], kind: Any) -> Tensor:
    """Call a Python function on the host in each step, with these tensors as numpy values.

    It returns a number: the shape, which TensorFlow cannot know, is ().
    """
    with tf.device(HOST), tf.name_scope(_SCOPE):
        return tf.ensure_shape(tf.numpy_function(function, list(given), kind), ())


def exchange_of(
    devices: Sequence[Device], gradients: Sequence[Sequence[Tensor]], ops: Sequence[Operation]
) -> tuple[Transfers, Transfers, Mapping[int, list[Tensor]]]:
    """Return what travels between hosts: gradients, sums, each once a device; and by rank sums made there.

    `ops`: of the reduction, each after those it reads.
    """
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
    for op in ops:
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
    return (
        {pair: list(found.values()) for pair, found in gathered.items()},
        {pair: list(found.values()) for pair, found in spread.items()},
        made,
    )


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
