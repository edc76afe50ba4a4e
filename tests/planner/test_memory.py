"""The memory that a batch needs, and the batch that is suggested if it does not fit."""

import pytest

from gputopo.planner import Request, plan
from gputopo.prediction import Figure
from gputopo.values.errors import UsageError
from gputopo.values.machine import Gpu, Machine, MemoryMib
from gputopo.workload import require_workload

RESNET = require_workload("resnet50")
GIB = 2**30
VARIABLES = 3 * 4 * RESNET.parameters  # bytes of weights, gradients and momentum


def check(
    batch: int | tuple[int, ...], *gpus: Gpu, precision: str = "fp32", history: tuple[Figure, ...] = ()
) -> None:
    """Plan for these GPUs with a batch for each; raises UsageError if it does not fit."""
    asked = Request(model="resnet50", batch_size=batch, precision=precision, fits=True)
    plan(Machine(source="a test", gpus=gpus), asked, history=history)


def largest(gib: float, precision: str = "fp32") -> int:
    """Return the largest batch for this memory: all but the variables is of the features."""
    return int((gib * GIB - VARIABLES) // (RESNET.feature_bytes / (1 if precision == "fp32" else 2)))


@pytest.mark.parametrize(
    ("gpu", "gib"),
    [
        (Gpu(index=0, name="GeForce GTX 1070", memory_mib=MemoryMib(total=6144)), 6),
        (Gpu(index=0, name="Tesla V100-SXM2-16GB"), 16),
        (Gpu(index=0, name="GeForce GTX 1070"), 8),
        (Gpu(index=0, name="a GPU that no table has"), 288),
    ],
)
def test_the_memory_is_as_reported_or_as_of_its_model_or_that_of_the_largest_gpu(gpu: Gpu, gib: int) -> None:
    check(largest(gib), gpu)
    has = f"GPU 0 has {gib} GiB{'$' if gpu.memory_mib.total else ' at most'}"
    with pytest.raises(UsageError, match=has) as refused:
        check(largest(gib) + 1, gpu)
    # The suggested batch leaves a tenth of the memory.
    assert refused.value.hint == f"use --batch-size {largest(0.9 * gib):,}"


def test_each_gpu_needs_the_memory_of_its_own_batch() -> None:
    small, large = Gpu(index=0, name="GeForce GTX 1070"), Gpu(index=1, name="Tesla V100-SXM2-16GB")
    check((largest(8), largest(16)), small, large)
    with pytest.raises(UsageError, match="GPU 1 has 16 GiB"):
        check((1, largest(16) + 1), small, large)


def test_a_model_that_does_not_fit_has_no_batch() -> None:
    with pytest.raises(UsageError) as refused:
        check(64, Gpu(index=0, name="GeForce GTX 1070", memory_mib=MemoryMib(total=256)))
    assert refused.value.hint == "use a smaller model or a GPU with more memory"


def test_the_peak_of_the_earlier_run_with_the_nearest_batch_decides_before_what_is_counted() -> None:
    gpu = Gpu(index=3, name="NVIDIA GeForce GTX 1070")
    history = tuple(
        Figure("GeForce GTX 1070", "resnet50", batch, "fp32", 100.0, peak_bytes=round(gib * GIB))
        for batch, gib in ((8, 7.9), (600, 4.0))
    )
    check(1000, gpu, history=history)
    with pytest.raises(UsageError) as refused:
        check(1300, gpu, history=history)
    # 0.29 GiB of variables, 3.71 for 600 examples: 8.3 for 1300; 6.91 left of 7.2 are 1116 examples
    assert "needs about 8.3 GiB (by the peak of an earlier run with 600, 4.0 GiB)" in refused.value.what
    assert refused.value.hint == "use --batch-size 1,116"
    with pytest.raises(UsageError, match=r"counted from its layers.*, GPU 3 has 8 GiB at most"):
        check(1000, gpu, precision="bf16", history=history)
