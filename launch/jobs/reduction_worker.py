"""The job of a process that times one reduction, and the table of all methods.

To add a method: its name in `gputopo.values.run.all_reduce`, and if its algorithm is new, a function in
`gputopo.launch.train.placement.methods.ALGORITHMS`. This module does not load TensorFlow.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from gputopo.launch.spec.job_spec import Backend
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.topology.hops import Groups
from gputopo.values.errors import ExitCode, GputopoError, HardwareError
from gputopo.values.run import all_reduce
from gputopo.values.run.all_reduce import MEANINGS, NAMES, Reduction
from gputopo.values.run.events import Event, ModelBuilt, PhaseBegun, RankFailed, Step, encode_line

if TYPE_CHECKING:
    from gputopo.launch.models.model import Model
    from gputopo.launch.train.placement.reducer import Reducer


Options = dict[str, str | int | Groups]
_ALSO_TIMED = ("ring#2", "psgpu#2")


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """One method: a name for users, the algorithm that builds its ops, and that algorithm's options.

    `algorithm` is a key of `ALGORITHMS`, `options` are its keyword arguments.
    """

    name: str
    algorithm: str
    says: str
    options: Options = {}

    def why_not(self, backend: Backend, devices: int) -> str | None:
        """Why it cannot be used there, None if it can."""
        found = all_reduce.parse(self.name).why_not(backend, devices)
        return None if found is None else found[0]


def options_of(asked: Reduction, groups: Groups = ()) -> tuple[str, Options]:
    """Return the algorithm of a reduction, and its options. `groups`: of towers, for the hierarchical one."""
    if asked.name == "collective":
        return "collective", {"hint": "ring"}
    if asked.name == "nccl":
        return "collective", {"hint": "nccl"}
    if asked.name == "hierarchical":
        return "hierarchical", {"groups": groups}
    return asked.name, {} if asked.parts == 1 else {"parts": asked.parts}


def require(name: str, groups: Groups = ()) -> Method:
    """Return the method of that name (`gputopo.values.run.all_reduce`). UsageError names the nearest."""
    asked = all_reduce.parse(name)
    algorithm, options = options_of(asked, groups)
    return Method(name=asked.written, algorithm=algorithm, says=MEANINGS[asked.name], options=options)


METHODS: dict[str, Method] = {name: require(name) for name in (*NAMES, *_ALSO_TIMED)}


class ReductionJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one process times. Of `run` its model, devices and backend count.

    The worker's events: PhaseBegun for what comes next, ModelBuilt with the bytes of one replica's gradients,
    a Step per call (warm-up below 1), first with the reduction, then, after PhaseBegun(EMPTY_CALLS), without;
    RankFailed of the kinds below for a refusal.
    """

    run: RunSpec
    method: Method
    repeats: int
    warm_up: int


EMPTY_CALLS = "calls without a reduction"
REFUSED = "refused"  # this method cannot be measured here
REFUSED_FOR_ALL = "refused for all"  # nor can any other
WRONG_SUM = "wrong sum"  # it ran, and its sums were wrong


Emit = Callable[[Event], None]

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
    from gputopo.launch.train.placement.timing import WrongSumError

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


def time_reduction(model: "Model", job: ReductionJob, emit: Emit) -> None:
    """Test the method, then time it on gradients of the model's shapes.

    Raises WrongSumError, and whatever TensorFlow raises.
    """
    from gputopo.launch.train.placement.methods import ALGORITHMS
    from gputopo.launch.train.placement.timing import Bench

    devices = [device.device for device in job.run.devices]
    _begin(emit, "the self-test")
    began = time.perf_counter()
    reducer = ALGORITHMS[job.method.algorithm](devices, **job.method.options)
    test_digits(reducer, devices, job.method.name)
    bench = Bench([variable.shape for variable in model.variables], devices)
    bench.check(reducer, job.method.name)
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
    _time(bench.call_of(reducer, checked=job.method.name), job, emit)
    _begin(emit, EMPTY_CALLS)
    _time(bench.call_of(lambda gradients: [list(values) for values in gradients]), job, emit)


def _time(call: Callable[[], float], job: ReductionJob, emit: Emit) -> None:
    for number in range(1 - job.warm_up, 1 + job.repeats):
        emit(Step(time_s=time.time(), step=number, seconds=call(), images=0, loss=None, marks=()))


def test_digits(reducer: "Reducer", devices: Sequence[str], name: str) -> None:
    """Add up 1, 10, 100, ... (see `reductions.self_test`). Raises WrongSumError."""
    from gputopo.launch.train.placement.reducer import self_test
    from gputopo.launch.train.placement.timing import WrongSumError

    try:
        self_test(reducer, name, devices)
    except HardwareError as error:
        raise WrongSumError(error.what, error.hint) from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
