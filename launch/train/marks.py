"""Time marks inside a step's graph: readings of a host's clock that depend on work on a device.

A mark depends on a scalar copied back from a tower's device. So the slow device can be found in synchronous
training too, and marks wait only for results that the step needs anyway. A tower's marks are read on its own
host, so that they do not include the network. `HostMarks` converts them to rank 0's clock.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled  # has no public name

from gputopo.launch.device_names import device_name, host_of, rank_of
from gputopo.launch.train.host_clocks import HostClocks
from gputopo.launch.train.placement.devices import HOST
from gputopo.launch.train.placement.placements import Placement
from gputopo.values.run.events import Device

Tensor = Any
Operation = Any
_SCOPE = "marks/"  # not in a tower's scope: these ops are on the host on purpose
Transfers = Mapping[tuple[int, int], list[tuple[Tensor, str]]]
"""By source and destination rank: the tensors that are sent, each with the device that reads it."""


class Marks:
    """Makes the marks of one graph.

    `probes` must be among the graph's outputs, so that no optimizer drops their copies to the host.
    """

    def __init__(self) -> None:
        self.probes: list[Tensor] = []

    def arrived(self, tensors: Sequence[Tensor], device: str) -> Tensor:
        """Return a number [1] on the device's host, copied from the device after all tensors were done.

        It is a slice of the last tensor, taken on the device after the others were queued.
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

        It does not wait for GPU kernels. The only op on the device is an int32 op, whose GPU kernel runs on
        the host with its input and output, as soon as the executor has the tensors. A tensor that is copied
        to the GPU is there when the copy is over; a tensor from a kernel, once the kernel is queued. `since`:
        a reading of the host's clock. The number depends on it, so that no optimizer folds it to a constant.
        """
        with tf.device(host_of(device)), tf.name_scope(_SCOPE):
            # Both are made outside: only the first op in a scope of control dependencies would have them.
            numbers = tf.cast(tf.reshape(since, (1,)) > 0, tf.int32), tf.constant([1])
        with tf.device(device), tf.control_dependencies(list(tensors)):
            counted = tf.add(*numbers)
        with tf.device(host_of(device)), tf.name_scope(_SCOPE):
            probe = tf.cast(tf.negative(counted), tf.float32)
        self.probes.append(probe)
        return probe


class TowerClock:
    """The marks of one tower in a step: it starts, its weights are there, its work is done.

    The tower starts after `start`. `gates`: its work waits for the mark that its weights are there. CPU
    devices need this: they have few threads, and the mark could be read after the work that follows it.

    GPUs have no gate: as in tf_cnn_benchmarks, layers compute while the weights of later layers are still
    copied. A gate would prevent that, and add a copy to the host and a launch to each step. Nor is this mark
    a slice on the GPU like the others: it would run after these layers' kernels in the stream and count them
    as waiting for weights. So the mark is an event on the host (`Marks.there`).
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
        """Mark that the weights are there; return what the tower's work must wait for."""
        if not self._gates:
            self.ready = clock([self._marks.there(weights, self.device, self.started)], self.host)
            return []
        self.ready = clock([self._marks.arrived(weights, self.device)], self.host)
        return [self.ready]

    def done(self, made: Sequence[Tensor]) -> Sequence[Tensor]:
        """Mark that the tower's work is done; return its results."""
        self.ended = clock([self._marks.arrived(made, self.device)], self.host)
        return made

    @property
    def row(self) -> Tensor:
        """The marks [3] on the tower's host, in seconds of its clock."""
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
        """Return the times at which each host had what the others sent.

        The list is empty if there is no exchange of this step's gradients, else one tensor
        [hosts, 2 hosts + 2] in seconds of each host's own clock. A host's row: when it had all gradients from
        each host; when it had all sums from each host; when it had made its own sums; when all its towers had
        the sums. NaN: there is no such transfer. `gradients` [tower][variable], `totals` [place][variable],
        `ops`: the reduction's ops in the order in which they were made.
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
                marks.arrived(tower_sums, device.device)
                for tower_sums, device in zip(totals, self._devices, strict=False)
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

    With deterministic ops TensorFlow's own op refuses to run, and Python reads the clock.
    """
    with tf.device(host), tf.name_scope(_SCOPE), tf.control_dependencies(list(after)):
        if is_op_determinism_enabled():
            return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), ())
        return tf.timestamp()


def host_call(function: Callable[..., Any], given: Sequence[Tensor], kind: Any) -> Tensor:
    """Call a Python function on the host in each step, with these tensors as numpy values.

    The function must return a scalar: TensorFlow cannot find out the shape.
    """
    with tf.device(HOST), tf.name_scope(_SCOPE):
        return tf.ensure_shape(tf.numpy_function(function, list(given), kind), ())


def exchange_of(
    devices: Sequence[Device], gradients: Sequence[Sequence[Tensor]], ops: Sequence[Operation]
) -> tuple[Transfers, Transfers, Mapping[int, list[Tensor]]]:
    """Return the gradients and the sums sent between hosts (each once per device), and the sums made by rank.

    `ops`: the reduction's ops, each after the ops whose outputs it reads.
    """
    waits_for = {
        gradient.op: frozenset({device.rank})
        for device, tower_gradients in zip(devices, gradients, strict=True)
        for gradient in tower_gradients
    }
    everyone = frozenset(device.rank for device in devices)
    gathered: dict[tuple[int, int], dict[tuple[str, str], tuple[Tensor, str]]] = {}
    spread: dict[tuple[int, int], dict[tuple[str, str], tuple[Tensor, str]]] = {}
    made: dict[int, list[Tensor]] = {}
    born: dict[Operation, int | None] = {}  # by op that has a sum: the host that made it first
    for op in ops:
        waits_for[op] = frozenset().union(*(waits_for.get(tensor.op, frozenset()) for tensor in op.inputs))
        reader = rank_of(op.device)
        if waits_for[op] == everyone:
            earlier = [born[tensor.op] for tensor in op.inputs if tensor.op in born]
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
        {pair: list(tensors.values()) for pair, tensors in gathered.items()},
        {pair: list(tensors.values()) for pair, tensors in spread.items()},
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
                if reader == device:  # TensorFlow sends a tensor to a device only once
                    firsts.append(tf.strided_slice(tf.reshape(tensor, (-1,)), [0], [1]))
        probes.append(marks.arrived(firsts, device))
    return clock(probes, host)


def _never(host: str) -> Tensor:
    with tf.device(host):
        return tf.constant(np.nan, tf.float64)
