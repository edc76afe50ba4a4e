"""Times reductions on tensors with the shapes of a model's gradients, and checks the sums of each call."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from gputopo.launch.hosts.addresses import free_port
from gputopo.launch.models.models import shapes_of
from gputopo.launch.train.op_errors import first_line
from gputopo.launch.train.placement.algorithms import Gradients, Reducer, WrongSumError
from gputopo.launch.train.placement.devices import HOST, home, joined, settle
from gputopo.launch.train.placement.methods import tested_reducer
from gputopo.launch.train.placement.variables import read
from gputopo.launch.train.stepper import Emit
from gputopo.values.errors import HardwareError
from gputopo.values.run.events import EXCHANGE, PhaseBegun
from gputopo.values.run.spec import RunSpec

Tensor = Any

# The values are small whole numbers, so that every sum is exact in float32 in any order, and a lost, doubled
# or exchanged tensor changes it: (index + 7 x variable) mod 61, plus 64 x tower.
_PERIOD, _SHIFT, _STEP = 61, 7, 64


class Bench:
    """Test tensors in place of gradients, [variable][tower], on their devices: the reduction's input."""

    def __init__(self, shapes: Sequence[Sequence[int]], devices: Sequence[str]) -> None:
        self._devices = devices
        self._sources: list[list[Any]] = []
        self.bytes = 0
        for number, shape in enumerate(shapes):
            row = []
            for tower, device in enumerate(devices):
                pattern = (np.arange(_PERIOD) + _SHIFT * number) % _PERIOD + _STEP * tower
                with tf.device(device):
                    row.append(tf.Variable(np.resize(pattern.astype(np.float32), shape)))
            self.bytes += row[0].shape.num_elements() * row[0].dtype.size
            self._sources.append(row)
        settle()

    def call_of(self, reducer: Reducer, *, checked: str | None = None) -> Callable[[], float]:
        """Return a function that reduces once and returns the seconds it took.

        The time is from the call until the host knows that all devices have all sums. `checked`: the
        reduction's name in a WrongSumError; None: sums are not checked.
        """

        def build() -> list[Tensor]:
            with home():
                return self._probes(reducer([read(row) for row in self._sources]))

        graph = tf.compat.v1.wrap_function(build, [])

        def call() -> float:
            began = time.perf_counter()
            probes = [probe.numpy() for probe in graph()]
            seconds = time.perf_counter() - began
            if checked is not None:
                self._check_probes(probes, checked)
            return seconds

        return call

    def _probes(self, sums: Gradients) -> list[Tensor]:
        """Return a number on the host for each device: the first elements of its sums, added up on it.

        It depends on every sum, so that it cannot be computed before all sums are on that device.
        """
        probes = []
        for tower, device in enumerate(self._devices):
            with tf.device(device):
                firsts = [tf.strided_slice(tf.reshape(row[tower], (-1,)), [0], [1]) for row in sums]
                total = tf.reduce_sum(tf.cast(tf.concat(firsts, 0), tf.float64))  # exact for any number
            with tf.device(HOST):
                probes.append(tf.negative(total))
        return probes

    def _check_probes(self, probes: Sequence[Any], name: str) -> None:
        count = len(self._devices)
        firsts = sum(_SHIFT * number % _PERIOD for number in range(len(self._sources)))
        expected = count * firsts + len(self._sources) * _STEP * count * (count - 1) // 2
        for device, probe in zip(self._devices, probes, strict=True):
            if float(probe) != -expected:
                raise WrongSumError(
                    f"the reduction '{name}' is wrong on {device}, in a timed call", "use another reduction"
                )


COPIES = "copies"
ROUNDS = 5
LIMIT_S = 5.0  # no new round starts after it, so that a slow network costs only two exchanges of each way
TIE = 0.05  # share of the time of copies by which the other way must be faster


@contextmanager
def joined_fastest(spec: RunSpec, emit: Emit) -> Iterator[tuple[RunSpec, tuple[str, ...]]]:
    """Join the servers of the other hosts as `devices.joined`, with the faster exchange if none is given.

    Yields the run with its reduction, and the measured times as remarks.

    Collectives need the process to be a client, but copies are faster if it is not. So if copies win, it
    joins again as rank 0 with another address. Raises as `joined`, and what the reduction by copies raises.
    """
    other = by_collectives(spec)
    if other is None:
        with joined(spec):
            yield spec, ()
        return
    assert other.all_reduce is not None
    emit(PhaseBegun(time_s=time.time(), phase=EXCHANGE))
    with joined(other):
        ways = {COPIES: spec, other.all_reduce: other}
        seconds, failed = _timed(ways)
        way = fastest(seconds)
        says = (said(seconds, failed, way),)
        if way != COPIES:
            yield other, says
            return
    gc.collect()  # objects left on the servers cannot be deleted later
    # A new address for rank 0: its first server cannot be ended and keeps the old one.
    server, *others = spec.servers
    address = f"{server.address.rpartition(':')[0]}:{free_port()}"
    servers = (msgspec.structs.replace(server, address=address), *others)
    with joined(msgspec.structs.replace(spec, servers=servers)):
        yield spec, says


def by_collectives(spec: RunSpec) -> RunSpec | None:
    """Return the same run with collectives between its hosts, or None if there is no choice to make."""
    own_towers = spec.rank is None and spec.variable_update == "replicated"
    reduces = spec.task == "train" and own_towers and len(spec.ranks) > 1
    if not reduces or "all_reduce" in spec.asked or spec.all_reduce not in (None, "copy", "hierarchical"):
        return None
    name = "nccl" if spec.backend == "gpu" else "collective"
    return msgspec.structs.replace(spec, all_reduce=name)


def fastest(seconds: Mapping[str, float]) -> str:
    """Return the fastest way. It is copies unless another way is faster by more than `TIE`."""
    best = min(seconds, key=lambda way: seconds[way])
    return best if seconds[best] < (1 - TIE) * seconds[COPIES] else COPIES


def said(seconds: Mapping[str, float], failed: Mapping[str, str], way: str) -> str:
    """Return a text with the times of an exchange of all gradients, and the way that is used."""
    outcomes = [
        f"{name} {1e3 * taken_s:.{0 if taken_s >= 0.01 else 1}f} ms" for name, taken_s in seconds.items()
    ]
    outcomes += [f"{name} failed ({why})" for name, why in failed.items()]
    return f"exchange between hosts: {', '.join(outcomes)}: {way}"


def _timed(ways: Mapping[str, RunSpec]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the median seconds of each way to exchange all gradients, and the errors of ways that failed."""
    spec = ways[COPIES]
    devices = [device.device for device in spec.devices]
    bench = Bench(shapes_of(spec.model, spec), devices)
    calls: dict[str, Callable[[], float]] = {}
    failed: dict[str, str] = {}
    began = time.perf_counter()
    for way, run in ways.items():
        try:
            calls[way] = bench.call_of(tested_reducer(run.all_reduce or "copy", devices, run.exchange))
            calls[way]()  # the first call builds
        except (HardwareError, tf.errors.OpError) as error:
            if way == COPIES:
                raise
            failed[way] = error.what if isinstance(error, HardwareError) else first_line(str(error))
    if failed:  # only copies are left, and aborted collectives may disturb their timing
        return {COPIES: calls[COPIES]()}, failed
    taken: dict[str, list[float]] = {way: [] for way in calls}
    while len(taken[COPIES]) < ROUNDS and (not taken[COPIES] or time.perf_counter() - began < LIMIT_S):
        for way, call in calls.items():
            taken[way].append(call())
    return {way: statistics.median(times) for way, times in taken.items()}, failed
