"""Whether a batch can be in the memory of its GPU while it is trained. Pure.

What training keeps at least: the outputs of layers for each example, three times the variables (weights,
gradients, momentum). Workspaces and gradients of the outputs come on top: the largest batches of published
figures need 0.5 to 0.92 of a GPU's memory by this account.
"""

import re
from collections.abc import Mapping

from gputopo.values.errors import UsageError
from gputopo.values.machine import Gpu, Machine
from gputopo.workload.workloads import Workload

COPIES = 3  # of the variables: weights, gradients, momentum
MARGIN = 0.1  # of the memory: the batch that is suggested leaves as much
LARGEST_GIB = 288  # NVIDIA B300
_IN_NAME = re.compile(r"\b([0-9]{1,3}) ?GB\b")
_HALF = ("fp16", "bf16")


def needed_bytes(workload: Workload, batch: int, precision: str) -> int:
    """Return the bytes that training of a batch keeps at least."""
    features = workload.feature_bytes // (2 if precision in _HALF else 1)
    return COPIES * workload.parameter_bytes + batch * features


def largest_batch(workload: Workload, memory_bytes: int, precision: str) -> int:
    """Return the largest batch that leaves MARGIN of a memory; 0 where none does."""
    left = (1 - MARGIN) * memory_bytes - needed_bytes(workload, 0, precision)
    return max(0, int(left // (needed_bytes(workload, 1, precision) - needed_bytes(workload, 0, precision))))


def require_memory(machine: Machine, workload: Workload, batches: Mapping[int, int], precision: str) -> None:
    """Raise UsageError where the batch of a GPU, by index, needs more than its memory."""
    for gpu in machine.gpus:
        if gpu.index not in batches:
            continue
        batch, memory = batches[gpu.index], _memory_bytes(gpu)
        needed = needed_bytes(workload, batch, precision)
        if needed <= memory:
            continue
        fits = largest_batch(workload, memory, precision)
        raise UsageError(
            f"a batch of {batch:,} of {workload.name} needs {needed / 2**30:,.0f} GiB or more, "
            f"GPU {gpu.index} has {memory / 2**30:.0f} GiB{'' if _is_known(gpu) else ' at most'}",
            f"use --batch-size {fits:,}" if fits else "use a smaller model or a GPU with more memory",
        )


def _memory_bytes(gpu: Gpu) -> int:
    """Return the memory of a GPU: as reported, else as in its name, else that of the largest GPU."""
    if gpu.memory_mib.total is not None:
        return gpu.memory_mib.total * 2**20
    found = _IN_NAME.search(gpu.name or "")
    return (int(found[1]) if found else LARGEST_GIB) * 2**30


def _is_known(gpu: Gpu) -> bool:
    return gpu.memory_mib.total is not None or _IN_NAME.search(gpu.name or "") is not None
