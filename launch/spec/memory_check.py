"""Memory of the examples of one step: a batch that cannot fit is refused before anything starts.

The rule, in bytes: batch x numbers of one example x 4 (every input is float32) is at most the memory of its
GPU. CPU devices share the host's memory, so there it is that of all devices. A batch that passes may still
not fit, for layers allocate far more; one that does not pass never fits. Pure.
"""

import math

from gputopo.launch.spec import model_names
from gputopo.launch.spec.prepare import find_gpu
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values.errors import HardwareError
from gputopo.values.machine import Machine
from gputopo.values.run.batches import as_typed
from gputopo.workload import workloads as workload

_NUMBER_BYTES = 4


def require_memory(spec: RunSpec, machine: Machine | None, *, host_bytes: int) -> None:
    """Raise HardwareError where the examples of one step are larger than the memory they have to be in.

    `machine`: the one that was planned for. Keras models, whose shape is unknown before they are built, and
    GPUs of unknown memory are not checked.
    """
    example = _example_bytes(spec.model)
    if example is None:
        return
    on_cpu = spec.backend == "cpu"
    for batch, memory in [(spec.joint_batch, host_bytes)] if on_cpu else _on_gpus(spec, machine):
        sharing = len(spec.devices) if on_cpu else 1
        fitting = memory // (example * sharing)
        if batch * example <= memory:
            continue
        whose = f" on {sharing} CPU devices" if on_cpu and sharing > 1 else ""
        has = "this machine has" if on_cpu else "a GPU here has"
        smaller = f"give a --batch-size far below {fitting:,}, which leaves no memory for anything else"
        raise HardwareError(
            f"the examples of --batch-size {_typed(spec, batch)} alone need "
            f"{_gib(batch * example)}{whose}, and {has} {_gib(memory)}",
            smaller
            if fitting
            else f"use {'fewer devices (--num-gpus) or ' if sharing > 1 else ''}a smaller model",
        )


def _example_bytes(model: str) -> int | None:
    asked = model_names.read(model)
    if asked.kind != "network":
        return None
    return _NUMBER_BYTES * math.prod(workload.require(asked.attribute).input_shape)


def _typed(spec: RunSpec, batch: int) -> str:
    """Return the batch as it was asked for, or where each GPU has its own that of one GPU."""
    if isinstance(spec.batch_size, int):
        return f"{spec.batch_size:,}"
    return as_typed(spec.batch_size) if spec.backend == "cpu" else f"{batch:,}"


def _on_gpus(spec: RunSpec, machine: Machine | None) -> list[tuple[int, int]]:
    """Return the batch and the bytes of memory of each GPU of the run whose memory is known."""
    limit = spec.runtime.memory_limit_mib
    found = []
    for device, batch in zip(spec.devices, spec.batches, strict=True):
        gpu = None if device.rank else find_gpu(machine, device.gpu)  # `machine` is of rank 0
        total = None if gpu is None else gpu.memory_mib.total
        known = [mib for mib in (total, limit) if mib is not None]
        if known:
            found.append((batch, min(known) * 2**20))
    return found


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
