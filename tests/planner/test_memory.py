import pytest

from gputopo.planner.choose import largest_batch, needed_bytes, require_memory
from gputopo.prediction.one_gpu_speeds import Figure
from gputopo.values.errors import UsageError
from gputopo.values.machine import Gpu, Machine, MemoryMib
from gputopo.workload.workloads import require

RESNET = require("resnet50")
GIB = 2**30


def box(**fields: object) -> Machine:
    return Machine(source="a test", gpus=(Gpu(index=3, **fields),))  # type: ignore[arg-type]


def test_a_batch_needs_its_features_and_three_times_the_variables() -> None:
    empty = needed_bytes(RESNET, 0, "fp32")
    assert empty == 3 * 4 * RESNET.parameters
    assert needed_bytes(RESNET, 64, "fp32") - empty == 64 * RESNET.feature_bytes
    assert needed_bytes(RESNET, 64, "fp16") - empty == 32 * RESNET.feature_bytes


def test_a_batch_that_was_trained_here_is_not_refused_whatever_is_counted() -> None:
    machine = box(name="GeForce GTX 1070")
    ran = [Figure("GeForce GTX 1070", "resnet50", 500, "fp32", 100.0)]
    require_memory(machine, RESNET, {3: 500}, "fp32", ran)
    for batch, precision in ((501, "fp32"), (500, "bf16")):
        with pytest.raises(UsageError, match="GPU 3 has 8 GiB at most"):
            require_memory(machine, RESNET, {3: batch}, precision, ran)


def test_the_largest_batch_leaves_a_tenth_of_the_memory() -> None:
    batch = largest_batch(RESNET, 8 * GIB, "fp32")
    assert needed_bytes(RESNET, batch, "fp32") <= 0.9 * 8 * GIB < needed_bytes(RESNET, batch + 1, "fp32")
    assert largest_batch(RESNET, GIB // 4, "fp32") == 0


@pytest.mark.parametrize(
    ("machine", "gib"),
    [
        (box(memory_mib=MemoryMib(total=8192)), 8),
        (box(name="Tesla V100-SXM2-16GB"), 16),
        (box(name="NVIDIA H100 80GB HBM3"), 80),
        (box(name="GeForce GTX 1070"), 8),
        (box(name="GH200 480GB"), 96),
        (box(name="a GPU that no table has"), 288),
    ],
)
def test_the_memory_is_as_reported_or_as_of_its_model_or_that_of_the_largest_gpu(
    machine: Machine, gib: int
) -> None:
    fits = (gib * GIB - needed_bytes(RESNET, 0, "fp32")) // RESNET.feature_bytes
    require_memory(machine, RESNET, {3: fits, 0: 10**9}, "fp32")
    with pytest.raises(UsageError, match=f"GPU 3 has {gib} GiB"):
        require_memory(machine, RESNET, {3: fits + 1}, "fp32")
