import pytest

from gputopo.planner.choose import memory_need, require_memory
from gputopo.prediction import Figure
from gputopo.values.errors import UsageError
from gputopo.values.machine import Gpu, Machine, MemoryMib
from gputopo.workload import require_workload

RESNET = require_workload("resnet50")
GIB = 2**30


def box(**fields: object) -> Machine:
    return Machine(source="a test", gpus=(Gpu(index=3, **fields),))  # type: ignore[arg-type]


NEED = memory_need(RESNET, Gpu(index=0), 64, "fp32")


def test_a_batch_needs_its_features_and_three_times_the_variables() -> None:
    assert NEED.bytes(0) == 3 * 4 * RESNET.parameters
    assert NEED.bytes(64) - NEED.bytes(0) == 64 * RESNET.feature_bytes
    assert memory_need(RESNET, Gpu(index=0), 64, "fp16").each == RESNET.feature_bytes / 2


def test_the_peak_of_the_earlier_run_with_the_nearest_batch_decides_before_what_is_counted() -> None:
    machine = box(name="NVIDIA GeForce GTX 1070")
    small, large = (
        Figure("GeForce GTX 1070", "resnet50", batch, "fp32", 100.0, peak_bytes=round(gib * GIB))
        for batch, gib in ((8, 7.9), (600, 4.0))
    )
    require_memory(machine, RESNET, {3: 1000}, "fp32", [small, large])
    with pytest.raises(UsageError) as refused:
        require_memory(machine, RESNET, {3: 1300}, "fp32", [small, large])
    # 0.29 GiB of variables, 3.71 for 600 examples: 8.3 for 1300; 6.91 left of 7.2 are 1116 examples
    assert "needs about 8.3 GiB (by the peak of an earlier run with 600, 4.0 GiB)" in refused.value.what
    assert refused.value.hint == "use --batch-size 1,116"
    with pytest.raises(UsageError, match=r"counted from its layers.*, GPU 3 has 8 GiB at most"):
        require_memory(machine, RESNET, {3: 1000}, "bf16", [small, large])


def test_the_largest_batch_leaves_a_tenth_of_the_memory() -> None:
    batch = NEED.largest_batch(8 * GIB)
    assert NEED.bytes(batch) <= 0.9 * 8 * GIB < NEED.bytes(batch + 1)
    assert NEED.largest_batch(GIB // 4) == 0


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
    fits = int((gib * GIB - NEED.fixed) // NEED.each)
    require_memory(machine, RESNET, {3: fits, 0: 10**9}, "fp32")
    with pytest.raises(UsageError, match=f"GPU 3 has {gib} GiB"):
        require_memory(machine, RESNET, {3: fits + 1}, "fp32")
