"""The memory that training needs on a GPU, and the largest batch that fits."""

from collections.abc import Mapping, Sequence
from math import log
from typing import NamedTuple

from gputopo.prediction import Figure
from gputopo.reference import expected_of
from gputopo.values.errors import UsageError
from gputopo.values.machine import Gpu, Machine
from gputopo.workload import Workload

COPIES = 3  # of the variables: weights, gradients, momentum
MARGIN = 0.1  # share of the memory that the suggested batch leaves free
LARGEST_GIB = 288  # NVIDIA B300
_HALF = ("fp16", "bf16")


class MemoryNeed(NamedTuple):
    """Memory that training allocates on a GPU: bytes for any batch, and bytes for each example.

    `source`: the source of both, in words.
    """

    fixed: float
    each: float
    source: str

    def bytes(self, batch: int) -> float:
        """Return the bytes for a batch."""
        return self.fixed + batch * self.each

    def largest_batch(self, memory_bytes: int) -> int:
        """Return the largest batch that leaves MARGIN of a memory free; 0 if no batch does."""
        return max(0, int(((1 - MARGIN) * memory_bytes - self.fixed) // self.each))


def memory_need(
    workload: Workload, gpu: Gpu, batch: int, precision: str, history: Sequence[Figure] = ()
) -> MemoryNeed:
    """Return the memory that training needs: from the earlier run with the nearest batch, else computed.

    Only runs on GPUs of this model are used. All memory except the variables is proportional to the batch.
    """
    features = workload.feature_bytes / (2 if precision in _HALF else 1)
    counted = MemoryNeed(COPIES * workload.parameter_bytes, features, "counted from its layers")
    ran = [
        (abs(log(batch / figure.batch)), figure.batch, figure.peak_bytes)
        for figure in history
        if figure.is_of(gpu, workload.name, precision) and figure.peak_bytes
    ]
    if not ran:
        return counted
    _, batch_then, peak = min(ran, key=lambda run: run[0])
    fixed = min(counted.fixed, peak / 2)
    words = f"by the peak of an earlier run with {batch_then:,}, {peak / 2**30:.1f} GiB"
    return MemoryNeed(fixed, (peak - fixed) / batch_then, words)


def require_memory(
    machine: Machine,
    workload: Workload,
    batches: Mapping[int, int],
    precision: str,
    history: Sequence[Figure] = (),
) -> None:
    """Raise UsageError if the batch of a GPU needs more than its memory. `batches`: by GPU index."""
    for gpu in machine.gpus:
        if gpu.index not in batches:
            continue
        batch, memory = batches[gpu.index], (gpu.memory_mib.total or 0) * 2**20
        if not memory:  # not reported: the largest of its model, else of the largest GPU
            row = expected_of(gpu)
            memory = ((row and row.memory_gib) or LARGEST_GIB) * 2**30
        need = memory_need(workload, gpu, batch, precision, history)
        if need.bytes(batch) <= memory:
            continue
        fits = need.largest_batch(memory)
        raise UsageError(
            f"a batch of {batch:,} of {workload.name} needs about {need.bytes(batch) / 2**30:,.1f} GiB "
            f"({need.source}), GPU {gpu.index} has {memory / 2**30:.0f} GiB"
            f"{'' if gpu.memory_mib.total else ' at most'}",
            f"use --batch-size {fits:,}" if fits else "use a smaller model or a GPU with more memory",
        )
