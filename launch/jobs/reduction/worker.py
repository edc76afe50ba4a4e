"""Times one reduction: `python -m gputopo.launch.jobs.reduction.worker JOB_JSON EVENTS_FD`.

One process, one method: a collective that failed leaves TensorFlow unusable, and some methods end it. It
tests the sums, warms up, times, and writes the events that `ReductionJob` describes.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gputopo.launch.jobs.reduction.spec import (
    EMPTY_CALLS,
    REFUSED,
    REFUSED_FOR_ALL,
    WRONG_SUM,
    ReductionJob,
)
from gputopo.values.errors import ExitCode, GputopoError, HardwareError
from gputopo.values.run.events import Event, ModelBuilt, PhaseBegun, RankFailed, Step, encode_line

if TYPE_CHECKING:
    from gputopo.launch.models.model import Model
    from gputopo.launch.train.reductions.reducer import Reducer

Tensor = Any
Emit = Callable[[Event], None]

# The values to be added are whole numbers and small, so that every sum is exact in float32 in any order,
# and a lost, doubled or exchanged tensor changes it: (index + 7 x variable) mod 61, and 64 more per tower.
_PERIOD, _SHIFT, _STEP = 61, 7, 64
# On CPU devices: stand-ins, sums, and what a method packs or a check compares. Four devices with AlexNet's
# 0.25 GB peaked at 3.2 GB, TensorFlow's own 0.5 GB counted.
_HOST_BYTES_PER_GRADIENT_BYTE = 4


def main(arguments: list[str]) -> int:
    """Do the job; return 0, or the exit code of a refusal, which is among the events."""
    job, handle = msgspec.json.decode(arguments[0], type=ReductionJob), int(arguments[1])

    def emit(event: Event) -> None:
        data = encode_line(event)
        while data:
            data = data[os.write(handle, data) :]

    refused = _refusal(job, emit)
    if refused is not None:
        emit(refused)
    os.close(handle)  # TensorFlow may hang at exit: the launcher then knows that there is no more to come
    return 0 if refused is None else refused.exit_code


def _refusal(job: ReductionJob, emit: Emit) -> RankFailed | None:
    """Time the reduction; return why it cannot be measured, or None."""
    _begin(emit, "loading TensorFlow")
    try:
        import tensorflow as tf
    except ImportError as error:
        return _refused(REFUSED_FOR_ALL, f"TensorFlow cannot be imported: {error}")
    import psutil

    from gputopo.launch.models import models
    from gputopo.launch.models.model import parameter_count
    from gputopo.launch.train.placement import devices

    try:
        devices.set_up(job.run)
        for device in job.run.devices:
            devices.require(device.device)
        model = models.build(job.run.model)
        free = psutil.virtual_memory().available
        require_memory(4 * parameter_count(model), job, free=free)
    except GputopoError as error:
        return _refused(REFUSED_FOR_ALL, error.what)
    try:
        time_reduction(model, job, emit)
    except WrongSumError as error:
        return _refused(WRONG_SUM, error.what)
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        return _refused(REFUSED, f"out of memory: {_first_line(error)}")
    except tf.errors.OpError as error:
        return _refused(REFUSED, _first_line(error))
    return None


def _begin(emit: Emit, phase: str) -> None:
    emit(PhaseBegun(time_s=time.time(), phase=phase))


def _refused(kind: str, cause: str) -> RankFailed:
    return RankFailed(time_s=time.time(), kind=kind, cause=cause, remedy="", exit_code=ExitCode.HARDWARE)


def require_memory(gradient_bytes: int, job: ReductionJob, *, free: int) -> None:
    """Raise HardwareError if CPU devices need more bytes than are free: the kernel would end some process."""
    needed = _HOST_BYTES_PER_GRADIENT_BYTE * gradient_bytes * len(job.run.devices)
    if job.run.backend == "cpu" and needed > free:
        raise HardwareError(
            f"{len(job.run.devices)} CPU devices need about {needed / 1e9:.1f} GB of memory, "
            f"and {free / 1e9:.1f} GB are free",
            "use fewer devices or a smaller model",
        )


class WrongSumError(HardwareError):
    """A reduction whose result is not the sum."""


def time_reduction(model: "Model", job: ReductionJob, emit: Emit) -> None:
    """Test the method, then time it on gradients of the model's shapes.

    Raises WrongSumError, and whatever TensorFlow raises.
    """
    from gputopo.launch.train.reductions.methods import ALGORITHMS

    devices = [device.device for device in job.run.devices]
    _begin(emit, "the self-test")
    began = time.perf_counter()
    reducer = ALGORITHMS[job.method.algorithm](devices, **job.method.options)
    test_digits(reducer, devices, job.method.name)
    bench = _Bench(model, devices, job.method.name)
    bench.check(reducer)
    emit(
        ModelBuilt(
            time_s=time.time(),
            parameters=bench.bytes // 4,
            parameter_bytes=bench.bytes,
            import_s=0.0,
            build_s=time.perf_counter() - began,
        )
    )
    _begin(emit, "the warm-up")
    bench.time(reducer, job, emit)
    _begin(emit, EMPTY_CALLS)
    bench.time(lambda gradients: [list(values) for values in gradients], job, emit, reduces=False)


def test_digits(reducer: "Reducer", devices: Sequence[str], name: str) -> None:
    """Add up 1, 10, 100, ... (see `reductions.self_test`). Raises WrongSumError."""
    from gputopo.launch.train.reductions.reducer import self_test

    try:
        self_test(reducer, name, devices)
    except HardwareError as error:
        raise WrongSumError(error.what, error.hint) from error


class _Bench:
    """Stand-ins for the gradients, [variable][tower], on their devices: the reduction's input."""

    def __init__(self, model: "Model", devices: Sequence[str], name: str) -> None:
        import numpy as np
        import tensorflow as tf

        self._devices = devices
        self._name = name
        self._sources: list[list[Any]] = []
        self.bytes = 0
        for number, spec in enumerate(model.variables):
            row = []
            for tower, device in enumerate(devices):
                pattern = (np.arange(_PERIOD) + _SHIFT * number) % _PERIOD + _STEP * tower
                with tf.device(device):
                    row.append(tf.Variable(np.resize(pattern.astype(np.float32), spec.shape)))
            self.bytes += row[0].shape.num_elements() * row[0].dtype.size
            self._sources.append(row)

    def check(self, reducer: "Reducer") -> None:
        """Reduce once and compare every number of every sum on every device. Raises WrongSumError."""
        import tensorflow as tf

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
                raise self._wrong(self._devices[number % count], f"variable {number // count}")

    def time(self, reducer: "Reducer", job: ReductionJob, emit: Emit, *, reduces: bool = True) -> None:
        """Time each call from its start until the host knows that all devices have all sums."""
        import tensorflow as tf

        graph = tf.compat.v1.wrap_function(lambda: self._probes(reducer(self._read())), [])
        for number in range(1 - job.warm_up, 1 + job.repeats):
            began = time.perf_counter()
            probes = [probe.numpy() for probe in graph()]
            seconds = time.perf_counter() - began
            if reduces:
                self._check_probes(probes)
            emit(Step(time_s=time.time(), step=number, seconds=seconds, images=0, loss=None, marks=()))

    def _read(self) -> list[list[Tensor]]:
        import tensorflow as tf

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
        import tensorflow as tf

        from gputopo.launch.train.placement.devices import HOST

        probes = []
        for tower, device in enumerate(self._devices):
            with tf.device(device):
                firsts = [tf.strided_slice(tf.reshape(row[tower], (-1,)), [0], [1]) for row in sums]
                total = tf.reduce_sum(tf.cast(tf.concat(firsts, 0), tf.float64))  # exact for any number
            with tf.device(HOST):
                probes.append(tf.negative(total))
        return probes

    def _check_probes(self, probes: Sequence[Any]) -> None:
        count = len(self._devices)
        firsts = sum(_SHIFT * number % _PERIOD for number in range(len(self._sources)))
        expected = count * firsts + len(self._sources) * _STEP * count * (count - 1) // 2
        for device, probe in zip(self._devices, probes, strict=True):
            if float(probe) != -expected:
                raise self._wrong(device, "a timed call")

    def _wrong(self, device: str, where: str) -> WrongSumError:
        return WrongSumError(
            f"the reduction '{self._name}' is wrong on {device}, in {where}", "use another reduction"
        )


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
