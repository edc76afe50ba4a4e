"""The process that times one reduction; `bench-reduction` starts one for each. `main` loads TensorFlow."""

import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gputopo.topology import Groups
from gputopo.values.errors import ExitCode, GputopoError, HardwareError
from gputopo.values.run.events import Event, ModelBuilt, PhaseBegun, RankFailed, Step, encode_line
from gputopo.values.run.spec import Exchange, RunSpec

if TYPE_CHECKING:
    from gputopo.launch.models import Model


class ReductionJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one process times. From `run`, only the model, the devices and the backend are used.

    The worker's events: PhaseBegun for each part; ModelBuilt with the bytes of one replica's gradients; a
    Step for each call (warm-up below 1), first with the reduction, then, after PhaseBegun(EMPTY_CALLS),
    without; RankFailed of the kinds below for a refusal.
    """

    run: RunSpec
    method: str  # as `all_reduce.parse` reads it
    groups: Groups = ()  # for the hierarchical method
    repeats: int
    warm_up: int


EMPTY_CALLS = "calls without a reduction"
REFUSED = "refused"  # this method cannot be measured here
REFUSED_FOR_ALL = "refused for all"  # no method can be measured here
WRONG_SUM = "wrong sum"  # it ran, and its sums were wrong

Emit = Callable[[Event], None]

# Bytes on CPU devices: gradients, sums, packed tensors of a method, and the check's copies. Four devices with
# AlexNet's 0.25 GB peaked at 3.2 GB, including TensorFlow's own 0.5 GB.
_HOST_BYTES_PER_GRADIENT_BYTE = 4


def main(arguments: list[str]) -> int:
    """Run the job; return 0, or the exit code of a refusal, which is also an event."""
    job, handle = msgspec.json.decode(arguments[0], type=ReductionJob), int(arguments[1])

    def emit(event: Event) -> None:
        data = encode_line(event)
        while data:
            data = data[os.write(handle, data) :]

    refused = _refusal(job, emit)
    if refused is not None:
        kind, cause = refused
        emit(RankFailed(time_s=time.time(), kind=kind, cause=cause, remedy="", exit_code=ExitCode.HARDWARE))
    os.close(handle)  # TensorFlow may hang at exit: this tells the launcher that no more events come
    return ExitCode.OK if refused is None else ExitCode.HARDWARE


def _refusal(job: ReductionJob, emit: Emit) -> tuple[str, str] | None:
    """Time the reduction; return None, or why it cannot be measured (kind and cause)."""
    _begin(emit, "loading TensorFlow")
    try:
        import tensorflow as tf
    except ImportError as error:
        return REFUSED_FOR_ALL, f"TensorFlow cannot be imported: {error}"
    import psutil

    from gputopo.launch.models import build_model, parameter_count
    from gputopo.launch.train import WrongSumError, first_line, require_device, set_up_devices

    try:
        set_up_devices(job.run)
        for device in job.run.devices:
            require_device(device.device)
        model = build_model(job.run.model)
        free = psutil.virtual_memory().available
        require_memory(4 * parameter_count(model), job, free=free)
    except GputopoError as error:
        return REFUSED_FOR_ALL, error.what
    try:
        time_reduction(model, job, emit)
    except WrongSumError as error:
        return WRONG_SUM, error.what
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        return REFUSED, f"out of memory: {first_line(str(error))}"
    except tf.errors.OpError as error:
        return REFUSED, first_line(str(error))
    return None


def _begin(emit: Emit, phase: str) -> None:
    emit(PhaseBegun(time_s=time.time(), phase=phase))


def require_memory(gradient_bytes: int, job: ReductionJob, *, free: int) -> None:
    """Raise HardwareError if CPU devices need more bytes than are free: the kernel would kill a process."""
    needed = _HOST_BYTES_PER_GRADIENT_BYTE * gradient_bytes * len(job.run.devices)
    if job.run.backend == "cpu" and needed > free:
        raise HardwareError(
            f"{len(job.run.devices)} CPU devices need about {needed / 1e9:.1f} GB of memory, "
            f"and {free / 1e9:.1f} GB are free",
            "use fewer devices or a smaller model",
        )


def time_reduction(model: "Model", job: ReductionJob, emit: Emit) -> None:
    """Test the method, then time it on gradients of the model's shapes.

    Raises WrongSumError, and any error that TensorFlow raises.
    """
    from gputopo.launch.train import Bench, tested_reducer

    devices = [device.device for device in job.run.devices]
    _begin(emit, "the self-test")
    began = time.perf_counter()
    reducer = tested_reducer(job.method, devices, Exchange(groups=job.groups))
    bench = Bench([variable.shape for variable in model.variables], devices)
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
    _time(bench.call_of(reducer, checked=job.method), job, emit)
    _begin(emit, EMPTY_CALLS)
    _time(bench.call_of(lambda gradients: [list(values) for values in gradients]), job, emit)


def _time(call: Callable[[], float], job: ReductionJob, emit: Emit) -> None:
    for number in range(1 - job.warm_up, 1 + job.repeats):
        emit(Step(time_s=time.time(), step=number, seconds=call(), images=0, loss=None, marks=()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
