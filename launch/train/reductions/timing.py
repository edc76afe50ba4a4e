"""Times reductions on stand-ins for the gradients of a model, and checks every sum."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gputopo.launch.train.placement.devices import HOST, home, settle
from gputopo.launch.train.reductions.reducer import Reducer
from gputopo.values.errors import HardwareError

Tensor = Any

# The values to be added are whole numbers and small, so that every sum is exact in float32 in any order,
# and a lost, doubled or exchanged tensor changes it: (index + 7 x variable) mod 61, and 64 more per tower.
_PERIOD, _SHIFT, _STEP = 61, 7, 64


class WrongSumError(HardwareError):
    """A reduction whose result is not the sum."""


class Bench:
    """Stand-ins for the gradients, [variable][tower], on their devices: the reduction's input."""

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

    def check(self, reducer: Reducer, name: str) -> None:
        """Reduce once and compare every number of every sum on every device. Raises WrongSumError."""
        count = len(self._devices)

        def build() -> list[Tensor]:
            right: list[Tensor] = []
            for number, row in enumerate(reducer(self._read())):
                for tower, (device, total) in enumerate(zip(self._devices, row, strict=True)):
                    # One after the other: what is expected takes as much memory as the sum itself.
                    with tf.device(device), tf.control_dependencies(right[-1:]):
                        own = self._sources[number][tower].read_value()
                        expected = count * own + _STEP * (count * (count - 1) / 2 - count * tower)
                        right.append(tf.reduce_all(tf.equal(total, expected)))
            return right

        for number, right in enumerate(tf.compat.v1.wrap_function(build, [])()):
            if not bool(right.numpy()):
                raise _wrong(name, self._devices[number % count], f"variable {number // count}")

    def call_of(self, reducer: Reducer, *, checked: str | None = None) -> Callable[[], float]:
        """Return a function that reduces once and returns the seconds it took.

        From the call until the host knows that all devices have all sums. `checked`: the name under which a
        wrong sum raises WrongSumError, None: sums are not checked.
        """

        def build() -> list[Tensor]:
            with home():
                return self._probes(reducer(self._read()))

        graph = tf.compat.v1.wrap_function(build, [])

        def call() -> float:
            began = time.perf_counter()
            probes = [probe.numpy() for probe in graph()]
            seconds = time.perf_counter() - began
            if checked is not None:
                self._check_probes(probes, checked)
            return seconds

        return call

    def _read(self) -> list[list[Tensor]]:
        read = []
        for row in self._sources:
            values = []
            for device, source in zip(self._devices, row, strict=True):
                with tf.device(device):
                    values.append(source.read_value())
            read.append(values)
        return read

    def _probes(self, sums: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Return a number of each device on the host: the first elements of all its sums, added up there.

        It cannot be known before every sum is on that device, nor can any sum be left out.
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
                raise _wrong(name, device, "a timed call")


def _wrong(name: str, device: str, where: str) -> WrongSumError:
    return WrongSumError(f"the reduction '{name}' is wrong on {device}, in {where}", "use another reduction")
