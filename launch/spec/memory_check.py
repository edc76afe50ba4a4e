"""Memory of the examples of one step: a batch that cannot fit is refused before anything starts.

In bytes, batch x numbers of one example x 4 (every input is float32) must fit into the memory of the GPU. CPU
devices share the host's memory. A batch that passes may still not fit, because layers allocate far more.
"""

import math
from collections.abc import Iterator, Sequence

from gputopo.launch.spec import model_names
from gputopo.launch.spec.prepare import find_gpu
from gputopo.values.errors import HardwareError
from gputopo.values.machine import Machine
from gputopo.values.run.batches import as_typed
from gputopo.values.run.spec import RunSpec
from gputopo.workload import require_workload

_NUMBER_BYTES = 4


def require_memory(
    spec: RunSpec, machines: Sequence[Machine | None], *, host_bytes: Sequence[int | None]
) -> None:
    """Raise HardwareError if the examples of one step are larger than the memory that has to hold them.

    `machines`: the planned machines, and `host_bytes`: their memory, both by rank; None: not known. Keras
    models, whose shape is unknown before they are built, and unknown memory are not checked.
    """
    asked = model_names.read(spec.model)
    if asked.kind != "network":
        return
    example = _NUMBER_BYTES * math.prod(require_workload(asked.attribute).input_shape)
    found = _of_hosts(spec, host_bytes) if spec.backend == "cpu" else _of_gpus(spec, machines)
    for name, size, batches in found:
        if example * sum(batches) > size:
            one = spec.batch_size
            raise HardwareError(
                f"the examples of --batch-size {f'{one:,}' if isinstance(one, int) else as_typed(one)} alone "
                f"need {example * sum(batches) / 2**30:,.1f} GiB, and {name} has {size / 2**30:,.1f} GiB",
                f"use a --batch-size far below {size // (example * len(batches)) or 1:,}: layers need more",
            )


def _of_gpus(spec: RunSpec, machines: Sequence[Machine | None]) -> Iterator[tuple[str, int, list[int]]]:
    """Yield the name, memory and batch of each GPU whose memory is known."""
    for device, batch in zip(spec.devices, spec.batches, strict=True):
        gpu = find_gpu(machines[device.rank], device.gpu)
        total = None if gpu is None else gpu.memory_mib.total
        known = [mib for mib in (total, spec.runtime.memory_limit_mib) if mib is not None]
        if known:
            yield f"{device.host or ''} GPU {device.gpu}".strip(), min(known) * 2**20, [batch]


def _of_hosts(spec: RunSpec, host_bytes: Sequence[int | None]) -> Iterator[tuple[str, int, list[int]]]:
    """Yield each host whose memory is known, with the batches of its CPU devices, which share the memory."""
    for rank, size in enumerate(host_bytes):
        pairs = zip(spec.devices, spec.batches, strict=True)
        own = [batch for device, batch in pairs if device.rank == rank]
        if size is not None and own:
            yield spec.servers[rank].host if spec.servers else "this machine", size, own
