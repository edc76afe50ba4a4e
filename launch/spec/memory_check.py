"""Memory of the examples of one step: a batch that cannot fit is refused before anything starts.

The rule, in bytes: batch x numbers of one example x 4 (every input is float32) is at most the memory of a
GPU. CPU devices share the host's memory, so there it is that of all devices. A batch that passes may still
not fit, for layers allocate far more; one that does not pass never fits. Pure.
"""

import math

from gputopo.launch.spec import model_names
from gputopo.launch.spec.prepare import find_gpu
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values.errors import HardwareError
from gputopo.values.machine import Machine
from gputopo.workload import workloads as workload

_NUMBER_BYTES = 4


def require_memory(spec: RunSpec, machine: Machine | None, *, host_bytes: int) -> None:
    """Raise HardwareError where the examples of one step are larger than the memory they have to be in.

    `machine`: the one that was planned for. Keras models, whose shape is unknown before they are built, and
    GPUs of unknown memory are not checked.
    """
    example = _example_bytes(spec.model)
    on_cpu = spec.backend == "cpu"
    memory = host_bytes if on_cpu else _gpu_bytes(spec, machine)
    if example is None or memory is None:
        return
    sharing = len(spec.devices) if on_cpu else 1
    fitting = memory // (example * sharing)
    if spec.batch_size <= fitting:
        return
    whose = f" on {sharing} CPU devices" if on_cpu and sharing > 1 else ""
    has = "this machine has" if on_cpu else "a GPU here has"
    smaller = f"give a --batch-size far below {fitting:,}, which leaves no memory for anything else"
    raise HardwareError(
        f"the examples of --batch-size {spec.batch_size:,} alone need "
        f"{_gib(spec.batch_size * example * sharing)}{whose}, and {has} {_gib(memory)}",
        smaller
        if fitting
        else f"use {'fewer devices (--num-gpus) or ' if sharing > 1 else ''}a smaller model",
    )


def _example_bytes(model: str) -> int | None:
    asked = model_names.read(model)
    if asked.kind != "network":
        return None
    return _NUMBER_BYTES * math.prod(workload.require(asked.attribute).input_shape)


def _gpu_bytes(spec: RunSpec, machine: Machine | None) -> int | None:
    """Return the memory of the smallest GPU of the run; None if unknown."""
    gpus = [find_gpu(machine, device.gpu) for device in spec.devices]
    reported = [gpu.memory_mib.total for gpu in gpus if gpu is not None]
    limit = spec.runtime.memory_limit_mib
    known = [mib for mib in (*reported, limit) if mib is not None]
    return min(known) * 2**20 if known else None


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
