"""Memory of the examples of one step: a batch that cannot fit is refused before anything starts.

The rule, in bytes: batch x numbers of one example x 4 (every input is float32) is at most the memory of its
GPU. CPU devices share the host's memory, so there it is that of all devices. A batch that passes may still
not fit, for layers allocate far more; one that does not pass never fits. Pure.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from gputopo.launch.spec import model_names
from gputopo.launch.spec.prepare import find_gpu
from gputopo.launch.spec.run_spec import RunSpec
from gputopo.values.errors import HardwareError
from gputopo.values.machine import Machine
from gputopo.values.run.batches import as_typed
from gputopo.workload import workloads as workload

_NUMBER_BYTES = 4


def require_memory(
    spec: RunSpec, machines: Sequence[Machine | None], *, host_bytes: Sequence[int | None]
) -> None:
    """Raise HardwareError where the examples of one step are larger than the memory they have to be in.

    `machines`: those that were planned for, `host_bytes`: their memory, by rank; None: not known. Keras
    models, whose shape is unknown before they are built, and memory that is not known are not checked.
    """
    example = _example_bytes(spec.model)
    if example is None:
        return
    on_cpu = spec.backend == "cpu"
    for one in _on_hosts(spec, host_bytes) if on_cpu else _on_gpus(spec, machines):
        fitting = one.bytes // (example * one.sharing)
        if one.batch * example <= one.bytes:
            continue
        whose = f" on {one.sharing} CPU devices" if one.sharing > 1 else ""
        smaller = f"give a --batch-size far below {fitting:,}, which leaves no memory for anything else"
        raise HardwareError(
            f"the examples of --batch-size {_typed(spec, one.batch)} alone need "
            f"{_gib(one.batch * example)}{whose}, and {one.name} has {_gib(one.bytes)}",
            smaller
            if fitting
            else f"use {'fewer devices (--num-gpus) or ' if one.sharing > 1 else ''}a smaller model",
        )


class _Memory(NamedTuple):
    """A memory: what it is called, its bytes, the examples of a step in it, and of how many devices."""

    name: str
    bytes: int
    batch: int
    sharing: int = 1


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


def _on_gpus(spec: RunSpec, machines: Sequence[Machine | None]) -> list[_Memory]:
    """Return the memory of each GPU of the run where it is known."""
    limit = spec.runtime.memory_limit_mib
    found = []
    for device, batch in zip(spec.devices, spec.batches, strict=True):
        gpu = find_gpu(machines[device.rank], device.gpu)
        total = None if gpu is None else gpu.memory_mib.total
        known = [mib for mib in (total, limit) if mib is not None]
        if known:
            name = f"{device.host} GPU {device.gpu}" if spec.servers else "a GPU here"
            found.append(_Memory(name, min(known) * 2**20, batch))
    return found


def _on_hosts(spec: RunSpec, host_bytes: Sequence[int | None]) -> list[_Memory]:
    """Return the memory of each host, which its CPU devices share, where it is known."""
    found = []
    for rank, size in enumerate(host_bytes):
        own = [batch for device, batch in zip(spec.devices, spec.batches, strict=True) if device.rank == rank]
        if size is not None:
            name = spec.servers[rank].host if spec.servers else "this machine"
            found.append(_Memory(name, size, sum(own), len(own)))
    return found


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
